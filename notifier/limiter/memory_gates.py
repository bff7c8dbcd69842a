"""Who waits, and when to look again: the lines and gates of `MemoryLines`, the twins of `_lineup` and `_gates`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from notifier.clock_rules import ByClock
from notifier.limiter.memory_ranked import Ranked
from notifier.policies import Rules
from notifier.zones import zone_or

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from notifier.limiter.memory import MemoryLimiter
    from notifier.limiter.memory_jobs import Entry
    from notifier.policies import Policies
    from notifier.policy import Category, Digest

EVERY: Final = 8
ELSEWHERE: Final = 99  # the rank of a lane that the caller does not serve


@dataclass(slots=True)
class Line:
    """A user's waiting notifications of one category.

    at_us: when its head may go, as of `Gates.time`. Of the head, as of one look: least_us, when its devices may be sent
    to; parked, what it waits for without a gate; unread, that nobody has said whom it is for.
    """

    category: Category
    lane: str
    ids: Ranked = field(default_factory=Ranked)
    at_us: int = 0
    least_us: int = 0
    parked: tuple[str, ...] = ()
    unread: bool = False

    def anew(self) -> None:
        """Forget what was found of the head."""
        self.least_us, self.parked, self.unread = 0, (), False


@dataclass(slots=True)
class _User:
    lines: dict[str, Line] = field(default_factory=dict)
    turn: int = 0


class Gates:
    """The lines of all users and their gates, one for each lane in which a user has something waiting.

    Not safe for threads: who calls holds the limiter's lock.
    """

    def __init__(self, policies: Policies, limiter: MemoryLimiter, entry_of: Callable[[str], Entry]) -> None:
        """entry_of: the job of an id."""
        self.policies = policies
        self._limiter = limiter
        self._entry_of = entry_of
        self._users: dict[str, _User] = {}
        self._gates: dict[str, Ranked] = {}

    def of_lane(self, lane: str) -> Ranked:
        """The gates of a lane: user -> µs."""
        gates = self._gates.get(lane)
        if gates is None:
            gates = self._gates[lane] = Ranked()
        return gates

    def line_up(self, entry: Entry, order: int, rank: Mapping[str, int]) -> str:
        """Put a job into its line, which travels in the more urgent of its own lane and the job's.

        Returns the lane in which the line is new, or '' where it stood: who calls sets the gate of a new one.
        """
        lane = entry.job.lane
        waiting = self._users.get(entry.user)
        if waiting is None:
            waiting = self._users[entry.user] = _User()
        line = waiting.lines.get(entry.category)
        if line is None:
            line = waiting.lines[entry.category] = Line(self._category(entry.category), lane)
        elif rank.get(line.lane, ELSEWHERE) > rank.get(lane, ELSEWHERE):
            left, line.lane = line.lane, lane
            if all(other.lane != left for other in waiting.lines.values()):
                self.of_lane(left).discard(entry.user)  # who looks at the user sets all the gates again
        else:
            lane = ""
        line.ids.put(entry.job.id, order)
        return lane

    def expires(self, entry: Entry, at_us: int) -> None:
        """A job that has become the head of its line expires then: the gate does not know of it."""
        if self.is_head(entry.user, entry.category, entry.job.id):
            self.of_lane(self.lane_of(entry.user, entry.category)).lower(entry.user, at_us)

    def take_out(self, user: str, category: str, job_id: str, look_us: int | None) -> None:
        """Take a job out of its line. The line stands, and the gates too, until the user is looked at.

        look_us: when the user is looked at if it was the head: who stands behind may go before it.
        """
        was_head = self.is_head(user, category, job_id)
        line = self._users[user].lines[category]
        line.ids.discard(job_id)
        if look_us is not None and was_head:
            self.of_lane(line.lane).lower(user, look_us)

    def is_head(self, user: str, category: str, job_id: str) -> bool:
        """Whether the job is the next of its line."""
        head = self._users[user].lines[category].ids.first()
        return head is not None and head[1] == job_id

    def stands_in(self, user: str, lane: str) -> bool:
        """Whether a line of the user's travels in the lane."""
        return user in self._users and any(line.lane == lane for line in self._users[user].lines.values())

    def lane_of(self, user: str, category: str) -> str:
        """The lane in which the user's line travels."""
        return self._users[user].lines[category].lane

    def take_head(self, user: str, line: Line) -> str:
        """Take out the head of a line that is not empty, and the line when it was the last; returns its id."""
        _, job_id = line.ids.pop()
        line.anew()
        if not line.ids:
            del self._users[user].lines[line.category.name]
        return job_id

    def ordered(self, user: str, rank: Mapping[str, int]) -> tuple[list[Line], bool]:
        """The user's lines, the most urgent lane first, then the older head; and whether they are in several lanes.

        Every eighth turn of a user in several lanes goes the other way round: the lower lanes do not starve.
        """
        waiting = self._users.get(user)
        if waiting is None:
            return [], False
        lines = list(waiting.lines.values())
        for line in lines:
            if not line.ids:
                del waiting.lines[line.category.name]
        lines = [line for line in lines if line.ids]
        for line in lines:
            line.anew()
        if len(lines) == 1:
            return lines, False
        several = any(line.lane != lines[0].lane for line in lines)
        sign = -1 if several and waiting.turn % EVERY == EVERY - 1 else 1
        lines.sort(key=lambda line: (rank.get(line.lane, ELSEWHERE) * sign, line.ids.first()))
        return lines, several

    def turn(self, user: str) -> None:
        """Count a send of a user in several lanes."""
        self._users[user].turn += 1

    def time(self, user: str, lines: Iterable[Line], now: int) -> None:
        """Find for each of a user's lines the first µs at which the rules admit its head."""
        for line in lines:
            category = line.category = self._category(line.category.name)
            if category.bypass:
                line.at_us = 0
            else:
                of_user, _ = self._limiter.next_for(user, None, self.policies.for_user(user), category.cost)
                of_category, _ = self._limiter.next_for(user, category.name, category.policy, category.cost)
                line.at_us = max(of_user, of_category)
            line.at_us = max(line.at_us, line.least_us)
            if self.policies.goes_by_clock and not category.bypass:
                line.at_us = self._by_the_clock(user, line, now)
            if category.digest is not None:
                line.at_us = self._gathered(line, category.digest, now)

    def is_to_drop(self, line: Line) -> bool:
        """Whether the head is dropped where the rules hold it back."""
        head = line.ids.first()
        return line.category.when_blocked == "drop" and head is not None and self._entry_of(head[1]).untried

    def _gathered(self, line: Line, digest: Digest, now: int) -> int:
        head = line.ids.first()
        assert head is not None
        entry = self._entry_of(head[1])
        if entry.collapse_id is None:
            return line.at_us
        if entry.gather_us is None and line.at_us > now:
            entry.gather_us = now + digest.within_us
        return max(line.at_us, entry.gather_us or 0)

    def _by_the_clock(self, user: str, line: Line, now: int) -> int:
        rules, head = Rules(self.policies.for_user(user), line.category), line.ids.first()
        assert head is not None
        if not rules.goes_by_clock:
            return line.at_us
        entry = self._entry_of(head[1])
        latest = self._limiter.latest
        by_clock = ByClock(
            rules,
            zone_or(entry.zone, self.policies.zone, now),
            entry.since_us,
            self.policies.lead_us,
            lambda n: latest(user, None, n),
            lambda n: latest(user, line.category.name, n),
        )
        return by_clock.first_open(max(line.at_us, now))[0]

    def record(self, user: str, line: Line, permit: str, at_us: int, now: int) -> None:
        """Record a send from a line, at `at_us`, against the user's rules and the category's."""
        category = line.category
        self._limiter.record(user, None, self.policies.for_user(user), permit, at_us, now, category.cost)
        self._limiter.record(user, category.name, category.policy, permit, at_us, now, category.cost)

    def looked(self, user: str, lines: Iterable[Line], now: int, lanes: Iterable[str]) -> None:
        """Set the gates of these lines, which are all of the user's, and leave none in the other `lanes`."""
        lines = list(lines)
        with_gate = self._set(user, lines, now)
        for lane in lanes:
            if lane not in with_gate:
                self.of_lane(lane).discard(user)
        if not lines:
            self._users.pop(user, None)

    def settled(self, user: str, now: int) -> None:
        """Set the gates of a user's lines again, because the user's sends have changed."""
        if user not in self._users:
            return
        lines = [line for line in self._users[user].lines.values() if line.ids]
        for line in lines:
            line.anew()
        self.time(user, lines, now)
        for line in lines:
            if line.at_us > now and self.is_to_drop(line):
                line.at_us = now
        self._set(user, lines, now)

    def look_again(self, user: str, now: int) -> list[str]:
        """Make all the gates of a user due; returns the categories of the lines."""
        lines = self._users[user].lines if user in self._users else {}
        for line in lines.values():
            self.of_lane(line.lane).lower(user, now)
        return list(lines)

    def open_all(self, now: int) -> None:
        """Make all gates due, because the rules have changed and the wait may be over."""
        for gates in self._gates.values():
            gates.lower_all(now)

    def _set(self, user: str, lines: Iterable[Line], now: int) -> set[str]:
        at_of: dict[str, int] = {}
        for line in lines:
            at = max(line.at_us, now)
            deadline = self.deadline(line) if at > now or line.parked else None
            if line.parked and deadline is None:
                continue
            if deadline is not None:
                at = max(now, deadline if line.parked else min(at, deadline))
            at_of[line.lane] = min(at, at_of.get(line.lane, at))
        for lane, at in at_of.items():
            self.of_lane(lane).put(user, at)
        return set(at_of)

    def deadline(self, line: Line) -> int | None:
        """When the head of a line expires, in µs; None is never."""
        head = line.ids.first()
        return None if head is None else self._entry_of(head[1]).deadline_us

    def _category(self, name: str) -> Category:
        known = self.policies.categories.get(name)
        return known if known is not None else self.policies.category(name)


