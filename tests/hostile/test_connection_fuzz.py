"""The HTTP/2 connection against any bytes: whatever comes, every request that it took has its one result."""

import asyncio
import struct
from collections import OrderedDict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from notifier.providers.contract import Answer
from notifier.providers.transport.http2 import credit
from notifier.providers.transport.http2.connection import Connection
from notifier.providers.transport.http2.headers import literal, repeated
from notifier.providers.transport.http2.requests import Request
from notifier.providers.transport.http2.wire import Said
from tests.hostile.servers import (
    CONTINUATION,
    DATA,
    END_HEADERS,
    GOAWAY,
    HEADERS,
    MAX_STREAMS,
    PING,
    PUSH,
    RST,
    SETTINGS,
    WINDOW,
    block,
    frame,
)
from tests.hostile.servers import settings as settings_frame

REQUESTS = 6
BODY = b"x" * 30_000  # more than two of them exceed the connection's window
ENHANCE_YOUR_CALM = 11


class Socket:
    """A transport that keeps what is written, and knows whether it is read from."""

    def __init__(self) -> None:
        self.written = b""
        self.closing = False
        self.paused = False

    def get_extra_info(self, _: str) -> Any:
        return self

    def setsockopt(self, *_: Any) -> None:
        """A socket's."""

    def selected_alpn_protocol(self) -> str:
        return "h2"

    def is_closing(self) -> bool:
        return self.closing

    def write(self, data: bytes) -> None:
        self.written += data

    def close(self) -> None:
        self.closing = True

    abort = close

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


class Scene:
    """A connection with requests under way, in a loop whose complaints are kept."""

    def __init__(self) -> None:
        self.complaints: list[Any] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.complaints.append(context))
        until = loop.time() + 100
        self.waiting: OrderedDict[Request, None] = OrderedDict()
        self.requests = [
            Request([literal(b":path", b"/%d" % n), repeated(b":method", b"POST")], body, send_by=until, deadline=until)
            for n, body in enumerate([b"{}", BODY, b"{}", BODY, BODY, b"{}"])
        ]
        assert len(self.requests) == REQUESTS
        self.waiting.update(dict.fromkeys(self.requests))
        self.socket = Socket()
        self.retired = 0
        self.connection = Connection(self.waiting, timeout_s=5, on_retire=self._retire, said=Said())
        self.connection.connection_made(self.socket)  # type: ignore[arg-type]
        self.connection.data_received(settings_frame((MAX_STREAMS, 100)))

    async def hear(self, data: bytes, how: str) -> None:
        size = 7 if how == "bytewise" and len(data) < 3000 else max(len(data), 1)
        for at in range(0, len(data), size):
            self.connection.data_received(data[at : at + size])
        if how == "turn":
            await asyncio.sleep(0)

    def time_out(self, request: Request) -> None:
        if request.stream_id:
            self.connection.give_up(request, "Timeout")

    async def finish(self, end: str) -> None:
        if end == "closed":
            self.connection.close()
        elif end == "timeouts":
            for _ in range(2):  # also of what begins when others have ended
                for request in self.requests:
                    self.time_out(request)
                await asyncio.sleep(0)
        else:
            self.connection.connection_lost(OSError("cut") if end == "broken" else None)
            assert self.connection.ended.done()
        await asyncio.sleep(0)

    def _retire(self, _: Connection) -> None:
        self.retired += 1


