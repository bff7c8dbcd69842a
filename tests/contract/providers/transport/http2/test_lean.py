"""The short way through h2, held against h2's own: the same bytes out, the same events in, the same errors."""

import struct
from typing import Any

import h2.events
import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.exceptions import H2Error
from h2.settings import SettingCodes
from hpack import Encoder
from hypothesis import given
from hypothesis import strategies as st

from notifier.providers.transport.http2.headers import HeaderEncoder, literal, repeated
from notifier.providers.transport.http2.lean import MAX_HEADERS_BYTES, MAX_RESETS, SWEEP_EVERY, LeanH2

UNCHECKED = {
    "header_encoding": None,
    "validate_outbound_headers": False,
    "normalize_outbound_headers": False,
    "validate_inbound_headers": False,
    "normalize_inbound_headers": False,
}


class Plain(H2Connection):
    """h2's own way, under the names of the short one."""

    def __init__(self) -> None:
        super().__init__(H2Configuration(client_side=True, **UNCHECKED))
        self.local_settings = LeanH2().local_settings
        self.decoder.max_header_list_size = MAX_HEADERS_BYTES
        self.encoder = HeaderEncoder()

    def open_request(self, stream_id, headers) -> None:
        self.send_headers(stream_id, headers)

    def room(self, stream_id) -> int:
        return min(self.local_flow_control_window(stream_id), self.max_outbound_frame_size)

    def send_part(self, stream_id, part, *, last) -> None:
        self.send_data(stream_id, part, end_stream=last)


