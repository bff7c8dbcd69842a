"""Read the numbers of now and of the last minutes, for people and metrics. Changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from functools import partial
from typing import Any, Final

from notifier.notification.job import ACCEPTED, accepted_at
from notifier.queue.circuits import Held, by_route, find_routes, worst
from notifier.queue.health import Alive, find_refusal, find_workers
from notifier.queue.minutes import UNENDED, Histogram, Numbers, counts_in, find_fields, merged
from notifier.queue.pauses import find_pauses
from notifier.queue.waits import (
    IN_QUEUE,
    OF_LATER,
    RESUME,
    Waits,
    decode_waits,
    describe_later,
    sum_up,
    with_limits,
)
from notifier.rules.category import LANES
from notifier.scripts.keys import job_key, redis_key, rq_key
from notifier.store.connection import evicts_by
from notifier.store.exchange import Commands, Exchange
from notifier.store.partitions import Partitions
from notifier.store.pipelining import Told, ask_all
from notifier.texts import seconds_text
from notifier.units import clock_us, moment

SAMPLED: Final = 100  # jobs in `later` whose reasons stand for those of all
HEADS: Final = 10  # of a queue; the first that still exists tells its age: `forget` deletes jobs

COUNTS: Final = ("accepted", "delivered", "cancelled", "other ends", "retried")  # of a minute, see `counts_of`

MAX_LIMITS: Final = 20  # listed by name, those that hold the most; the others are summed up


@dataclass(frozen=True, slots=True)
class LaneNow:
    """A lane now. queued: not yet pulled by a worker. waiting: in backlogs, or for a time of their own.

    due_users: users whose wake-up has passed. oldest_due_s: how long ago the first of these wake-ups was, or 0.
    oldest_queued_s: how long ago the first notification in the queue was accepted, or 0.
    """

    queued: int
    waiting: int
    due_users: int
    oldest_due_s: float
    oldest_queued_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Now:
    """Redis now. totals: by outcome, since ever. memory: bytes used, and maxmemory or 0; of the fullest partition.

    routes: those that are not working. pauses: those that people made. suspended: the partitions in which `rq suspend`
    is in force, with the number of queued jobs. served: for each partition, the number of workers that pull from it.
    untaken: for each partition, queued jobs and due users. away: for each partition that does not answer, the error.
    looked_us: when a worker last pulled, or 0. unpaused: for each pause, the partitions that lack it. refuses: why
    Redis refuses writes, or ''; refuses_in: the partitions, of several, that do. evicts: the policy by which a full
    Redis removes keys, or ''.
    """

    lanes: dict[str, LaneNow]
    later: int
    in_flight: int
    routes: list[Held]
    workers: list[Alive]
    totals: dict[str, int]
    memory: tuple[int, int]
    pauses: list[Held] = field(default_factory=list)
    suspended: Mapping[int, int] = field(default_factory=dict)
    waits: list[Waits] = field(default_factory=list)
    at_s: float = 0.0
    looked_us: int = 0
    served: Mapping[int, int] = field(default_factory=dict)
    untaken: Mapping[int, int] = field(default_factory=dict)
    away: Mapping[int, str] = field(default_factory=dict)
    unpaused: Mapping[str, Sequence[int]] = field(default_factory=dict)
    refuses: str = ""
    refuses_in: Sequence[int] = ()
    evicts: str = ""

    @property
    def unserved(self) -> list[int]:
        """The partitions, of several, that no worker serves."""
        return [number for number, workers in self.served.items() if not workers and len(self.served) > 1]

    @property
    def oldest_queued_s(self) -> float:
        """How long ago the first notification in any queue was accepted."""
        return max((lane.oldest_queued_s for lane in self.lanes.values()), default=0.0)

    @property
    def stopped(self) -> list[Held]:
        """The stopped routes, except those that a person paused."""
        return [held for held in self.routes if held.state == "stopped" and held.kind != "paused"]

    @property
    def stuck(self) -> list[Held]:
        """The stopped routes for which notifications wait: these are overdue since the route stopped."""
        return [held for held in self.stopped if held.waiting]

    @property
    def late(self) -> list[Held]:
        """The routes that hold back notifications that may go by all limits: stuck, busy or recovering ones."""
        return self.stuck + [held for held in self.routes if held.waiting and held.kind in {"busy", "recovering"}]

    @property
    def oldest_due_s(self) -> float:
        """How long the oldest overdue notification has been so: due, queued, or held back by a route."""
        held = [self.at_s - held.since.timestamp() for held in self.late if held.since is not None]
        return max([self.oldest_queued_s, *held, *(lane.oldest_due_s for lane in self.lanes.values())])

    @property
    def overdue(self) -> int:
        """How many waiting notifications all limits admit: these wait for a worker, or for a route.

        A due user counts as one at least, even if no worker has visited the user since.
        """
        late = {f"{held.route} {word}" for held in self.late for word in ("slow", "stopped")}
        due = sum(n for kind, _, n in self.waits if kind == "due")
        routed = sum(n for kind, what, n in self.waits if kind == "route" and what in late)
        return self.queued + max(due, sum(lane.due_users for lane in self.lanes.values())) + routed

    @property
    def works(self) -> bool:
        return any(workers and number not in self.suspended for number, workers in self.served.items())

    @property
    def suspended_in(self) -> list[int]:
        """The partitions in which `rq suspend` is in force; empty if it is in all."""
        return [] if len(self.suspended) >= len(self.served) else list(self.suspended)

    @property
    def queued(self) -> int:
        return sum(lane.queued for lane in self.lanes.values())


@dataclass(slots=True)
class Stats:
    """The numbers of now and of the last minutes. minutes: by minute, the newest last. together: their sum."""

    now: Now
    minutes: dict[int, Numbers] = field(default_factory=dict)
    together: Numbers = field(default_factory=Numbers)

    def as_json(self) -> dict[str, Any]:
        """Return all numbers as plain data, times in seconds."""
        numbers = self.together
        return {
            "minutes": self.by_minute(),
            "accepted": dict(numbers.accepted),
            "poison": numbers.events["poison"],
            "outcomes": [
                {"outcome": outcome, "category": category, "route": route, "count": n}
                for (outcome, category, route), n in sorted(numbers.ended.items())
            ],
            "lateness": {name: _quantiles(each) for name, each in sorted(numbers.late.items())},
            "provider_latency": {name: _quantiles(each) for name, each in sorted(numbers.answers.items())},
            "at": moment(self.now.at_s * 1e6),
            "now": _now(self.now) | self._pace(),
        }

    def by_minute(self) -> list[dict[str, Any]]:
        """The minutes as plain data, the newest last."""
        return [_minute(minute, each) for minute, each in sorted(self.minutes.items())]

    def _pace(self) -> dict[str, float | str | None]:
        """Return how many come and go a second over two minutes, their lateness, and when nothing will wait."""
        first = max(max(self.minutes, default=0) - 1, min(self.minutes, default=0))
        both = [numbers for minute, numbers in self.minutes.items() if minute >= first]
        lasted = max(1.0, self.now.at_s - first * 60)
        come = sum(numbers.accepted.total() for numbers in both) / lasted
        go = sum(n for numbers in both for word, n in numbers.outcomes().items() if word not in UNENDED) / lasted
        late = merged(each for numbers in both for each in numbers.late.values())
        return {"in_s": come, "out_s": go, "late_p99": late.quantile_s(0.99), "empty": self._empty(come, go)}

    def _empty(self, come: float, go: float) -> str:
        """Say when nothing will wait if `come` and `go` stay the same."""
        now = self.now
        backlog = sum(lane.queued + lane.waiting for lane in now.lanes.values())
        if not backlog:
            return "nothing waits"
        is_paused = any(held.waiting for held in now.pauses) or any(now.untaken.get(n) for n in now.suspended)
        if is_paused or now.unserved or now.stuck or not now.works:
            return "not while something is stopped or paused"
        if go > come:
            return f"in about {seconds_text(backlog / (go - come))}, if no limit holds longer"
        return "not while more come than go" if come > go else "not at this rate"


def read_now(redis: Any) -> Now:
    """Read the numbers of now, of all partitions together. Raises RedisUnusableError if none answers."""
    return _together(ask_all(Partitions.around(redis), _find_now))


def read_stats(redis: Any, last: int) -> Stats:
    """Read the numbers of now, and of the last minutes, also the current one. Raises as `read_now`."""
    answers = ask_all(Partitions.around(redis), partial(_find_stats, last))
    stats = Stats(_together(Told({number: now for number, (now, *_) in answers.found.items()}, answers.away)))
    newest = max(minute for _, minute, _ in answers.all)
    stats.minutes = {minute: Numbers() for minute in range(newest - last + 1, newest + 1)}
    for _, _, by_minute in answers.all:
        for minute, fields in by_minute.items():
            if minute in stats.minutes:
                stats.minutes[minute].add(fields)
                stats.together.add(fields)
    return stats


def _find_stats(last: int) -> Exchange[tuple[Now, int, dict[int, dict[str, int]]]]:
    now = yield from _find_now()
    return (now, *(yield from find_fields(lambda newest: range(newest - last + 1, newest + 1))))


def _find_now() -> Exchange[Now]:
    ((*time,),) = yield Commands(lambda pipe: pipe.time())
    now_us = clock_us(time)

    def ask(pipe: Any) -> None:
        for lane in LANES:
            pipe.llen(rq_key("queue", lane))
            pipe.zcard(rq_key("scheduled", lane))
            pipe.zcount(redis_key("wakeups", lane), "-inf", now_us)
            pipe.zrange(redis_key("wakeups", lane), 0, 0, withscores=True)
            pipe.lrange(rq_key("queue", lane), 0, HEADS - 1)
        pipe.zcard(redis_key("later"))
        pipe.zcard(redis_key("leases"))
        pipe.hgetall(redis_key("stats"))
        pipe.info("memory")
        pipe.exists(rq_key("suspended"))
        pipe.hgetall(redis_key("waits"))
        pipe.get(redis_key("looked"))

    *fields, later, leases, totals, memory, suspended, waits, looked = yield Commands(ask)
    lanes = yield from _find_lanes([fields[n : n + 5] for n in range(0, len(fields), 5)], now_us)
    return Now(
        lanes,
        later,
        leases,
        (yield from find_routes()),
        (yield from find_workers()),
        counts_in(totals),
        (memory["used_memory"], memory.get("maxmemory", 0)),
        (yield from find_pauses()),
        {0: sum(lane.queued for lane in lanes.values())} if suspended else {},
        sum_up([*decode_waits(waits), *(yield from _find_later(later))]),
        now_us / 1e6,
        int(looked or 0),
        refuses=(yield from find_refusal(memory)),
        evicts=evicts_by(memory),
    )


def _find_lanes(of_lanes: Sequence[Sequence[Any]], now_us: int) -> Exchange[dict[str, LaneNow]]:
    """of_lanes: for each lane, the replies in the order of `_find_now`."""
    heads = [job_id for *_, jobs in of_lanes for job_id in jobs]
    begun = iter((yield Commands(lambda pipe: [pipe.hmget(job_key(job_id), ACCEPTED) for job_id in heads])))
    lanes: dict[str, LaneNow] = {}
    for lane, (queued, waiting, due_users, wakeup, jobs) in zip(LANES, of_lanes, strict=True):
        due = min(due_users, waiting)  # a cancelled job leaves a wake-up until a visit
        due_us = now_us - int(wakeup[0][1]) if due and wakeup else 0
        at = next(filter(None, [accepted_at(*next(begun)) for _ in jobs]), None)
        queued_s = now_us / 1e6 - at.timestamp() if at else 0.0
        lanes[lane] = LaneNow(queued, waiting, due, max(0, due_us) / 1e6, max(0.0, queued_s))
    return lanes


def _find_later(waiting: int) -> Exchange[list[Waits]]:
    """Count why the jobs in `later` wait; if there are many, by a sample."""
    (ids,) = yield Commands(lambda pipe: pipe.zrandmember(redis_key("later"), SAMPLED))

    def ask(pipe: Any) -> None:
        for job_id in ids:
            pipe.zscore(redis_key("later"), job_id)
            pipe.hmget(job_key(job_id), *OF_LATER)

    replies = yield Commands(ask)
    found = Counter(describe_later(at or 0, *fields) for at, fields in zip(replies[::2], replies[1::2], strict=True))
    return [Waits(*why, round(waiting * n / len(ids))) for why, n in found.most_common()]


def _together(told: Told[Now]) -> Now:
    """Sum up all partitions."""
    every = list(told.all)
    served = {number: sum(each.is_healthy() for each in now.workers) for number, now in told.found.items()}
    untaken = {
        number: sum(lane.queued + lane.due_users for lane in now.lanes.values()) for number, now in told.found.items()
    }
    away = {number: str(error) for number, error in told.away.items()}
    suspended = {number: now.queued for number, now in told.found.items() if now.suspended}
    refuses = next((now.refuses for now in every if now.refuses), "")
    of_several = len(told.found) + len(told.away) > 1
    refuses_in = [number for number, now in told.found.items() if of_several and refuses and now.refuses == refuses]
    workers: dict[str, Alive] = {}
    for each in (each for now in every for each in now.workers):  # of a worker of several, the last pull counts
        both = each, workers.get(each.name, each)
        since = min((alive.suspended for alive in both if alive.suspended), default=None)
        workers[each.name] = replace(min(both, key=lambda alive: alive.age_us), suspended=since)
    paused = {number: {held.route for held in now.pauses} for number, now in told.found.items()}
    unpaused = {name: [n for n in paused if name not in paused[n]] for name in set().union(*paused.values())}
    return Now(
        {lane: _sum_of(now.lanes[lane] for now in every) for lane in LANES},
        sum(now.later for now in every),
        sum(now.in_flight for now in every),
        by_route(now.routes for now in every),
        [workers[name] for name in sorted(workers)],
        dict(sum((Counter(now.totals) for now in every), Counter())),
        max((now.memory for now in every), key=lambda memory: (memory[0] / (memory[1] or float("inf")), memory[0])),
        by_route(now.pauses for now in every),
        suspended,
        sum_up(each for now in every for each in now.waits),
        max(now.at_s for now in every),
        max(now.looked_us for now in every),
        served,
        untaken,
        away,
        unpaused,
        refuses,
        refuses_in,
        next((now.evicts for now in every if now.evicts), ""),
    )


def _sum_of(lanes: Iterable[LaneNow]) -> LaneNow:
    queued, waiting, due, oldest_due, oldest_queued = zip(*(astuple(lane) for lane in lanes), strict=True)
    return LaneNow(sum(queued), sum(waiting), sum(due), max(oldest_due), max(oldest_queued))


def _minute(minute: int, numbers: Numbers) -> dict[str, Any]:
    outcomes = {word: n for word, n in sorted(numbers.outcomes().items()) if word not in UNENDED}
    retried = {word: n for word, n in sorted(numbers.outcomes().items()) if word in UNENDED}
    late = _quantiles(merged(numbers.late.values()))
    return {"at": minute * 60, "accepted": numbers.accepted.total(), "ended": outcomes, **retried, "lateness": late}


def counts_of(minute: Mapping[str, Any]) -> list[int]:
    """Return the counts that COUNTS names, of a minute of `Stats.by_minute`."""
    ended = minute["ended"]
    delivered, cancelled = ended.get("delivered", 0), ended.get("cancelled", 0)
    others = sum(ended.values()) - delivered - cancelled
    return [minute["accepted"], delivered, cancelled, others, minute.get("retried", 0)]


def _quantiles(histogram: Histogram) -> dict[str, Any]:
    shares = {f"p{round(share * 100)}": histogram.quantile_s(share) for share in (0.5, 0.99)}
    return {"count": histogram.counts.total(), "sum": round(histogram.sum_s, 6), **shares}


def _in_queue(now: Now) -> list[Waits]:
    """Return the waits of queued jobs: for `rq resume`, or for a worker."""
    held = sum(now.suspended.values())
    return sum_up([Waits("queue", RESUME, held), Waits("queue", IN_QUEUE, now.queued - held)])


def _now(now: Now) -> dict[str, Any]:
    limits = [what for kind, what, _ in now.waits if kind == "rule"][:MAX_LIMITS]
    return {
        "lanes": {name: asdict(lane) for name, lane in now.lanes.items()},
        "queued": now.queued,
        "later": now.later,
        "in_flight": now.in_flight,
        "overdue": now.overdue,
        "oldest_due": now.oldest_due_s,
        "oldest_queued": now.oldest_queued_s,
        "suspended": bool(now.suspended),
        "suspended_in": now.suspended_in,
        "works": now.works,
        "waits": [each._asdict() for each in [*with_limits(now.waits, limits), *_in_queue(now)]],
        "looked": moment(now.looked_us) if now.looked_us else None,
        "routes": [held.as_json() for held in worst(now.routes).values()],
        "pauses": [held.as_json() | {"lacks": now.unpaused.get(held.route, [])} for held in now.pauses],
        "workers": [asdict(worker) | {"healthy": worker.is_healthy()} for worker in now.workers],
        "totals": now.totals,
        "memory": {"used": now.memory[0], "max": now.memory[1]},
        "refuses": now.refuses,
        "refuses_in": now.refuses_in,
        "evicts": now.evicts,
        "unserved": now.unserved,
        "away": [{"partition": number, "why": why} for number, why in now.away.items()],
    }