STREAMS = st.sampled_from([0, 1, 3, 5, 7, 9, 11, 13, 2, 4, 99, 2**31 - 1])
STATUSES = st.sampled_from([b"200", b"103", b"9" * 5000, b"abc", b"", b"\xff", b"-1", b"404", b"1"])
NAMES = st.sampled_from([b":status", b"content-length", b":path", b"x", b"", b"apns-id"])
FIELDS = st.lists(st.tuples(NAMES, STATUSES | st.binary(max_size=20)), max_size=4)
BLOCKS = st.builds(lambda status, more: block((b":status", status), *more), STATUSES, FIELDS)
FLAGS = st.sampled_from([0, 1, 4, 5, 8, 0xD, 0x25, 0xFF])
NUMBERS = st.integers(0, 2**32 - 1)
PAIRS = st.lists(st.tuples(st.integers(0, 8), st.sampled_from([0, 1, 100, 16_384, 2**31 - 1, 2**31])), max_size=3)
FRAMES = st.one_of(
    st.builds(lambda flags, stream, b: frame(HEADERS, flags, stream, b), FLAGS, STREAMS, BLOCKS),
    st.builds(lambda stream, b: frame(HEADERS, 5, stream, b), st.sampled_from([1, 3, 5, 7]), BLOCKS),
    st.builds(lambda flags, stream, b: frame(DATA, flags, stream, b), FLAGS, STREAMS, st.binary(max_size=200)),
    st.builds(lambda stream, code: frame(RST, 0, stream, struct.pack(">L", code)), STREAMS, st.integers(0, 20)),
    st.builds(lambda stream, code: frame(GOAWAY, 0, 0, struct.pack(">LL", stream, code)), STREAMS, NUMBERS),
    st.builds(lambda stream, by: frame(WINDOW, 0, stream, struct.pack(">L", by)), STREAMS, NUMBERS),
    st.builds(lambda pairs: settings_frame(*pairs), PAIRS),
    st.builds(lambda flags, stream, b: frame(CONTINUATION, flags, stream, b), FLAGS, STREAMS, BLOCKS),
    st.builds(lambda b: frame(PUSH, END_HEADERS, 1, struct.pack(">L", 2) + b), BLOCKS),
    st.builds(lambda flags: frame(PING, flags, 0, b"12345678"), FLAGS),
    st.builds(lambda times: frame(PING, 0, 0, b"12345678") * times, st.integers(200, 1500)),
    st.builds(frame, st.integers(0, 12), st.integers(0, 255), STREAMS, st.binary(max_size=40)),
    st.binary(max_size=40),
)
STEPS = st.lists(
    st.tuples(FRAMES, st.sampled_from(["whole", "bytewise", "turn"])) | st.integers(0, REQUESTS - 1), max_size=12
)


@settings(max_examples=300)
@given(steps=STEPS, end=st.sampled_from(["lost", "broken", "timeouts", "closed"]))
def test_every_request_has_its_result(steps: list[Any], end: str) -> None:
    """Frames right and wrong, in any order and in any pieces, timeouts in between, and any end."""

    async def run() -> None:
        scene = Scene()
        for step in steps:
            if isinstance(step, int):
                scene.time_out(scene.requests[step])
            else:
                await scene.hear(*step)
        await scene.finish(end)
        for request in scene.requests:
            assert request.result.done() or request in scene.waiting, "it waits for another connection, or has an end"
        assert scene.retired <= 1
        assert scene.complaints == []
        if not scene.connection.ended.done():
            scene.connection.connection_lost(None)

    asyncio.run(run())


def pings_answered(scene: Scene) -> int:
    return scene.socket.written.count(frame(PING, 1, 0, b"12345678"))


async def test_a_turn_has_an_end() -> None:
    """Of many frames that come at once some are handled, then the loop goes round; nothing is read meanwhile."""
    scene = Scene()
    scene.connection.data_received(frame(PING, 0, 0, b"12345678") * 600)
    turns = [pings_answered(scene)]
    assert scene.socket.paused
    while scene.socket.paused:
        await asyncio.sleep(0)
        turns.append(pings_answered(scene))
    assert turns[-1] == 600
    assert all(after - before <= credit.A_TURN + 1 for before, after in zip([0, *turns], turns, strict=False))
    scene.connection.connection_lost(None)


async def test_what_came_before_the_end_is_handed_on() -> None:
    """Answers that stand behind more frames than one turn handles count, though the connection ends meanwhile."""
    scene = Scene()
    answers = b"".join(frame(HEADERS, 5, stream, block((b":status", b"200"))) for stream in (1, 5))
    scene.connection.data_received(frame(PING, 0, 0, b"12345678") * 600 + answers)
    assert not scene.requests[0].result.done()
    scene.connection.connection_lost(OSError("cut"))
    results = [scene.requests[n].result.result() for n in (0, 2)]
    assert [getattr(result, "status", None) for result in results] == [200, 200]


async def test_a_flood_is_told_to_calm_down() -> None:
    """More frames than any answer needs: the server is told ENHANCE_YOUR_CALM, and what waits for it has an answer."""
    scene = Scene()
    for _ in range(20):
        scene.connection.data_received(frame(SETTINGS) * 1000)
        await asyncio.sleep(0)
    goaway = frame(GOAWAY, 0, 0, struct.pack(">LL", 0, ENHANCE_YOUR_CALM))
    assert scene.socket.written.endswith(goaway)
    assert scene.socket.written.count(frame(SETTINGS, 1)) < credit.SPARE
    scene.connection.connection_lost(None)
    taken = [request for request in scene.requests if request.stream_id]
    assert taken
    assert all(isinstance(request.result.result(), Answer) for request in taken)


async def test_pushes_are_declined() -> None:
    """The first thing that a server reads says that it may push nothing."""
    scene = Scene()
    assert struct.pack(">HL", 2, 0) in scene.socket.written[:80]
    scene.connection.connection_lost(None)
