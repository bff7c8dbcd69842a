"""APNs against servers that break HTTP/2: each row is one behaviour, and after each the same must hold."""

import asyncio
import struct
import time
from collections.abc import Callable

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
    every,
    play,
)
from tests.hostile.servers import (
    ACK,
    ALTSVC,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    GOAWAY,
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
row = ROWS.row

# What stands in an answer.


def status(text: bytes) -> Callable[[H2Peer], None]:
    def script(peer: H2Peer) -> None:
        for stream in every(peer):
            peer.send(peer.answer(stream, text))

    return script


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
ROWS += [Row(status(text), UNKNOWN, name=name) for name, text in ODD_STATUSES.items()]


@row(UNKNOWN)
def no_status_at_all(peer: H2Peer) -> None:
    for stream in every(peer):
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, block((b"x", b"y"))))


@row(UNKNOWN | BROKEN)
def a_length_of_5000_digits(peer: H2Peer) -> None:
    for stream in every(peer):
        headers = block((b":status", b"200"), (b"content-length", b"9" * 5000))
        peer.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, headers))


@row(DELIVERED, SHORT_S)
def a_200_without_an_end(peer: H2Peer) -> None:
    for stream in every(peer):
        peer.send(peer.answer(stream, flags=END_HEADERS))


@row(REJECTED, SHORT_S)
def a_400_without_an_end(peer: H2Peer) -> None:
    for stream in every(peer):
        peer.send(peer.answer(stream, b"400", flags=END_HEADERS) + frame(DATA, 0, stream, b'{"reason":'))


@row(DELIVERED)
def a_200_that_is_then_reset(peer: H2Peer) -> None:
    for stream in every(peer):
        peer.send(peer.answer(stream, flags=END_HEADERS) + frame(RST, 0, stream, struct.pack(">L", 2)))


@row(DELIVERED)
def answers_and_then_a_bad_frame(peer: H2Peer) -> None:
    answers = b"".join(peer.answer(stream) for stream in all_at_once(peer))
    peer.send(answers + frame(SETTINGS, 0, 1, b"bad"))
    peer.wait()


@row(DELIVERED)
def answers_and_then_garbage(peer: H2Peer) -> None:
    peer.send(b"".join(peer.answer(stream) for stream in all_at_once(peer)) + b"\xff" * 4000)
    peer.wait()


@row(DELIVERED)
def answers_and_then_the_end(peer: H2Peer) -> None:
    peer.send(b"".join(peer.answer(stream) for stream in all_at_once(peer)))
    peer.sock.unwrap()


@row(DELIVERED)
def answers_behind_a_goaway(peer: H2Peer) -> None:
    streams = all_at_once(peer)
    goaway = frame(GOAWAY, 0, 0, struct.pack(">LL", streams[-1], 0))
    peer.send(goaway + b"".join(peer.answer(stream) for stream in streams))
    peer.wait()


@row(DELIVERED | BROKEN)
def an_answer_given_twice(peer: H2Peer) -> None:
    for stream in every(peer):
        peer.send(peer.answer(stream) * 2)


@row(DELIVERED | BROKEN)
def trailers_without_an_end(peer: H2Peer) -> None:
    for stream in every(peer):
        peer.send(peer.answer(stream, flags=END_HEADERS) + frame(HEADERS, END_HEADERS, stream, block((b"a", b"b"))))


@row(DELIVERED | BROKEN)
def a_body_longer_than_it_says(peer: H2Peer) -> None:
    for stream in every(peer):
        peer.server.answered[peer._ids[stream]].append(200)
        headers = block((b":status", b"200"), (b"content-length", b"1"))
        peer.send(frame(HEADERS, END_HEADERS, stream, headers) + frame(DATA, END_STREAM, stream, b"xyz"))


@row(BROKEN)
def a_pad_longer_than_its_frame(peer: H2Peer) -> None:
    peer.begin()
    peer.send(frame(DATA, PADDED, peer.first(), b"\xff"))
    peer.wait()


@row(BROKEN, SHORT_S)
def an_answer_to_a_stream_of_the_servers(peer: H2Peer) -> None:
    peer.begin()
    peer.first()
    peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 2, block((b":status", b"200"))))
    peer.wait()


@row(BROKEN)
def an_answer_to_a_stream_that_was_never_opened(peer: H2Peer) -> None:
    peer.begin()
    peer.first()
    peer.send(frame(HEADERS, END_HEADERS | END_STREAM, 99_999, block((b":status", b"200"))))
    peer.wait()


@row(BROKEN)
def a_body_without_headers(peer: H2Peer) -> None:
    peer.begin()
    peer.send(frame(DATA, END_STREAM, peer.first(), b"200"))
    peer.wait()


