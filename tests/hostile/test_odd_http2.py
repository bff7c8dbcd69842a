"""APNs against servers that are odd and right, or wrong in ways that few are: rows as in test_hostile_http2.py."""

import struct
import time
from collections.abc import Callable

import pytest
from hpack import Encoder

from tests.contract.apns_rig import Identity
from tests.hostile.http2_stage import (
    BROKEN,
    DELIVERED,
    SHORT_S,
    UNKNOWN,
    UNSENT,
    Row,
    Table,
    all_at_once,
    each,
    every,
    floods,
    goaway,
    in_order,
    once,
    play,
    together,
)
from tests.hostile.servers import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
    HEADERS,
    INITIAL_WINDOW,
    MAX_STREAMS,
    PADDED,
    PING,
    PREFACE,
    RST,
    SETTINGS,
    TABLE_SIZE,
    WINDOW,
    H2Peer,
    block,
    frame,
    settings,
)
from tests.hostile.suffering import MESSAGES

ROWS = Table()
row, add = ROWS.row, ROWS.add
PRIORITY_FLAG = 0x20
OK = (b":status", b"200")


def given(peer: H2Peer, stream: int, status: int = 200) -> None:
    """Note an answer that is made by hand."""
    peer.server.answered[peer._ids[stream]].append(status)


# Odd, and right.


def answers(make: Callable[[int], bytes]) -> Callable[[H2Peer], None]:
    """Answer every request by these bytes, which are a 200. make: by the request's stream."""

    def script(peer: H2Peer) -> None:
        for stream in every(peer):
            given(peer, stream)
            peer.send(make(stream))

    return script


def in_pieces(stream: int, payload: bytes, size: int) -> bytes:
    parts = [payload[at : at + size] for at in range(0, len(payload), size)]
    kinds = [HEADERS] + [CONTINUATION] * (len(parts) - 1)
    flags = [END_STREAM if n == 0 else 0 for n in range(len(parts))]
    flags[-1] |= END_HEADERS
    return b"".join(map(frame, kinds, flags, [stream] * len(parts), parts))


HINT = block((b":status", b"103"), (b"link", b"</a>"))
MANY = block(OK, *((b"x-%d" % n, b"y" * 100) for n in range(60)))
RIGHT: dict[str, Callable[[int], bytes]] = {
    "trailers": lambda s: (
        frame(HEADERS, END_HEADERS, s, block(OK))
        + frame(DATA, 0, s, b"{}")
        + frame(HEADERS, END_HEADERS | END_STREAM, s, block((b"grpc-status", b"0")))
    ),
    "a hint, then the answer": lambda s: (
        frame(HEADERS, END_HEADERS, s, HINT) * 3 + frame(HEADERS, END_HEADERS | END_STREAM, s, block(OK))
    ),
    "padded headers and a padded body": lambda s: (
        frame(HEADERS, END_HEADERS | PADDED, s, b"\x07" + block(OK) + bytes(7))
        + frame(DATA, END_STREAM | PADDED, s, b"\xff{}" + bytes(255))
    ),
    "nothing but padding": lambda s: (
        frame(HEADERS, END_HEADERS, s, block(OK)) + frame(DATA, END_STREAM | PADDED, s, b"\x05" + bytes(5))
    ),
    "headers with a priority": lambda s: (
        frame(HEADERS, END_HEADERS | END_STREAM | PRIORITY_FLAG, s, struct.pack(">LB", 0, 16) + block(OK))
    ),
    "headers byte by byte": lambda s: in_pieces(s, block(OK, (b"x", b"y")), 1),
    "headers of 7 kB in pieces": lambda s: in_pieces(s, MANY, 2_000),
    "an empty frame at the end": lambda s: (
        frame(HEADERS, END_HEADERS, s, block(OK)) + frame(DATA, 0, s, b"{}") + frame(DATA, END_STREAM, s)
    ),
    "a length of nothing": lambda s: (
        frame(HEADERS, END_HEADERS | END_STREAM, s, block(OK, (b"content-length", b"0")))
    ),
    "frames of the future between": lambda s: (
        frame(0xAB, 0xFF, s, b"what") + frame(HEADERS, END_HEADERS | END_STREAM, s, block(OK)) + frame(0xCD, 0, 0)
    ),
}  # fmt: skip
ROWS += [Row(answers(make), DELIVERED, name=name) for name, make in RIGHT.items()]


