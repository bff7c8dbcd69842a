"""When a user's waiting notifications should go: computed on request, from the rules and the recorded sends.

The replay of `notifier preview` continues from the state in Redis. So the answer follows changed rates at once, and
knows every rule. If something else decides (a held route, a limit of a device), the answer is the earliest time, or the
time at which a worker checks again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Final

from notifier.forecast.replay import DROPPED, EXPIRED, HIGH, Before, Replay
from notifier.forecast.trace import Event
from notifier.notification.job import accepted_us, decode_targets
from notifier.notification.notification import at_service, route
from notifier.queue.circuits import FAR_US, OVERALL, Held, find_routes, worst
from notifier.queue.history import WORDS
from notifier.queue.pauses import find_pauses, which_holds
from notifier.queue.waits import describe_later
from notifier.rules.category import LANES
from notifier.rules.evaluator import Sends
from notifier.rules.policies import Policies
from notifier.rules.policy import Burst
from notifier.rules.preferences import Mute, Preferences
from notifier.scripts.keys import job_key, redis_key, rq_key, user_key
from notifier.scripts.rule_table import decoded
from notifier.store.exchange import Commands, Exchange
from notifier.units import clock_us, from_bytes, moment, to_bytes

MUTED: Final = "the user's mute"
_FOREVER_US: Final = Mute().until_us
_MUTED: Final = "user muted"  # as a replay names the rule that decides
MAX_READ: Final = 1_000  # jobs of each backlog; the jobs behind them have no expected time
NEVER_US: Final = 2**62
UNKNOWN_US: Final = 2 * NEVER_US  # the end of a stopped route; the time of its next probe is added
MAX_AHEAD_US: Final = 90_000_000  # as in overall.lua
BEHIND_MANY: Final = f"more than {MAX_READ:,} wait before it"
UNSENT: Final = {EXPIRED: "it expires before", DROPPED: "it is dropped"}
BY_DEVICE: Final = b"d"  # the mark of a wait for the limit of a device, as in WORDS
OF_TIMES: Final = (
    "push_deadline",
    "push_since",
    "push_history",
    "push_zone",
    "push_targets",
    "push_gather",
    "push_wait",
    "push_collapse",
)
FIELDS: Final = (*OF_TIMES, "origin", "meta", "push_attempts", "push_count")  # `explain` shows the last three
ORIGIN: Final = FIELDS.index("origin")


@dataclass(frozen=True, slots=True)
class Expected:
    """When a notification should go. not_before: what besides the rules may delay it beyond `at`; '' if nothing does.

    at: None if it expires or is dropped before it may go, or if it waits without end; then `not_before` has the reason.
    held_by: the rule that holds its backlog longest until it goes, such as 'user 10/1m'; '' if it waits for no rule.
    """

    at: datetime | None
    not_before: str = ""
    held_by: str = ""


@dataclass(frozen=True, slots=True)
class _Job:
    """A job of a backlog. order: its score; it orders all jobs of the user. else_us, otherwise: see `_otherwise`.

    gather_us: until when its digest gathers; 0 if it gathers none, None if the gathering has not begun.
    """

    id: str
    category: str
    order: float
    event: Event
    gather_us: int | None
    else_us: int
    otherwise: str


@dataclass(frozen=True, slots=True)
class Record:
    """The state of a user in Redis: the fields of `backlogs`, the first jobs of each backlog, the sends by category.

    limited: by category, until when (µs) a limit of its device holds the head of the backlog, as a worker has found.
    preferences: the user's choices, with only the mutes that hold now. waiting: the length of each backlog. suspended:
    `rq suspend` holds all workers, so no backlog is checked.
    """

    now_us: int
    routes: Sequence[Held]
    pauses: Sequence[Held]
    fields: Mapping[str, bytes]
    backlogs: Mapping[str, Sequence[tuple[bytes, float, Sequence[bytes | None]]]]
    sends: Mapping[str | None, Sends]
    limited: Mapping[str, int] = field(default_factory=dict)
    preferences: Preferences = field(default_factory=Preferences)
    waiting: Mapping[str, int] = field(default_factory=dict)
    suspended: bool = False

    def head(self, category: str) -> tuple[str, int]:
        """The zone of a backlog's head, or '', and since when the head waits (µs); now, if the backlog is empty."""
        heads = self.backlogs.get(category)
        fields = dict(zip(FIELDS, heads[0][2], strict=True)) if heads else {}
        noted = fields.get("push_history")
        since = fields.get("push_since") or (accepted_us(noted) if noted else self.now_us)
        return (fields.get("push_zone") or b"").decode(), int(since)


