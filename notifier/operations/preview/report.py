"""Compare old and new rules on one trace: how much longer or shorter users would wait. Times in microseconds."""

from __future__ import annotations

from array import array
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import chain
from typing import Any, Final, Literal

from notifier.forecast.replay import DROPPED, EXPIRED, SUPERSEDED, Replay
from notifier.forecast.trace import Event, Trace
from notifier.rules.policies import Policies
from notifier.rules.policy import Window
from notifier.rules.verify import percentile
from notifier.texts import seconds_text
from notifier.units import counted

Side = Literal["old", "new"]
SIDES: Final[tuple[Side, Side]] = ("old", "new")
WORST: Final = 10
ENDED: Final[Mapping[int, str]] = {EXPIRED: "expired", SUPERSEDED: "superseded", DROPPED: "dropped"}


@dataclass(frozen=True, slots=True)
class Waits:
    """The waits of the notifications that were sent, and how many were sent, expired, superseded and dropped."""

    sent: int
    expired: int
    superseded: int
    dropped: int
    p50_us: int
    p99_us: int
    longest_us: int


@dataclass(frozen=True, slots=True)
class OfUser:
    """The effect on one user. mean_us, longest_us: of the waits of notifications that were sent."""

    user: str
    notifications: int
    mean_us: dict[Side, int]
    longest_us: dict[Side, int]
    expired: dict[Side, int]


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a preview.

    longer, shorter: of the notifications sent under both rules, how many would wait longer or shorter under the new
    ones. worst: the users whose mean wait grows most.
    """

    notifications: int
    users: int
    span_us: int
    longer: int
    shorter: int
    overall: dict[Side, Waits]
    categories: dict[str, dict[Side, Waits]]
    worst: list[OfUser]

    def traffic(self) -> str:
        of = f"{counted(self.notifications, 'notification')} for {counted(self.users, 'user')}"
        return f"{of} in {seconds_text(self.span_us / 1e6)}"

    def moved(self) -> str:
        return f"{self.longer:,} would wait longer, {self.shorter:,} shorter"

    def by_category(self) -> tuple[Sequence[str], list[tuple[str, ...]]]:
        """Return columns and rows. Superseded and dropped have a column only if there are any."""
        seldom = [word for word in ("superseded", "dropped") if any(getattr(of, word) for of in self.overall.values())]
        counts, times = ("sent", "expired", *seldom), ("p50_us", "p99_us", "longest_us")
        rows = [
            (
                name,
                *(_change(f"{getattr(of[side], word):,}" for side in SIDES) for word in counts),
                *(_change(seconds_text(getattr(of[side], word) / 1e6) for side in SIDES) for word in times),
            )
            for name, of in [*self.categories.items(), ("all", self.overall)]
        ]
        return ("category", *counts, "wait p50", "p99", "longest"), rows

    def by_user(self) -> tuple[Sequence[str], list[tuple[object, ...]]]:
        rows = [
            (
                one.user,
                one.notifications,
                *(_change(seconds_text(us / 1e6) for us in times.values()) for times in (one.mean_us, one.longest_us)),
                _change(map(str, one.expired.values())),
            )
            for one in self.worst
        ]
        return ("user", "notifications", "mean wait", "longest", "expired"), rows


@dataclass(frozen=True, slots=True)
class Moment:
    """One notification of a user. sent_us: None if it was not sent. decided_by: the rule that held it last, or ''.

    ended: 'sent', 'expired', 'superseded' or 'dropped'.
    """

    at_us: int
    category: str
    priority: str
    ended: dict[Side, str]
    sent_us: dict[Side, int | None]
    decided_by: dict[Side, str]


class _Found:
    """Gather the figures of one side. waits: of sent notifications, by category."""

    def __init__(self) -> None:
        self.waits: dict[str, array[int]] = defaultdict(lambda: array("q"))
        self.unsent: dict[int, dict[str, int]] = {how: defaultdict(int) for how in ENDED}
        self.sent_at = array("q")

    def add(self, event: Event, sent: int) -> None:
        if sent < 0:
            self.unsent[sent][event.category] += 1
        else:
            self.waits[event.category].append(sent - event.at_us)
            self.sent_at.append(sent)

    def of(self, *categories: str) -> Waits:
        waits = sorted(wait for name in categories for wait in self.waits[name])
        expired, superseded, dropped = (sum(of[name] for name in categories) for of in self.unsent.values())
        longest = waits[-1] if waits else 0
        p50, p99 = percentile(waits, 0.5), percentile(waits, 0.99)
        return Waits(len(waits), expired, superseded, dropped, p50, p99, longest)


def compare(
    trace: Trace,
    old: Policies,
    new: Policies,
    advance: Callable[[int], object] = lambda _: None,
    *,
    begins_us: int = 0,
) -> tuple[Report, dict[Side, Sequence[int]]]:
    """Replay a trace under both sides' rules; returns the report, and for each side the times of all sends.

    advance: called after each user with the number of the user's notifications.
    begins_us: when the trace began, in µs since the epoch, for rules that use local time.
    """
    rules: Mapping[Side, Policies] = {"old": old, "new": new}
    found = {side: _Found() for side in SIDES}
    users = list[OfUser]()
    longer = shorter = 0
    for events, user, replays in _replayed(trace, rules, begins_us=begins_us):
        sent = {side: replay.sent for side, replay in replays.items()}
        for side in SIDES:
            for event, at in zip(events, sent[side], strict=True):
                found[side].add(event, at)
        for before, after in zip(sent["old"], sent["new"], strict=True):
            if before != after and before >= 0 and after >= 0:
                longer, shorter = longer + (after > before), shorter + (after < before)
        if sent["old"] != sent["new"]:
            users.append(_of_user(user, events, sent))
        advance(len(events))
    names = sorted({name for side in SIDES for name in (*found[side].waits, *chain(*found[side].unsent.values()))})
    worse = (one for one in users if one.mean_us["new"] > one.mean_us["old"])
    report = Report(
        notifications=sum(map(len, trace.values())),
        users=len(trace),
        span_us=max((events[-1].at_us for events in trace.values()), default=0),
        longer=longer,
        shorter=shorter,
        overall={side: found[side].of(*names) for side in SIDES},
        categories={name: {side: found[side].of(name) for side in SIDES} for name in names},
        worst=nlargest(WORST, worse, key=lambda one: one.mean_us["new"] - one.mean_us["old"]),
    )
    return report, {side: found[side].sent_at for side in SIDES}


def timeline(trace: Trace, user: str, old: Policies, new: Policies, *, begins_us: int = 0) -> list[Moment]:
    """Replay one user as `compare` does; returns each notification's fate, in the order of the trace."""
    rules: Mapping[Side, Policies] = {"old": old, "new": new}
    if not any(map(_paces, rules.values())):
        trace = {user: trace.get(user, [])}
    found = _replayed(trace, rules, begins_us=begins_us, explained=True)
    events, replays = next(((events, replays) for events, whose, replays in found if whose == user), ([], {}))
    return [
        Moment(
            event.at_us,
            event.category,
            "high" if event.high else "normal",
            {side: ENDED.get(replays[side].sent[n], "sent") for side in SIDES},
            {side: None if (at := replays[side].sent[n]) < 0 else at for side in SIDES},
            {side: replays[side].decided[n] for side in SIDES},
        )
        for n, event in enumerate(events)
    ]


