"""Records in the flat arguments and replies of scripts: Python and Lua read and write their fields by name.

In a script `ENDED.user` is the place, from 1, of the field `user` in an `Ended`, and `ENDED.n` how many fields it has.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

Text = str | bytes | int


class EnqueueFields(NamedTuple):
    """The arguments of *enqueue*; a Job for each notification follows.

    clock: '' for Redis's own, here and below.
    stamp: the time as RQ writes it, ISO 8601.
    max_waiting: how many may wait in all, or ''.
    keep: see ends.lua.
    keeps_history: '1' if `keep` keeps a history, or ''.
    """

    clock: Text
    dedupe_for_ms: Text
    stamp: Text
    max_waiting: Text
    keep: Text
    keeps_history: Text


@dataclass(slots=True)  # not frozen: that takes five times as long to make
class Job:
    """A notification for *enqueue*; `data` and `meta` are what RQ's JSON serializer writes. None is sent as ''.

    dedupe: its key, with its user.
    targets: see targets.lua; '' from a plain producer.
    overflow: what happens if no more may wait: reject, drop_oldest or collapse; None without a limit.
    max_waiting: how many may wait for its user.
    category: as in its meta; '' if the category does not decide the queue, see *lane_of* of enqueue.lua.
    tagged: its user, if it has tags.
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

    max_jobs: how many jobs may be put in backlogs, and how many may be leased.
    leads: '1' for an idle leader, see idle_leaders.lua.
    claimant: see claims.lua.
    keep: see ends.lua.
    rooms: JSON {route: how many more the caller may send by it}, or ''.
    rules: see rule_table.lua. If a job's category is not among them, *steer* writes 'default' into its meta before it
    enters a backlog.
    rates: the version of the published rates that the caller has read; '' if there were none.
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
    rates: Text


class SettleFields(NamedTuple):
    """The arguments of *settle*; an Ended for each job follows.

    keep: see ends.lua. rules: see rule_table.lua. numbers: JSON {field: number} to add to the minute, see minute.lua.
    """

    clock: Text
    keep: Text
    worker: Text
    rules: Text
    keep_feedback_ms: Text
    numbers: Text


class RunFields(NamedTuple):
    """The arguments of *rq_run*.

    noted: the job's push_history when RQ got it, or ''.
    ahead_us: how far the permit is dated ahead while the job runs; '' if it has ended. The rest is for its end:
    reached: 1 if it may have reached the user, and counts from now on.
    outcome: under which it is counted.
    is_end: 0 if RQ tries the job again.
    handed: see history.lua.
    version: of the worker's rules.
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

    rules, of_category: policies as JSON, see `policy_json`.
    bypass: 1 if the category bypasses the user's rules.
    days: JSON {unit of a calendar window: [when the current day, week or month began, when it ends]}.
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
    """The arguments of *circuit*.

    who: the name of the worker, or of the person.
    route: a route, or the name of a pause.
    seen: 'down' | 'up' (the provider answered) | 'next' (the probe reached nobody, or failed by its own fault: another
    may go at once) | 'retry' (probe now) | 'pause' | 'resume' (by a person, see routes.lua).
    reason: of 'down' and 'pause'.
    lasts_us: of 'pause'; 0 without end.
    kind: of 'down': 'unreachable' | 'fault' | 'failing' | 'full' (the provider takes no more for now).
    first_us, max_us: the wait before the first probe, which grows by half up to max_us.
    share: thousandths of that wait, as jitter.
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
    """A job that *renew* keeps in flight. answered: JSON of its devices' final answers, or ''."""

    id: Text
    permit: Text
    user: Text
    category: Text
    answered: Text


class ForgetFields(NamedTuple):
    """The arguments of *forget*; the configured categories follow.

    place: where to look, from an earlier reply; '' to begin.
    cursor: in this place; '0' to begin.
    at_once: about how many entries a call reads.
    sends: 'delete', 'hide' or 'leave' the times of the user's sends.
    salt: for the hash of the user's name, see forgotten.lua.
    """

    clock: Text
    user: Text
    place: Text
    cursor: Text
    at_once: Text
    sends: Text
    salt: Text


class PreferFields(NamedTuple):
    """The arguments of *prefer*. before: the text that the caller has read, or ''. after: the new text, or ''.

    who: the person who changes it, for the log; or ''.
    """

    clock: Text
    user: Text
    before: Text
    after: Text
    who: Text


class Ended(NamedTuple):
    """A job that is settled.

    label: '<category>|<route>' under which it is counted, or ''.
    handed: '<µs since the provider got it> <answers>' for the history, or ''.
    more: JSON with further details, see settle.lua; '' for a plain delivery.
    """

    id: Text
    permit: Text
    user: Text
    category: Text
    label: Text
    handed: Text
    more: Text


class Leased(NamedTuple):
    """A job that this worker may send once, under `permit`.

    left_us: until it expires; None if it never does.
    since_us: since when a job that waited was due. The fields from here on are in a reply only if one of them is set.
    shut: the routes by which it may not go now; the others take it meanwhile.
    stands_for: 1, and the number of jobs that it superseded.
    dropped: why it is not to be sent, see `history.why_dropped`; '' if it is.
    refusals: how many refusals spent no attempt so far.
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
    """The reply of *pull*; pull.lua describes the fields. asked: (job id, data or b'', zone or '').

    next_us: None if nothing waits. shut: None if nobody looked. rates: None if unchanged. unread: of `calls.Plain`.
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