def find_forecast(policies: Policies, user: str, *, latency_us: int = 0, clock: str = "") -> Exchange[Forecast]:
    """See `Forecast`. clock: a time in µs instead of that of Redis."""
    record = yield from find_record(user, latency_us=latency_us, clock=clock)
    return Forecast(policies.under({user: record.preferences}), user, record, latency_us=latency_us)


def find_record(user: str, *, latency_us: int = 0, clock: str = "") -> Exchange[Record]:
    """Read the state of a user; see `find_forecast`."""
    now, noted, text, leases, suspended = yield Commands(
        lambda pipe: (
            pipe.time(),
            pipe.hgetall(user_key("backlogs", user)),
            pipe.hget(redis_key("preferences"), to_bytes(user)),
            pipe.zrange(redis_key("leases"), -1, -1, withscores=True),
            pipe.exists(rq_key("suspended")),
        )
    )
    now_us = int(clock) if clock else clock_us(now)
    chosen = Preferences() if text is None else decoded(from_bytes(text))
    routes, pauses = (yield from find_routes()), (yield from find_pauses())
    fields = {name.decode(): value for name, value in noted.items()}
    # The scripts keep notes about the user beside the categories. Their names begin with #, which no category's does.
    names = sorted(name for name in fields if name[:1] != "#")
    found, waiting = yield from _find_backlogs(user, names)
    by_device = {name: found[name][0] for name in names if fields.get(f"#w:{name}") == BY_DEVICE and found[name]}
    ends = yield Commands(
        lambda pipe: [
            pipe.zscore(rq_key("scheduled", (head[ORIGIN] or b"").decode()), job_id)
            for job_id, _, head in by_device.values()
        ]
    )
    # A send in flight is dated at the end of its lease.
    leases_end_us = max([now_us + MAX_AHEAD_US, *(int(at) for _, at in leases)])
    return Record(
        now_us,
        routes,
        pauses,
        fields,
        found,
        (yield from find_sends(user, names, now_us + latency_us, leases_end_us)),
        {name: round(1e6 * (at_s or 0)) for name, at_s in zip(by_device, ends, strict=True)},
        replace(chosen, mutes=tuple(mute for mute in chosen.mutes if mute.until_us > now_us)),
        waiting,
        bool(suspended),
    )


def _find_backlogs(user: str, names: Sequence[str]) -> Exchange[tuple[dict[str, Any], dict[str, int]]]:
    """Read the first jobs of each backlog, with their scores and fields, and the length of each backlog."""

    def ask(pipe: Any) -> None:
        for name in names:
            pipe.zrange(user_key("backlog", user, name), 0, MAX_READ - 1, withscores=True)
            pipe.zcard(user_key("backlog", user, name))

    replies = yield Commands(ask)
    heads = replies[::2]
    ids = [job_id for backlog in heads for job_id, _ in backlog]
    jobs = iter((yield Commands(lambda pipe: [pipe.hmget(job_key(job_id), *FIELDS) for job_id in ids])))
    found = [[(job_id, order, next(jobs)) for job_id, order in backlog] for backlog in heads]
    return dict(zip(names, found, strict=True)), dict(zip(names, replies[1::2], strict=True))


def find_sends(
    user: str, categories: Iterable[str], settled_us: int = NEVER_US, leases_end_us: int = NEVER_US
) -> Exchange[Mapping[str | None, Sends]]:
    """The recorded sends of a user, under None, and of some categories.

    settled_us: when all sends in flight will be settled. leases_end_us: a send that is dated later is from before
    Redis's clock was set back, and keeps its date.
    """
    scopes = [None, *dict.fromkeys(categories)]

    def ask(pipe: Any) -> None:
        for scope in scopes:
            key = f"{{{user}}}" + (f":{scope}" if scope else "")
            pipe.zrange(redis_key("sent", key), 0, -1, withscores=True)
            pipe.zrange(redis_key("counts", key), 0, -1, withscores=True)
            pipe.hgetall(redis_key("burst", key))

    found = iter((yield Commands(ask)))
    return {
        scope: Sends.on_record(
            [int(at) if at > leases_end_us else min(int(at), settled_us) for _, at in sent],
            [(int(at), int(total)) for at, total in counts],
            {_burst(rule): struct.unpack(">qq", state) for rule, state in burst.items() if rule != b"horizon"},
        )
        for scope, sent, counts, burst in zip(scopes, found, found, found, strict=True)
    }