@row(DELIVERED)
def a_window_byte_by_byte(peer: H2Peer) -> None:
    """A body goes out as the window admits it, however little that is at a time."""
    assert peer.exactly(len(PREFACE)) == PREFACE
    peer.send(settings((MAX_STREAMS, 1), (INITIAL_WINDOW, 1)))
    for kind, flags, stream, payload in peer.frames():
        if kind == HEADERS:
            headers = dict(peer._decoder.decode(payload, raw=True))
            peer._ids[stream] = headers[b"apns-id"].decode()
        elif kind == DATA and flags & END_STREAM:
            peer.server.arrived[peer._ids[stream]] += 1
            peer.send(peer.answer(stream))
        elif kind == DATA and payload:
            peer.send(frame(WINDOW, 0, stream, struct.pack(">L", 1)))
        elif kind == SETTINGS and not flags & ACK:
            peer.send(frame(SETTINGS, ACK))


@row(DELIVERED)
def an_answer_before_the_body(peer: H2Peer) -> None:
    """The server closes its half first: its status counts, and the rest of the body is not sent."""
    assert peer.exactly(len(PREFACE)) == PREFACE
    peer.send(settings((MAX_STREAMS, 1000), (INITIAL_WINDOW, 0)))
    for kind, flags, stream, payload in peer.frames():
        if kind == HEADERS:
            headers = dict(peer._decoder.decode(payload, raw=True))
            peer._ids[stream] = headers[b"apns-id"].decode()
            peer.server.arrived[peer._ids[stream]] += 1
            peer.send(peer.answer(stream))
        elif kind == SETTINGS and not flags & ACK:
            peer.send(frame(SETTINGS, ACK))


@row(DELIVERED)
def a_table_that_shrinks_and_grows(peer: H2Peer) -> None:
    for n, stream in enumerate(every(peer)):
        peer.send(settings((TABLE_SIZE, (0, 4096, 60)[n % 3])) + peer.answer(stream))


add("one stream at a time", DELIVERED, each(H2Peer.answer, (MAX_STREAMS, 1)))
add("answers in reverse", DELIVERED, together(lambda peer, streams: in_order(peer, streams[::-1])))
add(
    "two goaways, the second for fewer", DELIVERED | UNSENT,
    together(lambda peer, streams: goaway(2**31 - 1) + goaway(streams[3]) + in_order(peer, streams[:4])),
)  # fmt: skip


# Wrong.


def table_bomb() -> bytes:
    """64 kB of headers from a table entry of 4 kB, below what a frame holds."""
    encoder = Encoder()
    return encoder.encode([OK, (b"x", b"y" * 4000)], huffman=False) + b"\xbe" * 16


WRONG: dict[str, Callable[[int], bytes]] = {
    "a hint that ends the stream": lambda s: frame(HEADERS, END_HEADERS | END_STREAM, s, HINT),
    "headers of 40 kB in pieces": lambda s: in_pieces(s, MANY * 6, 16_384),
    "a table entry unpacked 16 times": lambda s: frame(HEADERS, END_HEADERS | END_STREAM, s, table_bomb()),
    "another frame among continuations": lambda s: frame(HEADERS, 0, s, block(OK)) + frame(PING, 0, 0, bytes(8)),
    "a continuation of another stream": lambda s: (
        frame(HEADERS, 0, s, block(OK)) + frame(CONTINUATION, END_HEADERS, s + 2, b"")
    ),
    "headers on no stream": lambda _: frame(HEADERS, END_HEADERS | END_STREAM, 0, block(OK)),
    "a body on no stream": lambda _: frame(DATA, END_STREAM, 0, b"{}"),
    "a reset of no stream": lambda _: frame(RST, 0, 0, struct.pack(">L", 8)),
    "a reset of a stream that was never opened": lambda s: frame(RST, 0, s + 1000, struct.pack(">L", 8)),
    "a reset of five bytes": lambda s: frame(RST, 0, s, bytes(5)),
    "a ping of seven bytes": lambda _: frame(PING, 0, 0, bytes(7)),
    "settings of five bytes": lambda _: frame(SETTINGS, 0, 0, bytes(5)),
    "settings on a stream": lambda s: frame(SETTINGS, 0, s, b""),
    "settings acknowledged with something in them": lambda _: frame(SETTINGS, ACK, 0, bytes(6)),
    "a goaway of four bytes": lambda _: frame(GOAWAY, 0, 0, bytes(4)),
    "a window that grows by nothing": lambda _: frame(WINDOW, 0, 0, bytes(4)),
    "a window of a stream that was never opened": lambda s: frame(WINDOW, 0, s + 1000, struct.pack(">L", 1)),
    "headers that only pad": lambda s: frame(HEADERS, END_HEADERS | END_STREAM | PADDED, s, b"\x09" + bytes(4)),
    "an index that no table has": lambda s: frame(HEADERS, END_HEADERS | END_STREAM, s, b"\xff\xff\xff\x7f"),
    "a number without end": lambda s: frame(HEADERS, END_HEADERS | END_STREAM, s, b"\xff" * 200),
    "a table larger than ours": lambda s: frame(HEADERS, END_HEADERS | END_STREAM, s, b"\x3f\xe1\xff\xff\x7f\x88"),
}  # fmt: skip
for name, make in WRONG.items():
    add(name, BROKEN, once(make), SHORT_S)

