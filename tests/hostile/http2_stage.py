"""The stage of the tables of HTTP/2: what a row is, and how it is played against the provider of APNs."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from notifier.providers.apns.provider import apns_id
from tests.contract.apns_rig import Identity, dispatch, make_provider
from tests.hostile.servers import H2Peer, HostileServer, serve_http2_well
from tests.hostile.suffering import MESSAGES, judge, suffer

LONG_S, SHORT_S = 20.0, 1.0
DELIVERED, UNKNOWN, UNSENT, REJECTED = {"delivered"}, {"unknown"}, {"unsent"}, {"rejected"}
BROKEN = UNKNOWN | UNSENT  # the connection went: what had left is unknown


@dataclass(frozen=True)
class Row:
    """script: what the server does. outcomes: all that a send may answer. timeout_s: the provider's.

    flood: the client hangs up on it, though it would never end.
    """

    script: Callable[[H2Peer], None]
    outcomes: set[str]
    timeout_s: float = LONG_S
    flood: bool = False
    name: str = ""


class Table(list[Row]):
    """Rows, to which a decorator adds the script under it."""

    def row(self, outcomes: set[str], timeout_s: float = LONG_S, *, flood: bool = False) -> Callable[..., None]:
        def add(script: Callable[[H2Peer], None]) -> None:
            self.append(Row(script, outcomes, timeout_s, flood, script.__name__))

        return add


def every(peer: H2Peer, *pairs: tuple[int, int]) -> Iterator[int]:
    peer.begin(*pairs)
    yield from peer.requests()


def all_at_once(peer: H2Peer) -> list[int]:
    """The streams of all messages, none answered."""
    requests = every(peer)
    return [next(requests) for _ in range(MESSAGES)]


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