@row(DELIVERED)
def a_body_without_end(peer: H2Peer) -> None:
    peer.begin()
    requests = peer.requests()
    peer.send(b"".join(peer.answer(next(requests), flags=END_HEADERS) for _ in range(MESSAGES)))
    for stream in range(1, 2 * MESSAGES, 2):
        peer.send(frame(DATA, 0, stream, b"x" * 16_384) * 3)
    peer.wait()


# What the server says without being asked.


def floods(unit: Callable[[int], bytes]) -> Callable[[H2Peer], None]:
    """Take a request, and flood in place of an answer. unit: by the request's stream."""

    def script(peer: H2Peer) -> None:
        peer.begin()
        peer.flood(unit(peer.first()))

    return script


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
    "goaways": lambda _: frame(GOAWAY, 0, 0, struct.pack(">LL", 2**31 - 1, 0)),
    "goaways with a text": lambda _: frame(GOAWAY, 0, 0, struct.pack(">LL", 2**31 - 1, 0) + b"x" * 8000),
    "priorities": lambda stream: frame(PRIORITY, 0, stream, struct.pack(">LB", 0, 16)),
    "frames that nobody knows": lambda _: frame(0x77, 0, 0, b"what"),
    "alternative services": lambda _: frame(ALTSVC, 0, 0, b'\x00\x01ah2=":1"'),
    "windows in small change": lambda _: frame(WINDOW, 0, 0, struct.pack(">L", 1)),
    "hints": lambda stream: frame(HEADERS, END_HEADERS, stream, HINTS),
    "resets of closed streams": lambda stream: frame(RST, 0, stream, struct.pack(">L", 8)),
}  # fmt: skip
ROWS += [Row(floods(unit), BROKEN, flood=True, name=f"a flood of {name}") for name, unit in EXTRAS.items()]


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


@row(BROKEN, flood=True)
def a_flood_that_is_not_read_from(peer: H2Peer) -> None:
    peer.begin()
    peer.first()
    peer.flood(frame(PING, 0, 0, b"hostile!"), times=50)


@row(BROKEN, flood=True)
def a_flood_of_promises(peer: H2Peer) -> None:
    peer.begin()
    stream = peer.first()
    request = block((b":method", b"GET"), (b":scheme", b"https"), (b":authority", b"a"), (b":path", b"/"))
    peer.flood(frame(PUSH, END_HEADERS, stream, struct.pack(">L", 2) + request))


@row(BROKEN, flood=True)
def a_header_block_without_end(peer: H2Peer) -> None:
    peer.begin()
    stream = peer.first()
    peer.send(frame(HEADERS, 0, stream, HINTS))
    peer.flood(frame(CONTINUATION, 0, stream, b"\x00\x01a\x01b" * 1000), times=10)


@row(BROKEN)
def a_continuation_of_nothing(peer: H2Peer) -> None:
    peer.begin()
    peer.send(frame(CONTINUATION, END_HEADERS, peer.first(), HINTS))
    peer.wait()


@row(BROKEN)
def headers_that_unpack_to_50_megabytes(peer: H2Peer) -> None:
    peer.begin()
    peer.send(frame(HEADERS, END_HEADERS, peer.first(), hpack_bomb()))
    peer.wait()


@row(BROKEN)
def a_frame_longer_than_allowed(peer: H2Peer) -> None:
    peer.begin()
    peer.send(frame(DATA, 0, peer.first(), b"x" * 2**20))
    peer.wait()


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
def a_window_beyond_its_bound(peer: H2Peer) -> None:
    peer.begin()
    peer.first()
    peer.send(frame(WINDOW, 0, 0, struct.pack(">L", 2**31 - 1)) * 2)
    peer.wait()


@row(UNKNOWN | UNSENT)
def a_streams_window_beyond_its_bound(peer: H2Peer) -> None:
    for stream in every(peer):
        peer.send(frame(WINDOW, 0, stream, struct.pack(">L", 2**31 - 1)) * 2)


@row(UNSENT | UNKNOWN, SHORT_S)
def no_window_ever(peer: H2Peer) -> None:
    for _ in every(peer, (INITIAL_WINDOW, 0)):
        pass


@row(UNSENT | UNKNOWN, SHORT_S)
def no_stream_ever(peer: H2Peer) -> None:
    for _ in every(peer, (MAX_STREAMS, 0)):
        pass


@row(BROKEN)
def every_stream_reset(peer: H2Peer) -> None:
    for stream in every(peer):
        peer.send(frame(RST, 0, stream, struct.pack(">L", 2)))


@row(UNSENT)
def every_stream_refused(peer: H2Peer) -> None:
    for stream in every(peer):
        peer.send(frame(RST, 0, stream, struct.pack(">L", 7)))


@row(BROKEN)
def a_goaway_for_each_connection(peer: H2Peer) -> None:
    peer.begin()
    peer.first()
    peer.send(frame(GOAWAY, 0, 0, struct.pack(">LL", 0, 0)))
    peer.wait()


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


@row(BROKEN, SHORT_S)
def silence(peer: H2Peer) -> None:
    for _ in every(peer):
        pass


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