class Forecast:
    """The expected times of one user's waiting notifications, as of now.

    by_job: by job id. A job that is in no backlog, or too far back in one, has no entry.
    """

    def __init__(self, policies: Policies, user: str, record: Record, *, latency_us: int = 0) -> None:
        """record: see `find_record`. latency_us: from a permit to its settlement."""
        self._policies, self._user = policies, user
        self._now_us = record.now_us
        self._latency_us = latency_us
        self._held = worst(record.routes)
        self._turn = int(record.fields.get("#turn", 0))
        self._lanes = {name: lane.decode() for name, lane in record.fields.items() if lane.decode() in LANES}
        self._orphans = any(name.startswith("#o:") for name in record.fields)
        self.record = record
        jobs = [
            self._job(job_id.decode(), category, order, fields)
            for category, backlog in record.backlogs.items()
            for job_id, order, fields in backlog
            if fields[ORIGIN] is not None  # else RQ's tools have deleted the job
        ]
        jobs.sort(key=lambda job: job.order)
        self.by_job: dict[str, Expected] = {}
        self._compute(jobs)

    def _compute(self, jobs: Sequence[_Job]) -> None:
        # If something besides the rules holds a job, its whole backlog waits, and takes no sends from others.
        apart = {job.category for job in jobs if job.else_us > self._now_us}
        free = [job for job in jobs if job.category not in apart]
        found = self._replay(free)
        known_us = self._known_us(free, found)
        for job, (at, by) in zip(free, found, strict=True):
            if at <= known_us or by == _MUTED:
                self.by_job[job.id] = self._expected(at, by, 0, job.otherwise)
        for category in apart:
            backlog = [job for job in jobs if job.category == category]
            # If it is known until when something else holds the first job, the replay begins then.
            known, holds = backlog[0].else_us < NEVER_US, (0, "")
            found = self._replay(backlog, backlog[0].else_us if known else 0)
            for job, (at, by) in zip(backlog, found, strict=True):
                opens, why = holds = max(holds, (job.else_us, job.otherwise))
                ends = job.event.at_us + (job.event.expires_in_us or NEVER_US)
                late = opens % UNKNOWN_US >= ends and at != DROPPED  # a route may work from its next probe on
                goes = self._expected(EXPIRED if late else at, by, opens, why)
                self.by_job[job.id] = replace(goes, not_before=f"{why}; {UNSENT[EXPIRED]}") if late else goes

    def _known_us(self, jobs: Sequence[_Job], found: Sequence[tuple[int, str]]) -> int:
        """Until when the replay is complete: the jobs of a backlog that were not read go after those that were."""
        last = {job.category: at for job, (at, _) in zip(jobs, found, strict=True) if at >= 0}
        cut = [name for name, n in self.record.waiting.items() if n > MAX_READ]
        return min((last[name] for name in cut if name in last), default=2 * NEVER_US)

    def _replay(self, jobs: Sequence[_Job], from_us: int = 0) -> list[tuple[int, str]]:
        """When each job goes, and the rule that holds it. from_us: no job goes earlier."""
        events = [job.event for job in jobs]
        gathers = {n: job.gather_us for n, job in enumerate(jobs) if job.gather_us is not None}
        categories = {event.category for event in events}
        sends = {name: deepcopy(self.record.sends[name]) for name in (None, *categories)}
        before = Before(max(self._now_us, from_us), sends, self._turn, gathers, self._lanes)
        replay = Replay(self._policies, self._user, events, self._latency_us, before=before, explained=True)
        replay.gives_up = False
        replay.run()
        return list(zip(replay.sent, self._holders(events, replay), strict=True))

    def _holders(self, events: Sequence[Event], replay: Replay) -> list[str]:
        """For each job, the rule that holds its backlog longest before it goes: its own wait may be a moment."""
        found, longest = list(replay.decided), dict[str, tuple[int, int, str]]()
        goes = [n for n, rule in enumerate(found) if rule and replay.sent[n] >= 0]  # the others are not sent
        for n in sorted(goes, key=lambda n: replay.sent[n]):
            at, (went, wait, rule) = replay.sent[n], longest.get(events[n].category, (self._now_us, 0, ""))
            if at - went >= wait:
                wait, rule = at - went, found[n]
            longest[events[n].category] = at, wait, rule
            found[n] = rule
        return found

    def _expected(self, at: int, by: str, until_us: int, otherwise: str) -> Expected:
        """at, by: from the replay. until_us, otherwise: until when something else holds the job, and what."""
        muted = by == _MUTED
        if muted:
            by, otherwise = "", MUTED if at >= until_us else otherwise
        if at < 0:
            return Expected(None, f"{MUTED}; {UNSENT[at]}" if muted else UNSENT[at], by)
        if (at := max(at, until_us)) >= _FOREVER_US:
            return Expected(None, otherwise, by)
        otherwise = otherwise or ("what a worker left in flight" if self._orphans else "")
        return Expected(moment(at), otherwise, by)

    def _job(self, job_id: str, category: str, order: float, fields: Sequence[bytes | None]) -> _Job:
        *others, collapse = fields[: len(OF_TIMES)]
        deadline, since, noted, zone, targets, gather, wait = ((value or b"").decode() for value in others)
        # Once a worker has taken a job, the job has no collapse id any more, and gathers no others.
        digest = self._policies.category(category).digest is not None and collapse is not None
        at_us = min(int(since or (accepted_us(noted) if noted else self._now_us)), self._now_us)  # as in `by_the_clock`
        expires_us = int(float(deadline)) - at_us if deadline else NEVER_US
        event = Event(at_us, category, order < -HIGH / 2, expires_us, zone=zone)
        else_us, otherwise = self._otherwise(targets, category)
        if wait:
            else_us, otherwise = max((else_us, otherwise), (int(float(wait)), "it is tried again"))
        gather_us = 0 if not digest else int(float(gather)) if gather else None
        return _Job(job_id, category, order, event, gather_us, else_us, otherwise)

    def _otherwise(self, targets: str, category: str) -> tuple[int, str]:
        """Until when (µs) a job waits for something besides the user's rules, and for what."""
        of = self._policies.category(category)
        if pause := which_holds(self.record.pauses, self._user, category, self._lanes.get(category) or of.lane):
            return _until_us(pause), pause.why
        own, devices = decode_targets(targets)
        app, pace = own or of.app, self._held.get(OVERALL + category)
        # Nobody knows how many notifications of other users go first.
        found = _until(pace) if pace else (0, f"{category} overall" if of.overall else "")
        limited_us = self.record.limited.get(category, 0)
        for platform, kind, service in devices:
            by = at_service(route(platform, app), service)
            if held := self._held.get(by):
                found = max(found, _until(held))
            elif limited_us or self._may_limit(platform, kind):
                found = max(found, (limited_us, WORDS["device"]))
        return found

    def _may_limit(self, platform: str, kind: str) -> bool:
        """Whether a platform limits messages of this kind to so few that a device soon has them all."""
        limits = self._policies.limits_of(platform)
        return not limits.background.is_empty if kind == "b" else kind == "c" and bool(limits.collapsible)


