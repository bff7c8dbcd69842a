"""Replay one user's notifications under some rules, in simulated time, without Redis.

The replay goes by the rules of *pull*; a test compares it with the scripts. It takes one user at a time, because no
user waits for another as long as there are enough workers. It assumes that each send takes the same time from its
permit to its settlement. It leaves out retries, circuits, and the providers' limits of devices and projects.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import Final, Self

from notifier.forecast.trace import Event
from notifier.rules.category import LANES
from notifier.rules.evaluator import Sends, opens
from notifier.rules.policies import Policies, Rules
from notifier.rules.preferences import Mute
from notifier.rules.quiet_hours import ByClock, Decider, said
from notifier.rules.zones import zone_or

EXPIRED: Final = -1
SUPERSEDED: Final = -2
DROPPED: Final = -3
NEVER: Final = 2**63
HIGH: Final = 2**50  # as in `arrivals.lua`: the order of a high priority is below that of every normal arrival
MAX_HEADS: Final = 25  # as in `visit.lua`: jobs of one user in one visit
EVERY: Final = 8  # as in `wake_ups.lua`: once in eight turns the lower lanes come first


@dataclass(frozen=True, slots=True)
class Before:
    """The state from which a replay continues, as Redis has it; times in µs since the epoch.

    now_us: when the replay begins. All events were accepted before, are in their backlogs in this order, and collapse
    no more. sends: the recorded sends of the user, under None, and of each category. turn: see `EVERY`.
    gathers_us: by event, until when its digest gathers; 0 if it gathers none. lanes: the lane of each backlog, which
    stays when its category moves to another lane.
    """

    now_us: int
    sends: Mapping[str | None, Sends] = field(default_factory=dict)
    turn: int = 0
    gathers_us: Mapping[int, int] = field(default_factory=dict)
    lanes: Mapping[str, str] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Backlog:
    """The user's backlog of one category. places: a heap of the places of the waiting events.

    newest: the place of the event that waits under each collapse id, which is '' for all events of a digest; None if
    nothing collapses. count: how many notifications the waiting event of a digest stands for.
    """

    rules: Rules
    rank: int
    sends: Sends
    newest: dict[str, int] | None
    places: list[int] = field(default_factory=list)
    count: int = 0


class Replay:
    """One user under `policies`, whose mutes hold from the beginning on.

    latency_us: from a permit to its settlement, where windows and gaps begin; shorter than a lease.
    sent: for each event, when it went (µs), or EXPIRED, SUPERSEDED or DROPPED.
    superseded: for the index of each superseded event, when that was, and the index of the event that replaced it.
    ended: all indices, in the order in which the events ended.
    stands_for: how many notifications an event stands for that replaced others.
    decided: for each event, if `explained`, the rule that held it last; '' if no rule held it until its turn.
    turns: the turn after each visit, by the time of the visit (µs); see `EVERY`.
    gives_up: whether events under a mute without end are dropped; else they wait. from_us: no event goes earlier.
    """

    gives_up = True
    from_us = 0

    def __init__(
        self,
        policies: Policies,
        user: str,
        events: Sequence[Event],
        latency_us: int = 0,
        *,
        begins_us: int = 0,
        explained: bool = False,
        before: Before | None = None,
        failed: Container[int] = (),
    ) -> None:
        """events: in the order of their times. begins_us: when their time is 0, in µs since the epoch.

        before: the state to continue from. failed: the indices of events that reach nobody: their permits are refunded.
        """
        self.sent = [EXPIRED] * len(events)
        self.superseded: dict[int, tuple[int, int]] = {}
        self.ended: list[int] = []
        self.stands_for: dict[int, int] = {}
        self.decided = [""] * len(events)
        self.turns: dict[int, int] = {}
        self._explained = explained
        self._policies = policies
        self._user = user
        self._failed = failed
        self._zone = policies.zone_of(user)
        self._events = [event._replace(at_us=event.at_us + begins_us) for event in events] if begins_us else events
        self._latency_us = latency_us
        self._begins_us = begins_us
        self._before = before or Before(0)
        self._turn = self._before.turn
        self._sends = self._before.sends.get(None, Sends())
        self._backlogs: dict[str, _Backlog] = {}
        self._waiting: list[_Backlog] = []  # backlogs that are not empty
        self._expires = [NEVER] * len(events)
        self._gathers = dict(self._before.gathers_us)
        self._stands = list(range(len(events)))  # by index: which event is in its place now

    def run(self) -> Self:
        """Replay all events."""
        events, arrived, now = self._events, 0, self._before.now_us
        while arrived < len(events) or self._waiting:
            due = self._next_look(now)
            if arrived < len(events) and events[arrived].at_us <= due:
                due = events[arrived].at_us
            now = max(now, due)
            while arrived < len(events) and events[arrived].at_us <= now:
                self._enter_backlog(arrived, events[arrived])
                arrived += 1
            self._look(now)
            self.turns[now] = self._turn
        if self._begins_us:
            self.sent = [at if at < 0 else at - self._begins_us for at in self.sent]
            self.superseded = {index: (at - self._begins_us, by) for index, (at, by) in self.superseded.items()}
        return self

    def _backlog(self, name: str) -> _Backlog:
        rules, before = self._policies.rules(self._user, name), self._before
        rank = LANES.index(before.lanes.get(name, rules.category.lane))
        # The events of `before` collapse no more.
        collapses = before.now_us == 0 and rules.category.when_blocked in {"collapse", "digest"}
        sends = before.sends.get(name, Sends())
        return _Backlog(rules, rank, sends, {} if collapses else None)

    def _enter_backlog(self, index: int, event: Event) -> None:
        if (backlog := self._backlogs.get(event.category)) is None:
            backlog = self._backlogs[event.category] = self._backlog(event.category)
        if not backlog.places:
            self._waiting.append(backlog)
        category = backlog.rules.category
        expires = category.expires_us if event.expires_in_us is None else event.expires_in_us
        if expires is not None:
            self._expires[index] = event.at_us + expires
        place = index - HIGH if event.high else index
        collapse_id = event.collapse_id if category.digest is None else ""
        if backlog.newest is None or collapse_id is None or not self._collapse(backlog, place, event, collapse_id):
            heappush(backlog.places, place)

    def _collapse(self, backlog: _Backlog, place: int, event: Event, collapse_id: str) -> bool:
        """Supersede the event that waits under the same collapse id. True if the new event takes its place."""
        assert backlog.newest is not None
        index, old = place % HIGH, backlog.newest.get(collapse_id)
        if old is not None and self._expires[self._stands[old % HIGH]] <= event.at_us:
            old = None  # it has expired, and a worker's sweep has ended it
        backlog.newest[collapse_id] = place if old is None else min(place, old)
        if old is None:
            backlog.count = 1
            return False
        backlog.count += 1
        superseded = self._stands[old % HIGH]
        if (digest := backlog.rules.category.digest) is not None and backlog.count >= digest.after:
            self._gathers[index] = 0
        elif superseded in self._gathers:
            self._gathers[index] = self._gathers[superseded]
        self.sent[superseded], self.superseded[superseded] = SUPERSEDED, (event.at_us, index)
        self.ended.append(superseded)
        self.stands_for[index] = self.stands_for.get(superseded, 1) + 1
        if old < place:
            self._stands[old % HIGH] = index
            return True
        backlog.places.remove(old)
        heapify(backlog.places)
        return False

    def _head(self, backlog: _Backlog) -> int:
        return self._stands[backlog.places[0] % HIGH]

    def _opens(self, backlog: _Backlog, now: int, mute: Mute | None) -> tuple[int, Decider | None]:
        """When the head of a backlog may go, and what decides that."""
        rules, clock = backlog.rules, None
        if self._policies.uses_local_time and rules.uses_local_time:
            event = self._events[self._head(backlog)]
            # A zone is valid for the years around one moment; under a mute that is its end, as nothing goes before.
            zone = zone_or(event.zone, self._zone, mute.until_us if mute else now)
            lead_us = self._policies.lead_us
            clock = ByClock(rules, zone, event.at_us, lead_us, self._sends.latest, backlog.sends.latest)
        gather_us = self._gathers.get(self._head(backlog), 0)
        at, by = opens(rules, self._sends, backlog.sends, now, mute=mute, clock=clock, gather_us=gather_us)
        return max(at, self.from_us), by

    def _muted(self, backlog: _Backlog, now: int) -> Mute | None:
        """The mute of the user that holds back the head of a backlog."""
        category = self._events[self._head(backlog)].category
        return self._policies.muted(self._user, category, now)

    def _drops(self, backlog: _Backlog, mute: Mute | None) -> bool:
        """Whether the head of a backlog is dropped if it may not go."""
        dropped = mute is not None and (mute.what == "drop" or (self.gives_up and mute.is_endless))
        return dropped or backlog.rules.category.when_blocked == "drop"

    def _next_look(self, now: int) -> int:
        at = NEVER
        for backlog in self._waiting:
            mute = self._muted(backlog, now)
            # A visit ends at MAX_HEADS: the next one follows at once, if heads are still to be dropped.
            admits = 0 if self._drops(backlog, mute) else self._opens(backlog, now, mute)[0]
            at = min(at, admits, self._expires[self._head(backlog)])
        return at

    def _look(self, now: int) -> None:
        """Take the heads that may go now, as one visit of `visit.lua` does."""
        backlogs, several = self._ordered()
        taken = i = 0
        while i < len(backlogs) and taken < MAX_HEADS:
            backlog = backlogs[i]
            index, mute = self._head(backlog), self._muted(backlog, now)
            expired = self._expires[index] <= now
            held = not expired and self._opens(backlog, now, mute)[0] > now
            if held and not self._drops(backlog, mute):
                self._gather(backlog, index, now)
                i += 1
                continue
            if self._explained:
                self.decided[index] = self._deciding(backlog, now, now if held else self._events[index].at_us)
            place = heappop(backlog.places)
            collapse_id = self._events[index].collapse_id or "" if backlog.rules.category.digest is None else ""
            if backlog.newest is not None and backlog.newest.get(collapse_id) == place:
                del backlog.newest[collapse_id]
            taken += 1
            self.ended.append(index)
            if not backlog.places:
                del backlogs[i]
                self._waiting.remove(backlog)
            if held:
                self.sent[index] = DROPPED
                if mute is not None and mute.what == "drop":  # as a worker does, even if a rule holds longer
                    self.decided[index] = said(("user", mute), "")
            if held or expired:
                continue
            self.sent[index] = now
            self._record(backlog, index, now)
            i = 0
            self._turn += several
            backlogs, several = self._ordered()
        if not self._waiting:
            self._turn = 0

    def _gather(self, backlog: _Backlog, index: int, now: int) -> None:
        """If the category has a digest, begin to gather others into its held head."""
        if (digest := backlog.rules.category.digest) is not None:
            self._gathers.setdefault(index, now + digest.within_us)

    def _record(self, backlog: _Backlog, index: int, now: int) -> None:
        if index in self._failed:
            return
        user, category, settled_us = backlog.rules.user, backlog.rules.category, now + self._latency_us
        self._sends.add(user, "", settled_us, now, cost=category.cost)
        backlog.sends.add(category.policy, "", settled_us, now, cost=category.cost)

    def _ordered(self) -> tuple[list[_Backlog], bool]:
        """As *sort_backlogs* of `select.lua`: urgent first, each eighth turn last; then the older head."""
        backlogs = list(self._waiting)
        if len(backlogs) < 2:  # noqa: PLR2004 - nothing to order
            return backlogs, False
        several = any(backlog.rank != backlogs[0].rank for backlog in backlogs)
        sign = -1 if several and self._turn % EVERY == EVERY - 1 else 1
        backlogs.sort(key=lambda backlog: (backlog.rank * sign, backlog.places[0]))
        return backlogs, several

    def _deciding(self, backlog: _Backlog, now: int, since_us: int) -> str:
        """Name the rule that held back the head of a backlog from `since_us` until now or longer; or ''."""
        at, by = self._opens(backlog, since_us, self._muted(backlog, min(since_us, now - 1)))
        if by is None or at < now or at == since_us:
            return ""
        event = self._events[self._head(backlog)]
        return said(by, backlog.rules.category.name, at, zone_or(event.zone, self._zone, at))
