"""What is held, in this process alone: circuits and full projects, the twin of `_routes.lua` and *circuit*."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from notifier.limiter.memory_ranked import Ranked

if TYPE_CHECKING:
    from collections.abc import Iterator

    from notifier.limiter.routes import Change, Seen

FAR_US: Final = 4_102_444_800_000_000  # the time of a rest that waits for a route alone
CLAIM_US: Final = 250_000
OTHERS_US: Final = 200_000
RECENT_US: Final = 5_000_000
DOUBTED_US: Final = 600_000_000


@dataclass(slots=True)
class Hold:
    """One thing that is held, and who is parked there: 'u<lane> <user>' or 'j<job id>', since when in µs."""

    state: Literal["open", "closing", "full"]
    until_us: int
    room: int = 0
    others_us: int = 0
    interval_us: int = 0
    probe: bool = False
    prober: str = ""
    failing: set[str] = field(default_factory=set)

    def probe_at(self, worker: str) -> int:
        """When this worker may let the next probe go, or a full project has room.

        Here workers are names: that the last prober lets the others go first takes a fleet.
        """
        if self.state == "full" or worker in self.failing:
            return self.until_us
        return self.others_us

    def again(self, at_us: int, *, probe: bool) -> None:
        """The next probe is at this time; probe: one may go before."""
        self.probe, self.until_us, self.others_us = probe, at_us, at_us


class Routes:
    """All that is held. Not safe for threads: who calls holds the limiter's lock."""

    def __init__(self) -> None:
        self.holds: dict[str, Hold] = {}
        self._parked: dict[str, Ranked] = {}
        self._reached: dict[str, dict[str, int]] = {}
        self._doubted: dict[str, dict[str, int]] = {}

    def parked(self, name: str) -> Ranked:
        """Who is parked there, by when they came."""
        return self._parked.setdefault(name, Ranked())

    def park(self, name: str, member: str, now: int) -> None:
        """Park; who is parked there already keeps the place."""
        if member not in self.parked(name):
            self.parked(name).put(member, now)

    def fill(self, name: str, until_us: int, room: int) -> None:
        """A project is full until then, and has room for so many then."""
        self.holds[name] = Hold("full", until_us, room)

    def shut(self) -> frozenset[str]:
        """The routes whose circuit is open."""
        return frozenset(name for name, hold in self.holds.items() if hold.state == "open")

    def let_go(self, now: int, most: int, worker: str) -> Iterator[str]:
        """Those parked who may go now, who are parked no more; a probe is claimed with them."""
        for name in sorted(self.holds):
            hold, parked = self.holds[name], self.parked(name)
            n = self._how_many(hold, now, most, worker)
            if n and hold.state == "open":
                hold.again(now + CLAIM_US, probe=True)
            for _ in range(min(n, len(parked))):
                yield parked.pop()[1]
            if n and not parked and hold.state != "open":
                del self.holds[name]

    def _how_many(self, hold: Hold, now: int, most: int, worker: str) -> int:
        if hold.state == "closing":
            return most
        if hold.probe_at(worker) > now:
            return 0
        return min(most, hold.room) if hold.state == "full" else 1

    def nexts(self, now: int, worker: str) -> list[int]:
        """When there is something to let go."""
        return [
            now if hold.state == "closing" else hold.probe_at(worker)
            for name, hold in self.holds.items()
            if self.parked(name) or (hold.state == "open" and not hold.probe)
        ]

    def see(  # noqa: PLR0917 - what a worker tells
        self, now: int, worker: str, route: str, seen: Seen, first_us: int, most_us: int
    ) -> Change:
        """What a worker has seen of a route."""
        if seen == "up":
            return self.up(now, worker, route)
        if seen == "retry":
            return self.retry(now, route)
        return self.down(now, worker, route, first_us=first_us, most_us=most_us)

    def up(self, now: int, worker: str, route: str) -> Change:
        """A worker got through."""
        self._doubted.get(route, {}).pop(worker, None)
        self._reached.setdefault(route, {})[worker] = now
        hold = self.holds.get(route)
        if hold is None or hold.state != "open":
            return ""
        for other in hold.failing - {worker}:
            self._doubted.setdefault(route, {})[other] = now
        if self.parked(route):
            hold.state, hold.until_us = "closing", now
        else:
            del self.holds[route]
        return "closed"

    def down(self, now: int, worker: str, route: str, *, first_us: int, most_us: int) -> Change:
        """A worker did not get through."""
        reached = self._reached.setdefault(route, {})
        reached.pop(worker, None)
        hold = self.holds.get(route)
        if hold is not None and hold.state == "open":
            if hold.prober == worker:
                hold.interval_us = min(hold.interval_us * 3 // 2, most_us)
                hold.again(now + hold.interval_us, probe=hold.probe)
                hold.prober = ""
            hold.failing.add(worker)
            return ""
        doubted = self._doubted.get(route, {}).get(worker, 0) > now - DOUBTED_US
        if doubted and any(at > now - RECENT_US for other, at in reached.items() if other != worker):
            return "alone"
        at = now + first_us
        self.holds[route] = Hold("open", at, 0, min(at, now + OTHERS_US), first_us, failing={worker})
        return "opened"

    def retry(self, now: int, route: str) -> Change:
        """A worker began anew: the next may go as a probe."""
        hold = self.holds.get(route)
        if hold is not None and hold.state == "open":
            hold.again(now, probe=True)
        return ""
