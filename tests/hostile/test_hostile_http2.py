"""APNs against servers that break HTTP/2: each row is one behaviour, and after each the same must hold."""

import asyncio
import struct
import time

import pytest
from hpack import Encoder

from notifier.providers.contract import Outcome
from tests.contract.apns_rig import Identity, dispatch, make_provider
from tests.hostile.http2_stage import (
    BROKEN,
    DELIVERED,
    REJECTED,
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
    ALTSVC,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    INITIAL_WINDOW,
    MAX_FRAME,
    MAX_STREAMS,
    PADDED,
    PING,
    PRIORITY,
    PUSH,
    RST,
    SETTINGS,
    TABLE_SIZE,
    WINDOW,
    H2Peer,
    HostileServer,
    block,
    frame,
    serve_http2_well,
    settings,
)
from tests.hostile.suffering import MESSAGES

ROWS = Table()
row, add = ROWS.row, ROWS.add

WHOLE = END_HEADERS | END_STREAM
OK, TRAILER = block((b":status", b"200")), block((b"a", b"b"))
LONG = block((b":status", b"200"), (b"content-length", b"9" * 5000))


# What stands in an answer.


ODD_STATUSES = {
    "a status of 5,000 digits": b"9" * 5000,
    "a status of letters": b"abc",
    "a negative status": b"-20",
    "an empty status": b"",
    "a status of one digit": b"2",
    "a status of 000": b"000",
    "a status of 999": b"999",
    "a status with a blank": b"200 ",
    "a status of other digits": "٢٠٠".encode(),
}
for name, text in ODD_STATUSES.items():
    add(name, UNKNOWN, each(lambda peer, stream, text=text: peer.answer(stream, text)))
add("no status at all", UNKNOWN, each(lambda _, stream: frame(HEADERS, WHOLE, stream, block((b"x", b"y")))))
add("a length of 5,000 digits", UNKNOWN | BROKEN, each(lambda _, stream: frame(HEADERS, WHOLE, stream, LONG)))
add("a 200 without an end", DELIVERED, each(lambda peer, stream: peer.answer(stream, flags=END_HEADERS)), SHORT_S)
add(
    "a 400 without an end", REJECTED,
    each(lambda peer, stream: peer.answer(stream, b"400", flags=END_HEADERS) + frame(DATA, 0, stream, b'{"reason":')),
    SHORT_S,
)  # fmt: skip
add(
    "a 200 that is then reset", DELIVERED,
    each(lambda peer, stream: peer.answer(stream, flags=END_HEADERS) + frame(RST, 0, stream, struct.pack(">L", 2))),
)  # fmt: skip
add("an answer given twice", DELIVERED | BROKEN, each(lambda peer, stream: peer.answer(stream) * 2))
add(
    "trailers without an end", DELIVERED | BROKEN,
    each(lambda peer, stream: peer.answer(stream, flags=END_HEADERS) + frame(HEADERS, END_HEADERS, stream, TRAILER)),
)  # fmt: skip
add("answers and then a bad frame", DELIVERED, together(lambda *of: in_order(*of) + frame(SETTINGS, 0, 1, b"bad")))
add("answers and then garbage", DELIVERED, together(lambda *of: in_order(*of) + b"\xff" * 4000))
add("answers behind a goaway", DELIVERED, together(lambda *of: goaway(of[1][-1]) + in_order(*of)))


@row(DELIVERED)
def answers_and_then_the_end(peer: H2Peer) -> None:
    peer.send(b"".join(peer.answer(stream) for stream in all_at_once(peer)))
    peer.sock.unwrap()


@row(DELIVERED | BROKEN)
def a_body_longer_than_it_says(peer: H2Peer) -> None:
    for stream in every(peer):
        peer.server.answered[peer._ids[stream]].append(200)
        headers = block((b":status", b"200"), (b"content-length", b"1"))
        peer.send(frame(HEADERS, END_HEADERS, stream, headers) + frame(DATA, END_STREAM, stream, b"xyz"))