class Due:
    """The users whom one *pull* names, by lane; their gates stand one lease ahead until *admit* sets them."""

    def __init__(self, gates: Gates, lanes: Sequence[str], until_us: int) -> None:
        self._gates = gates
        self.until_us = until_us
        self._since: dict[str, int] = {}
        self._fresh: dict[str, list[str]] = {lane: [] for lane in lanes}
        self._due: dict[str, list[str]] = {lane: [] for lane in lanes}

    def name(self, user: str, lane: str, now: int, *, waited: bool = False) -> None:
        """Name a user who has just come, or who was let go of, once."""
        self._name(user, lane, self._due if waited else self._fresh, now)

    def _name(self, user: str, lane: str, among: dict[str, list[str]], at_us: int) -> None:
        self._gates.of_lane(lane).put(user, self.until_us)
        if user not in self._since:
            self._since[user] = at_us
            among[lane].append(user)

    def name_due(self, now: int, most: int) -> None:
        """Name those whose gates are due, as far as there is room for them beside those named so far."""
        due = [self._gates.of_lane(lane).upto(now, most) for lane in self._due]
        room = max(most - len(self._since), -(-most // 2))
        for lane, users, n in zip(self._due, due, shares([len(users) for users in due], room), strict=True):
            for user in users[:n]:
                self._name(user, lane, self._due, self._gates.of_lane(lane).score(user))

    def users(self, most: int) -> list[tuple[str, str, int]]:
        """(user, lane, since when) of all who were named: a tenth of `most` of each lane, then the rest.

        The urgent lanes first; in each lane those who wait stand before those who come.
        """
        tenth = max(1, most // 10)
        lanes = {lane: [*self._due[lane], *self._fresh[lane]] for lane in self._due}
        front = [(user, lane, self._since[user]) for lane, users in lanes.items() for user in users[:tenth]]
        return front + [(user, lane, self._since[user]) for lane, users in lanes.items() for user in users[tenth:]]


def shares(waiting: Sequence[int], most: int) -> list[int]:
    """How many of `most` each lane gets: the urgent before the others, none less than a tenth while it has any."""
    floor = max(1, most // 10)
    share = [min(n, floor) for n in waiting]
    left = most - sum(share)
    for i, n in enumerate(waiting):
        more = max(0, min(n - share[i], left))
        share[i] += more
        left -= more
    return share


def take_arrived(queues: Sequence[deque[str]], most: int) -> list[str]:
    """Take `most` out of the lanes' queues, by their `shares`."""
    numbers = shares([len(queue) for queue in queues], most)
    return [queue.popleft() for queue, n in zip(queues, numbers, strict=True) for _ in range(n)]
