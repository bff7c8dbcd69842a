"""The places of fields in the flat arguments and replies of scripts: both sides read and write these by their names.

In a script `ENDED.user` is the place of the field `user` in an `Ended`, from 1, and `ENDED.n` how many fields it has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

Text = str | bytes | int


class EnqueueFields(NamedTuple):
    """The arguments of *enqueue*; a Job for each notification follows.

    clock: '' for Redis's own, here and below. stamp: now as RQ writes it, ISO 8601. max_waiting: how many may wait in
    all, or ''. keep: see ends.lua. keeps_history: '1' if it says so, or ''.
    """

    clock: Text
    dedupe_for_ms: Text
    stamp: Text
    max_waiting: Text
    keep: Text
    keeps_history: Text


@dataclass(slots=True)  # not frozen: that takes five times as long to make
class Job:
    """A notification as *enqueue* takes it: `data` and `meta` as RQ's JSON serializer writes them. '' stands for None.

    dedupe: its key, with its user. targets: see targets.lua; '' where the producer is not ours. overflow: reject,
    drop_oldest or collapse, where no more may wait; None where any number may. max_waiting: how many of its user's may.
    category: as in its meta; '' where it has no say in which queue the job stands, see *lane_of* of enqueue.lua.
    tagged: its user, where it has tags.
    """

    id: str
    lane: str
    data: bytes
    meta: bytes
    expires_in_us: int | None = None
    send_at_us: int | None = None
    dedupe: str = ""
    targets: str = ""
    overflow: str | None = None
    max_waiting: int | None = None
    category: str = ""
    tagged: str = ""

    @property
    def user(self) -> str:
        return str(json.loads(self.meta)["user"])


class PullFields(NamedTuple):
    """The arguments of *pull*; the caller's lanes follow, the most urgent first.

    max_jobs: most that are put in backlogs, and that are leased. leads: '1' for an idle leader, see idle_leaders.lua.
    claimant: see claims.lua. keep: see ends.lua. rooms: the routes by which the caller may send so many more and no
    more, JSON {route: how many}, or ''. rules: of everyone, see rule_table.lua; for a category that is not among them
    *steer* is to say in the job's meta that it is as 'default' before it comes to a backlog.
    targets: of jobs that an earlier reply asked for, JSON {job id: targets}, see targets.lua; or ''.
    rates: the version of the published rates that the caller has looked at; '' if there were none.
    """

    clock: Text
    max_jobs: Text
    lease_us: Text
    leads: Text
    worker: Text
    claimant: Text
    keep: Text
    rooms: Text
    rules: Text
    targets: Text
    rates: Text


class SettleFields(NamedTuple):
    """The arguments of *settle*; an Ended for each job follows.

    keep: see ends.lua. rules: see rule_table.lua. numbers: to add to those of the minute, JSON {field: how many}, see
    minute.lua.
    """

    clock: Text
    keep: Text
    worker: Text
    rules: Text
    keep_feedback_ms: Text
    numbers: Text


class RunFields(NamedTuple):
    """The arguments of *rq_run*. ahead_us: how far its permit is dated ahead while the job runs; '' where it has ended.

    noted: push_history as it was when it was handed to RQ, or ''. The rest where it has ended:
    reached: 1 where it may have reached the user, and counts from now on. outcome: under which it is counted. is_end:
    0 where RQ tries it again. handed: see history.lua. version: of the worker's rules.
    """

    clock: Text
    permit: Text
    user: Text
    category: Text
    job_id: Text
    noted: Text
    ahead_us: Text = ""
    reached: Text = ""
    outcome: Text = ""
    keep: Text = ""
    is_end: Text = ""
    handed: Text = ""
    worker: Text = ""
    version: Text = ""


class AcquireFields(NamedTuple):
    """The arguments of *acquire*. take: 1 to take the permit, 0 to look only.

    rules, of_category: policies, JSON, see `policy_json`. bypass: 1 where the category bypasses the user's rules.
    days: JSON {unit of calendar windows: from when until when the one of now is}.
    """

    clock: Text
    permit: Text
    cost: Text
    take: Text
    rules: Text
    of_category: Text
    bypass: Text
    user: Text
    days: Text


class CircuitFields(NamedTuple):
    """The arguments of *circuit*. who: the worker's name, or the person's. route: or the name of a pause.

    seen: 'down' | 'up' (the provider answered) | 'next' (its probe was sent to nobody, or ended by its own fault:
    another may go at once) | 'retry' (probe now) | 'pause' | 'resume' (by a person, see routes.lua). reason: of 'down'
    and 'pause'. lasts_us: of 'pause', 0 without end. kind: of 'down', 'unreachable' | 'fault' | 'failing' | 'full' (the
    provider takes no more for now); first_us: to its first probe, by halves to max_us; share: thousandths of these to
    wait, as jitter.
    """

    clock: Text
    who: Text
    route: Text
    seen: Text
    reason: Text = ""
    lasts_us: Text = 0
    kind: Text = ""
    first_us: Text = 0
    max_us: Text = 0
    share: Text = 1000


class FlightFields(NamedTuple):
    """A job that *renew* keeps in flight. answered: JSON of what its devices answered finally, or ''."""

    id: Text
    permit: Text
    user: Text
    category: Text
    answered: Text


class ForgetFields(NamedTuple):
    """The arguments of *forget*; the configured categories follow.

    place: to look through, of an earlier reply; '' to begin. cursor: in it, '0' to begin. at_once: about how many to
    look at. sends: what becomes of when something was sent: 'delete', 'hide' or 'leave'. salt: to make hashes with, see
    forgotten.lua.
    """

    clock: Text
    user: Text
    place: Text
    cursor: Text
    at_once: Text
    sends: Text
    salt: Text


class PreferFields(NamedTuple):
    """The arguments of *prefer*. before: what the caller has read, or ''. after: what is to stand there, or ''.

    who: changes it, for the log; or ''.
    """

    clock: Text
    user: Text
    before: Text
    after: Text
    who: Text


class Ended(NamedTuple):
    """A job that is settled.

    label: '<category>|<route>' to count it under, or ''. handed: '<µs since it was handed over> <answers>' for the
    history, or ''. more: JSON of what else there is to tell, see settle.lua; '' where it was delivered.
    """

    id: Text
    permit: Text
    user: Text
    category: Text
    label: Text
    handed: Text
    more: Text


class Leased(NamedTuple):
    """A job that this worker may send once, under `permit`. left_us: until it expires; None is for ever.

    since_us: since when it was due, of what had waited. What stands behind is there if any of it is. shut: the routes
    that it is not to go by now; the others take it meanwhile. stands_for: how many, itself and those that it
    superseded. dropped: why it is not to be sent, see `history.why_dropped`; '' where it is. refusals: how often it was
    refused so far without an attempt being spent.
    """

    job_id: str
    permit: str
    user: str
    category: str
    data: bytes
    left_us: int | None
    since_us: int | None = None
    attempts: int = 0
    crashes: int = 0
    answered: bytes | None = None
    shut: frozenset[str] = frozenset()
    stands_for: int = 1
    dropped: str = ""
    refusals: int = 0


@dataclass(slots=True)
class Pulled:
    """The reply of *pull*; pull.lua tells what is in each field. asked: (job id, data or b'', zone or '').

    next_us: None where nothing is to come. shut, rates: None where there is nothing to tell. unread: `calls.Plain`.
    """

    now_us: int
    next_us: int | None
    suspended: bool
    leased: list[Leased]
    rooms: dict[str, int]
    rq_jobs: list[tuple[str, str]]
    taken: int
    shut: frozenset[str] | None
    orphans: list[Leased]
    idle: int
    unread: list[Any]
    asked: list[tuple[str, bytes, str]]
    chosen: list[tuple[str, str]]
    unpublished: bool
    queued: int
    rates: bytes | None


RECORDS: Final[Mapping[str, tuple[str, ...]]] = {
    "ACQUIRE": AcquireFields._fields,
    "CIRCUIT": CircuitFields._fields,
    "ENDED": Ended._fields,
    "ENQUEUE": EnqueueFields._fields,
    "FLIGHT": FlightFields._fields,
    "FORGET": ForgetFields._fields,
    "JOB": tuple(Job.__slots__),
    "LEASED": Leased._fields,
    "PREFER": PreferFields._fields,
    "PULL": PullFields._fields,
    "PULLED": tuple(Pulled.__slots__),
    "RUN": RunFields._fields,
    "SETTLE": SettleFields._fields,
}