add("a pad longer than its frame", BROKEN, once(lambda stream: frame(DATA, PADDED, stream, b"\xff")))
add("an answer to a stream of the server's", BROKEN, once(lambda _: frame(HEADERS, WHOLE, 2, OK)), SHORT_S)
add("an answer to a stream that was never opened", BROKEN, once(lambda _: frame(HEADERS, WHOLE, 99_999, OK)))
add("a body without headers", BROKEN, once(lambda stream: frame(DATA, END_STREAM, stream, b"200")))


@row(DELIVERED)
def a_body_without_end(peer: H2Peer) -> None:
    peer.begin()
    requests = peer.requests()
    peer.send(b"".join(peer.answer(next(requests), flags=END_HEADERS) for _ in range(MESSAGES)))
    for stream in range(1, 2 * MESSAGES, 2):
        peer.send(frame(DATA, 0, stream, b"x" * 16_384) * 3)
    peer.wait()


# What the server says without being asked.


def hpack_bomb() -> bytes:
    encoder = Encoder()
    return encoder.encode([(b"x", b"y" * 4000)], huffman=False) + b"\xbe" * 12_000


HINTS = block((b":status", b"103"), (b"link", b"</a>"))
EXTRAS = {
    "pings": lambda _: frame(PING, 0, 0, b"hostile!"),
    "acknowledged pings": lambda _: frame(PING, ACK, 0, b"hostile!"),
    "settings": lambda _: frame(SETTINGS),
    "settings of windows": lambda _: settings((INITIAL_WINDOW, 1)) + settings((INITIAL_WINDOW, 2**31 - 1)),
    "settings of tables": lambda _: settings((TABLE_SIZE, 0)) + settings((TABLE_SIZE, 2**32 - 1)),
    "goaways": lambda _: goaway(2**31 - 1),
    "goaways with a text": lambda _: goaway(2**31 - 1, b"x" * 8000),
    "priorities": lambda stream: frame(PRIORITY, 0, stream, struct.pack(">LB", 0, 16)),
    "frames that nobody knows": lambda _: frame(0x77, 0, 0, b"what"),
    "alternative services": lambda _: frame(ALTSVC, 0, 0, b'\x00\x01ah2=":1"'),
    "windows in small change": lambda _: frame(WINDOW, 0, 0, struct.pack(">L", 1)),
    "hints": lambda stream: frame(HEADERS, END_HEADERS, stream, HINTS),
    "resets of closed streams": lambda stream: frame(RST, 0, stream, struct.pack(">L", 8)),
}  # fmt: skip
for name, unit in EXTRAS.items():
    add(f"a flood of {name}", BROKEN, floods(unit), flood=True)


@row(DELIVERED, flood=True)
def a_flood_of_empty_data(peer: H2Peer) -> None:
    requests = every(peer)
    streams = [next(requests) for _ in range(MESSAGES)]
    peer.send(b"".join(peer.answer(stream, flags=END_HEADERS) for stream in streams))
    peer.flood(frame(DATA, 0, streams[0]))


@row(DELIVERED, flood=True)
def a_flood_of_data_after_answers(peer: H2Peer) -> None:
    streams = all_at_once(peer)
    peer.send(b"".join(peer.answer(stream, flags=END_HEADERS) for stream in streams))
    peer.flood(frame(DATA, 0, streams[0], b"x" * 16_000), times=10)


