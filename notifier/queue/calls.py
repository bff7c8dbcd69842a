"""The calls by which notifications move: enqueue, pull, settle. One round trip each.

Each function builds a `Call`. `run` runs it on a synchronous client, `run_async` on an asyncio client. The scripts of
the same names state the contracts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple, cast

from notifier.errors import Limit, Refused
from notifier.notification import Device
from notifier.queue.history import Handed, why_dropped
from notifier.queue.retention import KEEP_NOTHING, Retention
from notifier.scripts.loader import Call, script
from notifier.scripts.records import Ended, EnqueueFields, Job, Leased, Pulled, PullFields, SettleFields
from notifier.scripts.rule_table import RuleTable
from notifier.units import from_bytes, to_bytes

DELIVERED: Final = (True, "delivered", "delivered", "", "")  # reached, state, word, detail, answered

FIELDS_OF_JOB: Final = attrgetter(*Job.__slots__)
COMMON: Final = Leased._fields.index("attempts")  # most jobs have no fields from here on
State = Literal["delivered", "failed", "dropped", "later", "wait", "backlog", "queue", "aside", "handed_to_rq"]


def enqueue(
    jobs: Sequence[Job],
    *,
    dedupe_for_us: int,
    stamp: str,
    max_waiting: int | None = None,
    keep: Retention = KEEP_NOTHING,
    clock: str = "",
) -> Call[list[str | Refused]]:
    """Accept jobs. The reply has for each its id, the id of the earlier job with its dedupe key, or the refusal.

    max_waiting: how many may wait in all. keep: for how long jobs are kept that are dropped to make room.
    """
    in_all = "" if max_waiting is None else max_waiting
    keeps_history = "1" if keep.history_us else ""
    args = [*EnqueueFields(clock, -(-dedupe_for_us // 1000), stamp, in_all, keep.encode(), keeps_history)]
    for job in jobs:
        args += ["" if field is None else field for field in FIELDS_OF_JOB(job)]
    return Call(script("enqueue"), [], args, lambda reply: [_answer(*both) for both in zip(reply, jobs, strict=True)])


class Plain(NamedTuple):
    """A job of a plain producer, as Redis has it. Its meta does not name a user."""

    job_id: bytes
    data: bytes
    meta: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """The worker that calls.

    lanes: the most urgent first.
    lease_us: how long it leases the jobs that it takes.
    claimant: see claims.lua; '' is the worker's name.
    keep: how long ended jobs are kept.
    leads: whether it leads the idle workers of its lanes, see idle_leaders.lua.
    clock: for tests alone, µs in place of Redis's clock.
    rates: the version of the published rates that it has read.
    """

    name: str = ""
    lanes: Sequence[str] = ()
    lease_us: int = 0
    claimant: str = ""
    keep: Retention = KEEP_NOTHING
    leads: bool = False
    clock: str = ""
    rates: bytes = b""


class Room(NamedTuple):
    """How many jobs a worker may take, in all and by route; a route that is not named takes any number."""

    max_jobs: int
    by_route: Mapping[str, int] | None = None


def pull(worker: Worker, room: Room, rules: RuleTable) -> Call[Pulled]:
    """Lease the new and waiting jobs that may go now, and put the other new ones into their users' backlogs."""
    args = PullFields(
        *(worker.clock, room.max_jobs, worker.lease_us, int(worker.leads), worker.name),
        claimant=worker.claimant or worker.name,
        keep=worker.keep.encode(),
        rooms=json.dumps(room.by_route) if room.by_route else "",
        rules=rules.text,
        rates=worker.rates,
    )
    return Call(script("pull"), [], [*args, *worker.lanes], _pulled)


def _pulled(reply: list[Any]) -> Pulled:
    of: Any = Pulled(*reply)
    of.next_us = None if of.next_us < 0 else of.next_us
    of.suspended, of.unpublished = bool(of.suspended), bool(of.unpublished)
    of.leased, of.orphans = [*map(_leased, of.leased)], [*map(_leased, of.orphans)]
    of.rooms = {from_bytes(route): left for route, left in _in_turn(of.rooms, 2)}
    of.shut = None if of.shut is None else frozenset(map(from_bytes, of.shut))
    of.unread = [Plain(*job) for job in of.unread]
    of.asked = [(from_bytes(job), data, from_bytes(zone)) for job, data, zone in _in_turn(of.asked, 3)]
    of.rq_jobs, of.chosen = _pairs(of.rq_jobs), _pairs(of.chosen)
    return cast("Pulled", of)