BAD: dict[str, Callable[[int], bytes]] = {
    "a status twice": lambda s: frame(HEADERS, END_HEADERS | END_STREAM, s, block(OK, (b":status", b"404"))),
    "a status that is not first": lambda s: frame(HEADERS, END_HEADERS | END_STREAM, s, block((b"x", b"y"), OK)),
    "a name in capitals": lambda s: frame(HEADERS, END_HEADERS | END_STREAM, s, block(OK, (b"X-Y", b"z"))),
    "a line break in a header": lambda s: frame(HEADERS, END_HEADERS | END_STREAM, s, block(OK, (b"x", b"a\r\nb: c"))),
    "a header of HTTP/1.1": lambda s: (
        frame(HEADERS, END_HEADERS | END_STREAM, s, block(OK, (b"transfer-encoding", b"chunked")))
    ),
    "a length that is missing its body": lambda s: (
        frame(HEADERS, END_HEADERS | END_STREAM, s, block(OK, (b"content-length", b"5")))
    ),
    "a body after the end": lambda s: (
        frame(HEADERS, END_HEADERS | END_STREAM, s, block(OK)) + frame(DATA, END_STREAM, s, b"more")
    ),
    "a second answer after the first": lambda s: (
        frame(HEADERS, END_HEADERS, s, block(OK))
        + frame(HEADERS, END_HEADERS | END_STREAM, s, block((b":status", b"410")))
    ),
}  # fmt: skip


def badly(make: Callable[[int], bytes]) -> Callable[[H2Peer], None]:
    """Answer every request so; whether that is an answer is the client's to say."""

    def script(peer: H2Peer) -> None:
        for stream in every(peer):
            peer.server.answered[peer._ids[stream]] += [200, 404, 410]
            peer.send(make(stream))

    return script


ROWS += [Row(badly(make), DELIVERED | BROKEN, SHORT_S, name=name) for name, make in BAD.items()]


# The continuation flood: frames that cost their sender nothing, of a header block that has no end.
add(
    "a flood of continuations without a byte", BROKEN,
    floods(lambda s: frame(CONTINUATION, 0, s, b""), lambda s: frame(HEADERS, 0, s, HINT)), flood=True,
)  # fmt: skip
BARE = block((b":status", b"103"))
add(
    "a flood of padding", BROKEN,
    floods(lambda s: frame(HEADERS, END_HEADERS | PADDED, s, b"\xf0" + BARE + bytes(240)),
           lambda s: frame(HEADERS, END_HEADERS, s, BARE)),
    flood=True,
)  # fmt: skip
RESETS = b"".join(frame(RST, 0, stream, struct.pack(">L", 8)) for stream in range(1, 2 * MESSAGES, 2))
add("a flood of resets of what was never asked", BROKEN, floods(lambda _: RESETS), flood=True)


@row(UNKNOWN | UNSENT, SHORT_S)
def bodies_for_what_was_given_up(peer: H2Peer) -> None:
    """More than the connection's window, on streams that their client has reset: the window is given back."""
    streams = all_at_once(peer)
    time.sleep(SHORT_S + 0.2)
    for stream in streams:
        peer.send(frame(DATA, 0, stream, bytes(16_000)))
    peer.wait()


@pytest.mark.parametrize("what", ROWS, ids=[row.name for row in ROWS])
def test_an_odd_server_stops_nobody(what: Row, identity: Identity) -> None:
    """Each send has one answer that is true, nothing is lost, and soon after the server heals all goes again."""
    play(what, identity)