def _replayed(
    trace: Trace, rules: Mapping[Side, Policies], **options: Any
) -> Iterator[tuple[Sequence[Event], str, dict[Side, Replay]]]:
    """Replay each user alone; then delay sends by the paces for all users, first come, first served."""
    trace = {user: _as_given(events, rules["old"]) for user, events in trace.items()}
    found = (
        (events, user, {side: Replay(rules[side], user, events, **options).run() for side in SIDES})
        for user, events in trace.items()
    )
    if not any(map(_paces, rules.values())):
        yield from found
        return
    known = list(found)
    for side in SIDES:
        for name, window in _paces(rules[side]).items():
            _hold_back(name, window, rules[side], [(events, replays[side]) for events, _, replays in known])
    yield from known


def _as_given(events: Sequence[Event], old: Policies) -> list[Event]:
    """Drop an expiry that is the old one of a category: recordings contain it, and new rates may have another."""
    return [
        event._replace(expires_in_us=None) if event.expires_in_us == old.category(event.category).expires_us else event
        for event in events
    ]


def _paces(policies: Policies) -> dict[str, Window]:
    return {name: of.overall for name, of in policies.categories.items() if of.overall is not None}


def _hold_back(
    name: str, window: Window, policies: Policies, replays: Sequence[tuple[Sequence[Event], Replay]]
) -> None:
    """Delay a category's sends to its pace for all users. A notification that expires meanwhile is not sent."""
    category = policies.categories[name]
    recent = deque[int](maxlen=window.limit)
    going = sorted(
        (at, place, n)
        for place, (events, replay) in enumerate(replays)
        for n, (event, at) in enumerate(zip(events, replay.sent, strict=True))
        if at >= 0 and event.category == name
    )
    for at, place, n in going:
        events, replay = replays[place]
        opens = max(at, recent[0] + window.interval_us) if len(recent) == window.limit else at
        expires_in_us = events[n].expires_in_us or category.expires_us
        if expires_in_us is not None and events[n].at_us + expires_in_us <= opens:
            replay.sent[n] = EXPIRED
            continue
        recent.append(opens)
        if opens > at:
            replay.sent[n], replay.decided[n] = opens, f"{name} overall {window}"


def _of_user(user: str, events: Sequence[Event], sent: Mapping[Side, list[int]]) -> OfUser:
    waits = {
        side: [at - event.at_us for event, at in zip(events, sent[side], strict=True) if at >= 0] for side in SIDES
    }
    return OfUser(
        user,
        len(events),
        {side: sum(waits[side]) // max(1, len(waits[side])) for side in SIDES},
        {side: max(waits[side], default=0) for side in SIDES},
        {side: sent[side].count(EXPIRED) for side in SIDES},
    )


def _change(both: Iterable[str]) -> str:
    old, new = both
    return old if old == new else f"{old} → {new}"