def _in_turn(flat: list[Any], n: int) -> Iterator[list[Any]]:
    return (flat[i : i + n] for i in range(0, len(flat), n))


@dataclass(frozen=True, slots=True)
class DeadToken:
    """A token that its provider called dead. gone_at_us: since when; None if the provider does not say: since now."""

    device: Device
    app: str | None
    reason: str
    gone_at_us: int | None = None


class Settlement(NamedTuple):
    """The end of a leased job; see *settle* for the states.

    gone: dead tokens for the feedback.
    route: its route, for the numbers; routes of several devices with + between.
    handed: when its providers got it, by the clock of `Measured.now_s`, and their answers; None if they did not get it.
    poison: it is set aside, because workers died on it.
    """

    job_id: str
    permit: str
    user: str
    category: str
    reached: bool
    state: State
    word: str = ""
    detail: str | int = ""
    answered: str = ""
    gone: tuple[DeadToken, ...] = ()
    route: str = ""
    handed: Handed | None = None
    poison: bool = False


class Measured(NamedTuple):
    """A worker's measurements, for the numbers of this minute, see `minute.lua`.

    labels: under which each settlement is counted; '' counts nothing.
    numbers: to add.
    now_s: the time, by the clock of `Settlement.handed`.
    """

    labels: Sequence[str]
    numbers: Mapping[str, int] = MappingProxyType({})
    now_s: float = 0.0


def settle(
    settlements: Sequence[Settlement],
    rules: RuleTable,
    worker: Worker,
    measured: Measured | None = None,
) -> Call[list[bool]]:
    """Close permits. The reply has for each whether this worker still had the lease.

    measured: counted in this minute's numbers.
    """
    keep = worker.keep
    labels, numbers, now_s = measured or Measured([""] * len(settlements))
    of_call = SettleFields(
        *(worker.clock, keep.encode(), worker.name, rules.text),
        keep_feedback_ms=-(-keep.feedback_us // 1000),
        numbers=json.dumps(dict(numbers)),
    )
    args = [*of_call]
    for s, label in zip(settlements, labels, strict=True):
        args += Ended(
            to_bytes(s.job_id),
            s.permit,
            to_bytes(s.user),
            to_bytes(s.category),
            to_bytes(label),
            _handed(s.handed, now_s) if keep.history_us and s.handed else "",
            _more(s),
        )
    return Call(script("settle"), [], args, lambda reply: [bool(mine) for mine in reply])


def _handed(handed: Handed, now_s: float) -> str:
    return f"{max(0.0, now_s - handed.at) * 1e6:.0f} {handed.encode()}"


def _more(settlement: Settlement) -> bytes | str:
    """The details that only some settlements have; '' for a plain delivery."""
    said = settlement[4:9]
    if said == DELIVERED and not settlement.gone:
        return ""
    more: dict[str, Any] = dict(zip(("reached", "state", "word", "detail", "answered"), said, strict=True))
    if settlement.gone:
        more["gone"] = _gone(settlement.gone)
    return to_bytes(json.dumps(more, ensure_ascii=False))


def _gone(tokens: Iterable[DeadToken]) -> list[tuple[str, ...]]:
    # Times as text: Lua would print a number of this size with an exponent.
    return [
        (t.device.platform, t.device.token, t.app or "", t.reason, "" if t.gone_at_us is None else str(t.gone_at_us))
        for t in tokens
    ]


def _leased(entry: list[Any]) -> Leased:
    job_id, permit, user, category = [each.decode("utf-8", "surrogateescape") for each in entry[:4]]  # as `from_bytes`
    of = Leased(job_id, permit, user, category, *entry[4:])
    if len(entry) <= COMMON:
        return of
    shut, dropped = cast("bytes | None", of.shut), cast("bytes | None", of.dropped)
    return of._replace(
        attempts=of.attempts or 0,
        crashes=of.crashes or 0,
        shut=frozenset(from_bytes(shut).split()) if shut else frozenset(),
        stands_for=of.stands_for or 1,
        dropped=why_dropped(from_bytes(dropped), category) if dropped else "",
        refusals=of.refusals or 0,
    )


def _pairs(flat: list[Any]) -> list[tuple[str, str]]:
    return [(from_bytes(first), from_bytes(second)) for first, second in _in_turn(flat, 2)]


def _answer(reply: bytes | str, job: Job) -> str | Refused:
    answer = from_bytes(reply)
    if not answer.startswith("!"):
        return answer
    limit, waiting, most = answer[1:].split()
    return Refused(job.user, cast("Limit", limit), int(waiting), int(most))
