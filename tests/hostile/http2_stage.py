"""The stage of the tables of HTTP/2: what a row is, and how it is played against the provider of APNs."""

import asyncio
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from notifier.providers.apns.provider import apns_id
from tests.contract.apns_rig import Identity, dispatch, make_provider
from tests.hostile.servers import GOAWAY, H2Peer, HostileServer, frame, serve_http2_well
from tests.hostile.suffering import MESSAGES, judge, suffer

LONG_S, SHORT_S = 20.0, 1.0
DELIVERED, UNKNOWN, UNSENT, REJECTED = {"delivered"}, {"unknown"}, {"unsent"}, {"rejected"}
BROKEN = UNKNOWN | UNSENT  # the connection went: what had left is unknown
Script = Callable[[H2Peer], None]


@dataclass(frozen=True)
class Row:
    """script: what the server does. outcomes: all that a send may answer. timeout_s: the provider's.

    flood: the client hangs up on it, though it would never end.
    """

    script: Script
    outcomes: set[str]
    timeout_s: float = LONG_S
    flood: bool = False
    name: str = ""


class Table(list[Row]):
    """Rows, to which a decorator adds the script under it."""

    def add(
        self, name: str, outcomes: set[str], script: Script, timeout_s: float = LONG_S, *, flood: bool = False
    ) -> None:
        self.append(Row(script, outcomes, timeout_s, flood, name))

    def row(self, outcomes: set[str], timeout_s: float = LONG_S, *, flood: bool = False) -> Callable[[Script], None]:
        return lambda script: self.add(script.__name__, outcomes, script, timeout_s, flood=flood)


def every(peer: H2Peer, *pairs: tuple[int, int]) -> Iterator[int]:
    peer.begin(*pairs)
    yield from peer.requests()


def all_at_once(peer: H2Peer) -> list[int]:
    """The streams of all messages, none answered."""
    requests = every(peer)
    return [next(requests) for _ in range(MESSAGES)]


def in_order(peer: H2Peer, streams: list[int]) -> bytes:
    return b"".join(peer.answer(stream) for stream in streams)


def goaway(last: int, text: bytes = b"") -> bytes:
    return frame(GOAWAY, 0, 0, struct.pack(">LL", last, 0) + text)


def each(make: Callable[[H2Peer, int], bytes], *pairs: tuple[int, int]) -> Script:
    """Say this to every request. make: by its stream."""

    def script(peer: H2Peer) -> None:
        for stream in every(peer, *pairs):
            peer.send(make(peer, stream))

    return script


def once(make: Callable[[int], bytes]) -> Script:
    """Say this in place of the first answer, and nothing more."""

    def script(peer: H2Peer) -> None:
        peer.begin()
        peer.send(make(peer.first()))
        peer.wait()

    return script


def together(make: Callable[[H2Peer, list[int]], bytes]) -> Script:
    """Say this when all have asked, and nothing more. make: by their streams."""

    def script(peer: H2Peer) -> None:
        peer.send(make(peer, all_at_once(peer)))
        peer.wait()

    return script


def floods(unit: Callable[[int], bytes], first: Callable[[int], bytes] = lambda _: b"", times: int = 1) -> Script:
    """Take a request, and flood in place of an answer. unit: by the request's stream; first: what comes before."""

    def script(peer: H2Peer) -> None:
        peer.begin()
        stream = peer.first()
        peer.send(first(stream))
        peer.flood(unit(stream), times=times)

    return script


def play(what: Row, identity: Identity) -> None:
    async def run() -> None:
        with HostileServer(identity.certificates, what.script, serve_http2_well, H2Peer) as server:
            provider = make_provider(identity, server.url, timeout_us=round(what.timeout_s * 1e6))
            ask = dispatch().device.token

            def message(n: int):
                return dispatch(ask, job_id=f"job-{n}", within_s=30)

            story = await suffer(server, provider, message, flooded=what.flood)
            judge(story, server, lambda n: apns_id(f"job-{n}", ask))
            assert story.outcomes <= what.outcomes | (BROKEN if what.timeout_s == SHORT_S else set())
            assert server.hung_up.is_set() == what.flood

    asyncio.run(run())
