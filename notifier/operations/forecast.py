"""When what waits for a user should go: reckoned from the rules and the sends on record, when somebody asks.

The replay of `notifier preview` goes on from what Redis has. So the answer follows changed rates at once, and knows
every rule. Where something else decides (a closed route, a limit of a device), the answer is the earliest time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from notifier.dispatch.circuits import Held, find_routes
from notifier.limiter.memory_sends import Sends
from notifier.notification.notification import at_service, route
from notifier.operations.preview.replay import DROPPED, EXPIRED, HIGH, MUTED, Before, Replay
from notifier.operations.preview.trace import Event
from notifier.rules.policies import Policies
from notifier.rules.policy import LANES
from notifier.scripts.keys import job_key, redis_key, user_key
from notifier.scripts.rule_table import decoded
from notifier.store.exchange import Commands, Exchange
from notifier.units import clock_us, from_bytes, moment, to_bytes

MAX_READ: Final = 1_000  # of each backlog: what stands behind them has no expected time
NEVER_US: Final = 2**62
UNSENT: Final = {EXPIRED: "it expires before", DROPPED: "it is dropped"}
DEVICE: Final = re.compile(r"(\w+):([a-z])(\S*)")
FIELDS: Final = ("push_deadline", "push_since", "push_zone", "push_targets", "push_gather", "push_collapse")


@dataclass(frozen=True, slots=True)
class Expected:
    """When a notification should go. not_before: what else decides, so that it may go later; '' where nothing does.

    at: None where it expires or is dropped before it may go; the reason stands in not_before then.
    held_by: the rule that lets it go last, such as 'user 10/1m'; '' where it waits for none.
    """

    at: datetime | None
    not_before: str = ""
    held_by: str = ""


@dataclass(frozen=True, slots=True)
class _Job:
    """What stands in a backlog. order: its place among all of the user's."""

    id: str
    category: str
    order: float
    event: Event
    gather_us: int | None
    else_us: int
    otherwise: str


@dataclass(frozen=True, slots=True)
class Record:
    """What Redis has of a user: the fields of @lines, the heads of each backlog, the sends by category."""

    now_us: int
    routes: Sequence[Held]
    fields: Mapping[str, bytes]
    backlogs: Mapping[str, Sequence[tuple[bytes, float, Sequence[bytes | None]]]]
    sends: Mapping[str | None, tuple[Any, Any, Any]]


def find_forecast(
    policies: Policies, user: str, *, newcomer: str | None = None, latency_us: int = 0, clock: str = ""
) -> Exchange[Forecast]:
    """See `Forecast`. clock: µs in place of Redis's own."""
    now, backlogs, text = yield Commands(
        lambda pipe: (
            pipe.time(),
            pipe.hgetall(user_key("lines", user)),
            pipe.hget(redis_key("preferences"), to_bytes(user)),
        )
    )
    if text is not None:
        policies = policies.under({user: decoded(from_bytes(text))})
    now_us = int(clock) if clock else clock_us(now)
    routes = yield from find_routes()
    fields = {name.decode(): value for name, value in backlogs.items()}
    names = sorted(name for name in fields if name[:1] != "#")
    heads = yield Commands(
        lambda pipe: [pipe.zrange(user_key("line", user, name), 0, MAX_READ - 1, withscores=True) for name in names]
    )
    ids = [job_id for backlog in heads for job_id, _ in backlog]
    jobs = iter((yield Commands(lambda pipe: [pipe.hmget(job_key(job_id), *FIELDS) for job_id in ids])))
    found = {
        name: [(job_id, order, next(jobs)) for job_id, order in backlog]
        for name, backlog in zip(names, heads, strict=True)
    }
    categories = [None, *dict.fromkeys([*names, *([newcomer] if newcomer else [])])]

    def ask_sends(pipe: Any) -> None:
        for category in categories:
            key = f"{{{user}}}" + (f":{category}" if category else "")
            pipe.zrange(redis_key("sent", key), 0, -1, withscores=True)
            pipe.zrange(redis_key("counts", key), 0, -1, withscores=True)
            pipe.hmget(redis_key("burst", key), "full", "at", "every")

    sends = yield Commands(ask_sends)
    by_category = {category: tuple(sends[3 * n : 3 * n + 3]) for n, category in enumerate(categories)}
    record = Record(now_us, routes, fields, found, by_category)
    return Forecast(policies, user, record, newcomer=newcomer, latency_us=latency_us)