def expect_later(at_us: float, noted: Sequence[bytes | None], routes: Iterable[Held]) -> Expected:
    """When a job in no backlog should go, and what it waits for. at_us, noted: see `describe_later`.

    If the job waits for a route, `at_us` is when it expires. It goes once the route works again.
    """
    kind, what = describe_later(at_us, *noted)
    if kind != "route":
        return Expected(moment(at_us), what)
    held = worst(routes).get(what.partition(" ")[0])
    until_us, why = (UNKNOWN_US, what) if held is None else _until(held)
    if at_us < FAR_US and until_us % UNKNOWN_US >= at_us:
        return Expected(None, f"{why}; {UNSENT[EXPIRED]}")
    return Expected(moment(until_us) if until_us < NEVER_US else None, why)


def _until_us(held: Held) -> int:
    return NEVER_US if held.next_at is None else round(held.next_at.timestamp() * 1e6)


def _until(held: Held) -> tuple[int, str]:
    """Until when a held route holds its jobs, as far as anybody knows, and why."""
    if held.state == "slow" or held.kind == "paused":
        return _until_us(held), f"{held.route} is {held.state}: {held.why}"
    probe = "" if held.next_at is None else f"; next probe {held.next_at:%H:%M:%S} UTC"
    return UNKNOWN_US + (_until_us(held) if probe else 0), f"when {held.route} works again{probe}"


def _burst(rule: bytes) -> Burst:
    """The rule whose state Redis has under this name; see `burst.lua`."""
    limit, every_us = struct.unpack(">QQ", rule)
    return Burst(limit, every_us=every_us)
