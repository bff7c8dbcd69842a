"""One user's notifications under some rules, in simulated time: what the limiter would have answered, without it.

The same rules as *admit*'s, one user at a time, as no user waits for another where workers do not run short. A test
holds it equal to the scripts. Sends are as if each took the same time from its permit to its settlement, and all
reached somebody; what providers hold back (circuits, limits of devices and projects) and retries are left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Final

from notifier.limiter.memory_sends import Sends
from notifier.limiter.protocol import describe
from notifier.operations.preview.trace import Event
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import LANES, Category, Policy
from notifier.rules.preferences import FOREVER, Mute
from notifier.rules.quiet_hours import ByClock, Latest, said
from notifier.rules.zones import zone_or

MUTED: Final = "the user's mute"
EXPIRED: Final = -1
SUPERSEDED: Final = -2
DROPPED: Final = -3
NEVER: Final = 2**63
HIGH: Final = 2**50  # as in `enter_backlog.lua`: a high priority's order lies below every normal arrival's
MAX_HEADS: Final = 25  # as in `admit.lua`: of one user at one look
EVERY: Final = 8  # as in `admit.lua`: each so many turns the lower lanes come first
KEPT: Final = 4  # times the largest limit: so many sends are kept before the oldest are dropped


@dataclass(frozen=True, slots=True)
class Before:
    """What was before a replay that begins in the middle, as Redis has it; times in µs since the epoch.

    now_us: when it begins. All events have been accepted by then, stand in their backlogs in this order, and collapse
    no more. sends: what is on record of the user, under None, and of each category. turn: see `EVERY`.
    gathers_us: until when the digest of a category gathers. lanes: in which each of the backlogs stands; it stays there
    when its category moves to another lane.
    """

    now_us: int
    sends: Mapping[str | None, Sends] = field(default_factory=dict)
    turn: int = 0
    gathers_us: Mapping[str, int] = field(default_factory=dict)
    lanes: Mapping[str, str] = field(default_factory=dict)


class _Rules:
    """A policy and the sends that it judges.

    next_us: when it admits one more, by what that one costs; rule: which one decides that.
    """

    __slots__ = ("_gap_us", "_keep", "_sends", "_times", "_windows", "next_us", "policy", "rule")

    def __init__(self, policy: Policy, costs: Iterable[int], *, timed: bool, before: Sends | None = None) -> None:
        """costs: of what it is asked about. timed: whether a rule in force asks for the latest sends. before: them."""
        self.policy = policy
        self.next_us = dict.fromkeys(costs, 0)
        self.rule = dict.fromkeys(self.next_us, -1)
        self._gap_us = policy.gap_us
        self._windows = [(n, window.limit, window.interval_us) for n, window in enumerate(policy.windows, 1)]
        self._keep = max((window.limit for window in policy.windows), default=0)
        self._times: list[int] = []
        self._sends = None if policy.is_plain and not timed and list(self.next_us) == [1] else Sends()
        if before is not None:
            self._sends = before
            self._judge(before)

    def _judge(self, sends: Sends) -> None:
        for of in self.next_us:
            self.next_us[of], self.rule[of] = sends.next_for(self.policy, of)

    def record(self, at_us: int, now_us: int, cost: int) -> None:
        """Count a send of now that is settled at `at_us`, no earlier than those before it."""
        if self._sends is not None:
            if not self.policy.is_empty:
                self._sends.record(self.policy, "", at_us, now_us, cost)  # nobody takes it back
                self._judge(self._sends)
            return
        at, rule = (at_us + self._gap_us, 0) if self._gap_us else (0, -1)
        if self._windows:
            times = self._times
            times.append(at_us)
            if len(times) > KEPT * self._keep:
                del times[: -self._keep]
            for n, limit, interval_us in self._windows:
                if limit <= len(times) and times[-limit] + interval_us > at:
                    at, rule = times[-limit] + interval_us, n
        self.next_us[1], self.rule[1] = at, rule

    def latest(self, n: int) -> int | None:
        """See `Sends.latest`."""
        return None if self._sends is None else self._sends.latest(n)


class _Backlog:
    """A category of the user's, and what waits of it: places, the first at the front.

    newest: where the category collapses, the place of what waits under each collapse id; in one with a digest all have
    one. count: how many it stands for there. gather_us: until when it gathers, None where it has not been held back.
    """

    __slots__ = (
        "bypass",
        "category",
        "cost",
        "count",
        "drops",
        "expires_us",
        "gather_us",
        "name",
        "newest",
        "places",
        "rank",
        "rules",
    )

    def __init__(self, category: Category, rules: _Rules) -> None:
        self.category = category
        self.name = category.name
        self.rank = LANES.index(category.lane)
        self.bypass = category.bypass
        self.cost = category.cost
        self.expires_us = category.expires_us
        self.rules = rules
        self.places: list[int] = []
        self.newest: dict[str, int] | None = {} if category.when_blocked in {"collapse", "digest"} else None
        self.drops = category.when_blocked == "drop"
        self.count = 0
        self.gather_us: int | None = None

    def gather(self, now: int) -> None:
        """What is held back gathers others."""
        if self.category.digest is not None and self.gather_us is None:
            self.gather_us = now + self.category.digest.within_us


class Replay:
    """One user under `policies`.

    latency_us: from a permit to its settlement, from where windows and gaps are counted; shorter than a lease.
    sent: for each event the µs at which it went, EXPIRED, SUPERSEDED or DROPPED.
    superseded_us: when those were, by their index.
    decided: for each, if `explained`, the rule that held it last; '' for one that did not wait for its own turn.
    """

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
        mutes: bool = False,
    ) -> None:
        """events: in the order of their times. begins_us: when their time is 0, in µs since the epoch.

        before: where it begins in the middle. mutes: whether those of `policies` hold, from the beginning on.
        """
        self.sent = [EXPIRED] * len(events)
        self.superseded_us: dict[int, int] = {}
        self.decided = [""] * len(events)
        self._explained = explained
        self._policies = policies
        self._user = user
        self._mutes = mutes
        self._zone = policies.zone_of(user)
        self._events = events
        self._latency_us = latency_us
        self._begins_us = begins_us
        self._timed = policies.uses_local_time
        costs = sorted({category.cost for category in policies.categories.values()})
        self._before = before
        self._rules = _Rules(policies.for_user(user), costs, timed=self._timed, before=self._on_record(None))
        self._backlogs: dict[str, _Backlog] = {}
        self._waiting: list[_Backlog] = []  # those in which something waits
        self._expires = [NEVER] * len(events)
        self._stands = list(range(len(events)))  # in the place that an event had: itself, or who took it over
        self._turn = 0 if before is None else before.turn

    def _on_record(self, category: str | None) -> Sends | None:
        return None if self._before is None else self._before.sends.get(category)

    def run(self) -> None:
        """Replay all of it."""
        events, arrived, now = self._events, 0, 0 if self._before is None else self._before.now_us
        while arrived < len(events) or self._waiting:
            due = self._next_look(now)
            if arrived < len(events) and events[arrived].at_us <= due:
                due = events[arrived].at_us
            now = max(now, due)
            while arrived < len(events) and events[arrived].at_us <= now:
                self._enter_backlog(arrived, events[arrived])
                arrived += 1
            self._look(now)

    def _enter_backlog(self, index: int, event: Event) -> None:
        backlog = self._backlogs.get(event.category)
        if backlog is None:
            category = self._policies.category(event.category)
            before = self._on_record(event.category)
            rules = _Rules(category.policy, [category.cost], timed=self._timed, before=before)
            backlog = self._backlogs[event.category] = _Backlog(category, rules)
            if self._before is not None:
                backlog.newest, backlog.gather_us = None, self._before.gathers_us.get(event.category)
                backlog.rank = LANES.index(self._before.lanes.get(event.category, category.lane))
        if not backlog.places:
            self._waiting.append(backlog)
        expires = backlog.expires_us if event.expires_in_us is None else event.expires_in_us
        if expires is not None:
            self._expires[index] = event.at_us + expires
        place = index - HIGH if event.high else index
        collapse_id = event.collapse_id if backlog.category.digest is None else ""
        if backlog.newest is None or collapse_id is None or not self._collapse(backlog, place, event, collapse_id):
            heappush(backlog.places, place)

    def _collapse(self, backlog: _Backlog, place: int, event: Event, collapse_id: str) -> bool:
        """Supersede what waits under the same collapse id; whether the newer one stands in its place."""
        assert backlog.newest is not None
        index, old = place % HIGH, backlog.newest.get(collapse_id)
        backlog.newest[collapse_id] = place if old is None else min(place, old)
        if old is None:
            backlog.count, backlog.gather_us = 1, None
            return False
        backlog.count += 1
        if (digest := backlog.category.digest) is not None and backlog.count >= digest.after:
            backlog.gather_us = 0
        superseded = self._stands[old % HIGH]
        self.sent[superseded], self.superseded_us[superseded] = SUPERSEDED, event.at_us
        if old < place:
            self._stands[old % HIGH] = index
            return True
        backlog.places.remove(old)
        heapify(backlog.places)
        return False

    def _collapse_id(self, backlog: _Backlog, index: int) -> str:
        return self._events[index].collapse_id or "" if backlog.category.digest is None else ""

    def _admits(self, backlog: _Backlog, now: int) -> int:
        """When the head of a backlog may go."""
        if backlog.bypass:
            return 0
        at = max(self._rules.next_us[backlog.cost], backlog.rules.next_us[backlog.cost])
        if mute := self._muted(backlog, now):
            at = max(at, mute.until_us - self._begins_us)
        return max(self._by_clock(backlog, max(at, now))[0] if self._timed else at, backlog.gather_us or 0)

    def _muted(self, backlog: _Backlog, now: int) -> Mute | None:
        """What holds back the head of a backlog because its user has muted it."""
        if not self._mutes:
            return None
        category = self._events[self._stands[backlog.places[0] % HIGH]].category
        return self._policies.muted(self._user, category, self._begins_us + now)

    def _drops(self, backlog: _Backlog, now: int) -> bool:
        """Whether the head of a backlog is dropped where it may not go.

        What is muted without end will never be sent.
        """
        mute = self._muted(backlog, now)
        return backlog.drops or (mute is not None and (mute.what == "drop" or mute.until >= FOREVER))

    def _by_clock(self, backlog: _Backlog, at: int) -> tuple[int, str]:
        """When the clock lets the head of a backlog go, and what decides that, or ''."""
        rules, begins = Rules(self._rules.policy, backlog.category), self._begins_us
        if not rules.uses_local_time:
            return at, ""
        event = self._events[self._stands[backlog.places[0] % HIGH]]

        def absolute(latest: Latest, n: int) -> int | None:
            found = latest(n)
            return None if found is None else found + begins

        by_clock = ByClock(
            rules,
            zone_or(event.zone, self._zone, begins + at),
            begins + event.at_us,
            self._policies.lead_us,
            partial(absolute, self._rules.latest),
            partial(absolute, backlog.rules.latest),
        )
        opens, by = by_clock.first_open(begins + at)
        return opens - begins, "" if by is None else said(by, backlog.name, opens, by_clock.zone)

    def _next_look(self, now: int) -> int:
        at = NEVER
        for backlog in self._waiting:
            # What one look found no room to drop is dropped at the next, at once.
            admits = 0 if self._drops(backlog, now) else self._admits(backlog, now)
            at = min(at, admits, self._expires[self._stands[backlog.places[0] % HIGH]])
        return at

    def _look(self, now: int) -> None:
        """Take the heads that may go now, as one look of *admit* at this user does."""
        backlogs, several = self._ordered()
        taken = i = 0
        while i < len(backlogs) and taken < MAX_HEADS:
            backlog = backlogs[i]
            index = self._stands[backlog.places[0] % HIGH]
            expired = self._expires[index] <= now
            held = not expired and not backlog.bypass and self._admits(backlog, now) > now
            if held and not self._drops(backlog, now):
                backlog.gather(now)
                i += 1
                continue
            if self._explained:
                self.decided[index] = self._deciding(backlog, now, self._events[index].at_us)
            place = heappop(backlog.places)
            if backlog.newest is not None and backlog.newest.get(key := self._collapse_id(backlog, index)) == place:
                del backlog.newest[key]
            taken += 1
            if not backlog.places:
                del backlogs[i]
                self._waiting.remove(backlog)
            if held:
                self.sent[index] = DROPPED
            if held or expired:
                continue
            self.sent[index] = now
            self._rules.record(now + self._latency_us, now, backlog.cost)
            backlog.rules.record(now + self._latency_us, now, backlog.cost)
            i = 0
            if several:
                self._turn += 1
                backlogs, several = self._ordered()
        if not self._waiting:
            self._turn = 0

    def _ordered(self) -> tuple[list[_Backlog], bool]:
        """As `Gates.ordered`: the urgent lane first, then the older head; every eighth turn the other way round."""
        backlogs = list(self._waiting)
        if len(backlogs) < 2:  # noqa: PLR2004 - nothing to order
            return backlogs, False
        several = any(backlog.rank != backlogs[0].rank for backlog in backlogs)
        sign = -1 if several and self._turn % EVERY == EVERY - 1 else 1
        backlogs.sort(key=lambda backlog: (backlog.rank * sign, backlog.places[0]))
        return backlogs, several

    def _deciding(self, backlog: _Backlog, now: int, accepted_us: int) -> str:
        of_user, of_category, cost = self._rules, backlog.rules, backlog.cost
        if now == accepted_us or backlog.bypass:
            return ""
        mute = self._muted(backlog, now - 1)
        if mute and mute.until_us == self._begins_us + now:
            return MUTED
        admits = max(of_user.next_us[cost], of_category.next_us[cost])
        if self._timed and (by := self._by_clock(backlog, max(admits, accepted_us))[1]):
            return by
        if admits < now:
            return ""
        if of_category.next_us[cost] > of_user.next_us[cost]:
            return describe(backlog.name, of_category.policy, of_category.rule[cost])
        return describe("user", of_user.policy, of_user.rule[cost])