class Forecast:
    """The expected times of what waits for one user, as of now, by job id.

    newcomer: when one of this category would go, were it accepted now, and if nothing else came.
    """

    def __init__(
        self, policies: Policies, user: str, record: Record, *, newcomer: str | None = None, latency_us: int = 0
    ) -> None:
        """record: what `find_forecast` has read. latency_us: from a permit to its settlement."""
        self._policies, self._user = policies, user
        self._now_us = record.now_us
        self._latency_us = latency_us
        # Where the user's own rules are narrower, the platform's for a device hold nothing back.
        rules = policies.for_user(user)
        self._device_limits = {
            name for name, limits in policies.limits.items() if not limits.of_device(rules)[0].is_empty
        }
        closed = {held.route: held for held in record.routes}
        self._closed = {name: (round(held.next_at.timestamp() * 1e6), held.state) for name, held in closed.items()}
        self._turn = int(record.fields.get("#turn", 0))
        self._lanes = {name: lane.decode() for name, lane in record.fields.items() if lane.decode() in LANES}
        self._orphans = any(name.startswith("#o:") for name in record.fields)
        self._record = record
        jobs = [
            self._job(job_id.decode(), category, order, fields)
            for category, backlog in record.backlogs.items()
            for job_id, order, fields in backlog
        ]
        jobs.sort(key=lambda job: job.order)
        self.by_job: dict[str, Expected] = {}
        self.newcomer: Expected | None = None
        self._reckon(jobs, newcomer)

    def of(self, job_id: str) -> Expected | None:
        """When this one should go; None where it stands in none of the backlogs, or too far behind."""
        return self.by_job.get(job_id)

    def _reckon(self, jobs: Sequence[_Job], newcomer: str | None) -> None:
        # Who stands in a backlog behind one that waits for something else waits with it, and takes nobody's place.
        apart = {job.category for job in jobs if job.else_us > self._now_us}
        free = [job for job in jobs if job.category not in apart]
        events = [job.event for job in free]
        if newcomer is not None:
            events.append(Event(self._now_us, newcomer, expires_in_us=NEVER_US))
        found = self._replay(events, free)
        for job, (at, by) in zip(free, found, strict=False):
            self.by_job[job.id] = self._expected(at, job.otherwise, by)
        if newcomer is not None:
            behind = next((job.otherwise for job in jobs if job.category == newcomer and newcomer in apart), "")
            at, by = found[-1]
            if mute := self._policies.muted(self._user, newcomer, self._now_us):
                at, behind = max(at, mute.until_us), MUTED
            self.newcomer = self._expected(at, behind, by)
        for category in apart:
            backlog = [job for job in jobs if job.category == category]
            opens = max(job.else_us for job in backlog)
            why = next(job.otherwise for job in backlog if job.else_us > self._now_us)
            for job, (at, by) in zip(backlog, self._replay([job.event for job in backlog], backlog), strict=True):
                self.by_job[job.id] = self._expected(max(at, opens) if at >= 0 else at, why, by)

    def _replay(self, events: Sequence[Event], jobs: Iterable[_Job]) -> list[tuple[int, str]]:
        """When each goes, and the rule that lets it go last."""
        gathers = {job.category: job.gather_us for job in jobs if job.gather_us is not None}
        categories = {event.category for event in events}
        sends = {None: self._sends(None)} | {name: self._sends(name) for name in categories}
        before = Before(self._now_us, sends, self._turn, gathers, self._lanes)
        replay = Replay(self._policies, self._user, events, self._latency_us, before=before, explained=True)
        replay.run()
        return list(zip(replay.sent, replay.decided, strict=True))

    def _expected(self, at: int, otherwise: str, held_by: str) -> Expected:
        if at < 0:
            return Expected(None, UNSENT[at], held_by)
        otherwise = otherwise or ("what a worker left in flight" if self._orphans else "")
        return Expected(moment(at), otherwise, held_by)

    def _sends(self, category: str | None) -> Sends:
        sent, counts, burst = self._record.sends[category]
        # What is in flight stands at its lease's end; it is settled once it is answered.
        latest = self._now_us + self._latency_us
        times = sorted(min(int(at), latest) for _, at in sent)
        return Sends.on_record(
            times,
            [(int(at), int(total)) for at, total in counts],
            [int(float(part)) for part in burst] if all(part is not None for part in burst) else [],
        )

    def _job(self, job_id: str, category: str, order: float, fields: Sequence[bytes | None]) -> _Job:
        deadline, since, zone, targets, gather = ((value or b"").decode() for value in fields[:-1])
        gathers = fields[-1] is not None  # its collapse id is '' where it stands for all of its category
        at_us = min(int(since), self._now_us) if since else self._now_us
        expires_us = int(float(deadline)) - at_us if deadline else NEVER_US
        event = Event(at_us, category, order < -HIGH / 2, expires_us, zone=zone or None)
        else_us, otherwise = self._otherwise(targets, category)
        return _Job(
            job_id, category, order, event, self._gathers(category, gather, gathers=gathers), else_us, otherwise
        )

    def _gathers(self, category: str, gather: str, *, gathers: bool) -> int | None:
        if self._policies.category(category).digest is None:
            return None
        return 0 if not gathers else int(float(gather)) if gather else None

    def _otherwise(self, targets: str, category: str) -> tuple[int, str]:
        """Until when it waits for something that is no rule of the user's, and for what."""
        if mute := self._policies.muted(self._user, category, self._now_us):
            return mute.until_us, MUTED
        own, _, rest = targets.partition("|")[0].partition(" ")
        app = own if own not in {"", "-"} else self._policies.category(category).app
        found = (0, "")
        for platform, kind, service in DEVICE.findall(rest):
            by = at_service(route(platform, app), service.removeprefix("@"))
            until_us, state = self._closed.get(by, (0, ""))
            if state:
                what = f"the circuit of {by}" if state in {"open", "closing"} else f"the route {by}"
                found = max(found, (until_us, f"{what} is {state}"))
            elif kind == "b" and not self._policies.limits_of(platform).background.is_empty:
                found = max(found, (0, f"the limit of background pushes of {platform}"))
            elif platform in self._device_limits or (kind == "c" and self._policies.limits_of(platform).collapsible):
                found = max(found, (0, f"the limits of {platform}"))
        return found