REQUEST = block((b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/"))
PROMISE = struct.pack(">L", 2) + REQUEST
add("a flood that is not read from", BROKEN, floods(lambda _: frame(PING, 0, 0, b"hostile!"), times=50), flood=True)
add("a flood of promises", BROKEN, floods(lambda stream: frame(PUSH, END_HEADERS, stream, PROMISE)), flood=True)
add(
    "a header block without end", BROKEN,
    floods(lambda stream: frame(CONTINUATION, 0, stream, b"\x00\x01a\x01b" * 1000),
           lambda stream: frame(HEADERS, 0, stream, HINTS), times=10),
    flood=True,
)  # fmt: skip
add("a continuation of nothing", BROKEN, once(lambda stream: frame(CONTINUATION, END_HEADERS, stream, HINTS)))
add(
    "headers that unpack to 50 megabytes", BROKEN,
    once(lambda stream: frame(HEADERS, END_HEADERS, stream, hpack_bomb())),
)  # fmt: skip
add("a frame longer than allowed", BROKEN, once(lambda stream: frame(DATA, 0, stream, b"x" * 2**20)))


@row(BROKEN)
def settings_out_of_bounds(peer: H2Peer) -> None:
    peer.begin((MAX_FRAME, 1), (INITIAL_WINDOW, 2**31))
    peer.wait()


@row(BROKEN)
def garbage(peer: H2Peer) -> None:
    peer.send(b"\x00" * 50_000)
    peer.wait()


@row(BROKEN)
def an_answer_in_http_1(peer: H2Peer) -> None:
    peer.send(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    peer.wait()


# Windows, limits, ends.


@row(BROKEN)
def the_end_before_an_answer(peer: H2Peer) -> None:
    peer.begin()
    peer.first()
    peer.sock.unwrap()


@row(BROKEN)
def a_crash_before_an_answer(peer: H2Peer) -> None:
    peer.begin()
    peer.first()
    peer.reset()


@row(BROKEN)
def a_crash_at_once(peer: H2Peer) -> None:
    peer.reset()


FULLER = struct.pack(">L", 2**31 - 1)
add("a window beyond its bound", BROKEN, once(lambda _: frame(WINDOW, 0, 0, FULLER) * 2))
add("a stream's window beyond its bound", UNKNOWN | UNSENT, each(lambda _, s: frame(WINDOW, 0, s, FULLER) * 2))
add("no window ever", UNSENT | UNKNOWN, each(lambda *_: b"", (INITIAL_WINDOW, 0)), SHORT_S)
add("no stream ever", UNSENT | UNKNOWN, each(lambda *_: b"", (MAX_STREAMS, 0)), SHORT_S)
add("every stream reset", BROKEN, each(lambda _, stream: frame(RST, 0, stream, struct.pack(">L", 2))))
add("every stream refused", UNSENT, each(lambda _, stream: frame(RST, 0, stream, struct.pack(">L", 7))))
add("a goaway for each connection", BROKEN, once(lambda _: goaway(0)))
add("silence", BROKEN, each(lambda *_: b""), SHORT_S)


@row(BROKEN, SHORT_S)
def silence_without_settings(peer: H2Peer) -> None:
    peer.wait()


@row(BROKEN, SHORT_S)
def bytes_one_by_one(peer: H2Peer) -> None:
    peer.begin()
    for byte in peer.answer(peer.first()):
        peer.send(bytes((byte,)))
        time.sleep(0.15)
    peer.wait()


@row(BROKEN, SHORT_S)
def nothing_is_read(peer: H2Peer) -> None:
    peer.begin()
    peer.server.healed.wait(20)


@pytest.mark.parametrize("setting", [INITIAL_WINDOW, MAX_STREAMS])
async def test_a_connection_that_gives_nothing_any_more_is_replaced(identity: Identity, setting: int) -> None:
    """Also where the time to send is over before a timeout would be, as it is by default. PINGs are answered."""

    def script(peer: H2Peer) -> None:
        for stream in every(peer):
            peer.send(peer.answer(stream) + settings((setting, 0)))

    with HostileServer(identity.certificates, script, serve_http2_well, H2Peer) as server:
        provider = make_provider(identity, server.url, timeout_us=1_000_000)
        assert (await provider.send(dispatch(job_id="first"))).outcome is Outcome.DELIVERED
        late = await asyncio.gather(*(provider.send(dispatch(job_id=f"late-{n}", within_s=0.6)) for n in range(3)))
        assert {(answer.outcome, answer.reason) for answer in late} == {(Outcome.UNSENT, "TooLate")}
        server.healed.set()  # for new connections alone
        assert (await provider.send(dispatch(job_id="next"))).outcome is Outcome.DELIVERED
        assert server.connections == 2
        await provider.close()


@pytest.mark.parametrize("what", ROWS, ids=[row.name for row in ROWS])
def test_a_hostile_server_stops_nobody(what: Row, identity: Identity) -> None:
    """Each send has one answer that is true, nothing is lost, and soon after the server heals all goes again."""
    play(what, identity)