class Pair:
    """Both clients at one server, which hears what they say and answers both alike."""

    def __init__(self) -> None:
        self.lean, self.plain = LeanH2(), Plain()
        self.server = H2Connection(H2Configuration(client_side=False, **UNCHECKED))
        self.server.initiate_connection()
        for client in (self.lean, self.plain):
            client.initiate_connection()
        self.to_server()
        self.to_clients([])

    def to_server(self) -> list[Any]:
        said = self.lean.data_to_send()
        assert said == self.plain.data_to_send()
        return self.server.receive_data(said)

    def to_clients(self, cuts: list[int], raw: bytes = b"") -> list[Any]:
        """Hand what the server says, and `raw` after it, to both, cut into pieces; what both made of it."""
        data = self.server.data_to_send() + raw
        ends = [*sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
        events: list[Any] = []
        begin = 0
        for end in ends:
            heard = [hear(client, data[begin:end]) for client in (self.plain, self.lean)]
            assert shown(heard[0]) == shown(heard[1])
            reply = self.plain.data_to_send()
            assert self.lean.data_to_send() == reply
            events += heard[1]
            begin = end
            if not any(isinstance(event, H2Error) for event in events):
                self.server.receive_data(reply)
        return events

    def request(self, stream_id: int, body: bytes, extra: list[Any]) -> None:
        headers = [literal(b":path", b"/3/device/00"), repeated(b":method", b"POST"), *extra]
        for client in (self.lean, self.plain):
            client.open_request(stream_id, headers)
        room = self.plain.room(stream_id)
        assert self.lean.room(stream_id) == room
        if len(body) <= room:
            for client in (self.lean, self.plain):
                client.send_part(stream_id, body, last=True)
        assert self.lean.room(stream_id) == self.plain.room(stream_id)
        assert self.lean.outbound_flow_control_window == self.plain.outbound_flow_control_window
        assert self.lean.streams.keys() >= {stream_id}


def hear(client: H2Connection, data: bytes) -> list[Any]:
    try:
        return client.receive_data(data)
    except H2Error as error:
        return [error]


def shown(value: Any) -> Any:
    """A value as it can be compared: h2's events know no equality."""
    match value:
        case H2Error():
            return type(value), str(value)
        case list() | tuple():
            return [type(value), *map(shown, value)]
        case dict():
            return {key: shown(item) for key, item in value.items()}
    fields = getattr(value, "__dict__", None)
    return (type(value), shown(fields)) if fields else value


HEADER_TEXT = st.binary(max_size=200)
EXTRA = st.lists(st.builds(lambda name, value, kind: kind(b"x-" + name, value), HEADER_TEXT, HEADER_TEXT,
                           st.sampled_from([literal, repeated])), max_size=4)  # fmt: skip
ANSWERS = st.sampled_from(["bare", "bare", "body", "empty data", "early hints", "trailers", "reset", "nothing"])
CHANGES = st.fixed_dictionaries(
    {},
    optional={
        SettingCodes.INITIAL_WINDOW_SIZE: st.integers(0, 100_000),
        SettingCodes.MAX_FRAME_SIZE: st.integers(16_384, 40_000),
        SettingCodes.HEADER_TABLE_SIZE: st.integers(0, 8_192),
    },
)
CUTS = st.lists(st.integers(0, 10_000), max_size=4)


def answer(server: H2Connection, how: str, stream_id: int, extra: list[Any]) -> None:
    headers = [(b":status", b"200"), (b"apns-id", b"x"), *extra]
    match how:
        case "bare":
            server.send_headers(stream_id, headers, end_stream=True)
        case "body":
            server.send_headers(stream_id, headers)
            server.send_data(stream_id, b'{"reason":"Unregistered"}', end_stream=True)
        case "empty data":
            server.send_headers(stream_id, headers)
            server.send_data(stream_id, b"", end_stream=True)
        case "early hints":
            server.send_headers(stream_id, [(b":status", b"103")])
            server.send_headers(stream_id, headers, end_stream=True)
        case "trailers":
            server.send_headers(stream_id, headers)
            server.send_headers(stream_id, [(b"grpc-status", b"0")], end_stream=True)
        case "reset":
            server.reset_stream(stream_id, 8)
        case "nothing":
            pass


@given(
    rounds=st.lists(
        st.tuples(CHANGES, st.lists(st.tuples(st.binary(max_size=20_000), EXTRA, ANSWERS), max_size=6), CUTS),
        max_size=4,
    )
)
def test_requests_and_responses_are_those_of_h2(rounds):
    """Whatever is asked and answered, under whatever settings and however the network cuts it up: both ways alike."""
    pair = Pair()
    stream_id = 1
    for changes, exchanges, cuts in rounds:
        if changes:
            pair.server.update_settings(changes)
            pair.to_clients(cuts)
        asked = []
        for body, extra, how in exchanges:
            pair.request(stream_id, body, extra)
            asked.append((stream_id, extra, how))
            stream_id += 2
        pair.to_server()
        for asked_id, extra, how in asked:
            answer(pair.server, how, asked_id, extra)
        pair.to_clients(cuts)


def headers_frame(stream_id: int, block: bytes, flags: int = 0x5) -> bytes:
    return struct.pack(">HBBBL", len(block) >> 8, len(block) & 0xFF, 1, flags, stream_id) + block


def block(*headers: tuple[bytes, bytes]) -> bytes:
    return Encoder().encode(headers)


ODD_BLOCKS = [
    block((b":status", b"100")),
    block((b":status", b"200"), (b"content-length", b"many")),
    block((b":status", b"200"), (b"content-length", b"5")),
    block((b"x", b"no status")),
    b"",
    b"\x88" + b"x" * 16_384,
]


def odd_headers(stream_id: int, payload: bytes, flags: int, cuts: list[int]) -> None:
    pair = Pair()
    for asked in (1, 3, 5, 7):
        pair.request(asked, b"{}", [])
    pair.to_server()
    answer(pair.server, "bare", 1, [])
    answer(pair.server, "early hints", 3, [])
    pair.to_clients([])
    for client in (pair.lean, pair.plain):
        client.reset_stream(5, 8)
    pair.to_server()
    pair.to_clients(cuts, headers_frame(stream_id, payload, flags))


@pytest.mark.parametrize("stream_id", [0, 1, 2, 3, 5, 7, 99, 2**31 - 1, 2**31 + 7])
@pytest.mark.parametrize("flags", [0x5, 0x4, 0x1, 0x0, 0xD, 0x25, 0xFF])
def test_odd_headers_end_as_in_h2(stream_id, flags):
    """A header block that no server should send, or on a stream that is ended, reset or never was: the same error."""
    for payload in ODD_BLOCKS:
        odd_headers(stream_id, payload, flags, [])


@given(stream_id=st.sampled_from([3, 7]), payload=st.binary(max_size=60), cuts=CUTS)
def test_a_broken_header_block_ends_as_in_h2(stream_id, payload, cuts):
    """Bytes that are no header block: the same error, whatever stands in them."""
    odd_headers(stream_id, payload, 0x5, cuts)


@pytest.mark.parametrize("sizes", [(0, 0), (100, 0), (8_192, 100), (0, 4_096), (100, 200, 50, 100)])
def test_the_sizes_of_the_header_table_are_told_to_the_server(sizes):
    """A server that changes its header table's size several times takes what is asked after it."""
    pair = Pair()
    for size in sizes:
        pair.server.update_settings({SettingCodes.HEADER_TABLE_SIZE: size})
        pair.to_clients([])
    pair.request(1, b"{}", [])
    assert any(isinstance(event, h2.events.RequestReceived) for event in pair.to_server())


def test_headers_of_more_than_a_frame():
    """A header block past the frame size goes out in as many frames as it takes, as h2 would cut it."""
    pair = Pair()
    pair.request(1, b"{}", [literal(b"x", b"y" * 50_000)])
    (asked,) = [event for event in pair.to_server() if isinstance(event, h2.events.RequestReceived)]
    assert dict(asked.headers)[b"x"] == b"y" * 50_000


def test_ended_streams_are_dropped():
    """A connection that lives for days does not keep the streams that have ended."""
    pair = Pair()
    for stream_id in range(1, 2_001, 2):
        pair.request(stream_id, b"{}", [])
        pair.to_server()
        answer(pair.server, "bare", stream_id, [])
        (response, _) = pair.to_clients([])
        assert isinstance(response, h2.events.ResponseReceived)
        assert len(pair.lean.streams) <= 130
    assert not pair.lean._closed_streams, "what ended well is all that was neither reset nor is open"


def test_reset_streams_are_remembered_within_bounds():
    """A late answer to what was given up is no error, for as many as a client may give up within some timeouts."""
    client = LeanH2()
    client.initiate_connection()
    for stream_id in range(1, 2 * MAX_RESETS + 1_001, 2):
        client.open_request(stream_id, [])
        client.reset_stream(stream_id, 8)
        client.data_to_send()
    assert len(client._closed_streams) == MAX_RESETS
    reset = client._stream_is_closed_by_reset(stream_id - 2 * SWEEP_EVERY), client._stream_is_closed_by_reset(1)
    assert reset == (True, False)


@pytest.mark.parametrize("end", ["bare", "body", "reset", "given up"])
@pytest.mark.parametrize("late", ["headers", "data", "a long body", "reset", "window", "priority", "push"])
def test_a_frame_for_a_stream_that_is_forgotten_ends_as_in_h2(end, late):
    """Frames that come long after a stream has ended or was reset: the same events, answers and errors."""
    pair = Pair()
    for stream_id in range(1, 2 * SWEEP_EVERY + 20, 2):
        pair.request(stream_id, b"{}", [])
        pair.to_server()
        if end == "given up":
            for client in (pair.lean, pair.plain):
                client.reset_stream(stream_id, 8)
            pair.to_server()
        else:
            answer(pair.server, end, stream_id, [])
            pair.to_clients([])
    pair.plain.open_outbound_streams  # noqa: B018 - for its side effect: what is closed is dropped
    assert 1 not in pair.lean.streams
    frames = {
        "headers": headers_frame(1, block((b":status", b"200"))),
        "data": late_frame(0, 1, b"late"),
        "a long body": late_frame(0, 0, b"x" * 16_384) * 5,
        "reset": late_frame(3, 0, bytes((0, 0, 0, 8))),
        "window": late_frame(8, 0, bytes((0, 0, 0, 8))),
        "priority": late_frame(2, 0, bytes(5)),
        "push": late_frame(5, 4, bytes((0, 0, 0, 2)) + block((b":method", b"GET"))),
    }
    heard = [hear(client, frames[late]) for client in (pair.plain, pair.lean)]
    assert shown(heard[0]) == shown(heard[1])
    assert pair.lean.data_to_send() == pair.plain.data_to_send()


def late_frame(kind: int, flags: int, payload: bytes) -> bytes:
    return struct.pack(">HBBBL", len(payload) >> 8, len(payload) & 0xFF, kind, flags, 1) + payload
