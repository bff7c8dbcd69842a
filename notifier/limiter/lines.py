"""The calls by which notifications move: enqueue, pull, admit, settle, cancel. One round trip each.

Each function builds a `Call`; who holds a synchronous client runs it by `run`, who holds an asyncio one by
`run_async`. The contracts stand in the scripts of the same names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

from notifier.limiter.redis import policy_array
from notifier.limiter.scripts import Call, script
from notifier.notification import Device
from notifier.policy import LANES, Policies, Policy

Cancelled = Literal["cancelled", "sending", "ended", "unknown"]
State = Literal["delivered", "failed", "later", "wait", "line", "queue", "held"]


class RuleTable:
    """The rules as *admit* and *settle* take them: the categories' encoded once, the users' for each call."""

    def __init__(self, policies: Policies, lanes: Sequence[str] = LANES) -> None:
        self._policies = policies
        categories = policies.categories.values()
        of_category = ",".join(f"{json.dumps(c.name)}:{policy_array(c.policy)}" for c in categories)
        bypass = json.dumps({c.name: True for c in categories if c.bypass})
        all_lanes = json.dumps([*LANES, *(lane for lane in lanes if lane not in LANES)])
        self._rest = f'"c":{{{of_category}}},"b":{bypass},"l":{all_lanes}'

    def encode(self, users: Iterable[str]) -> tuple[str, list[int]]:
        """The table for these users, and for each the index of its policy."""
        known: dict[Policy, int] = {}
        indexes = [known.setdefault(self._policies.for_user(user), len(known)) for user in users]
        return f'{{"u":[{",".join(map(policy_array, known))}],{self._rest}}}', indexes


@dataclass(frozen=True, slots=True)
class Job:
    """A notification as *enqueue* takes it: `data` and `meta` as RQ's JSON serializer writes them."""

    id: str
    lane: str
    data: bytes
    meta: bytes
    expires_in_us: int | None = None
    send_at_us: int | None = None
    dedupe: str = ""


def enqueue(jobs: Sequence[Job], *, dedupe_for_us: int, timeout_s: int, stamp: str, clock: str = "") -> Call[list[str]]:
    """Accept jobs; the reply holds for each its id, or the id of the earlier one with its dedupe key."""
    args: list[str | bytes | int] = [clock, -(-dedupe_for_us // 1000), timeout_s, stamp]
    for job in jobs:
        expires = "" if job.expires_in_us is None else job.expires_in_us
        send_at = "" if job.send_at_us is None else job.send_at_us
        args += (job.id, job.lane, job.data, job.meta, expires, send_at, job.dedupe)
    return Call(script("enqueue"), [], args, lambda reply: [_text(job_id) for job_id in reply])


@dataclass(frozen=True, slots=True)
class Pulled:
    """What *pull* found. Times in µs on Redis's clock; `next_us` is None where nothing is to come.

    users: (user, lane) to be looked at. stock: (job id, permit) of jobs that are not notifications.
    """

    now_us: int
    next_us: int | None
    users: list[tuple[str, str]]
    stock: list[tuple[str, str]]
    taken: int
    suspended: bool


def pull(*, most: int, lease_us: int, on_watch: bool, lanes: Sequence[str], clock: str = "") -> Call[Pulled]:
    """Line up what has arrived or fallen due, and name the users to look at."""

    def decode(reply: list[Any]) -> Pulled:
        now, next_us, users, stock, taken = reply
        suspended = isinstance(next_us, bytes | str)
        at = None if suspended or next_us < 0 else next_us
        return Pulled(now, at, _pairs(users), _pairs(stock), taken, suspended)

    return Call(script("pull"), [], [clock, most, lease_us, int(on_watch), *lanes], decode)


@dataclass(frozen=True, slots=True)
class Leased:
    """A job that this worker may send once, under `permit`. left_us: until it expires; None is for ever."""

    job_id: str
    permit: str
    user: str
    category: str
    data: bytes
    left_us: int | None
    attempts: int
    crashes: int
    answered: bytes | None


@dataclass(frozen=True, slots=True)
class Waiting:
    """A head that the rules hold back, and how long."""

    job_id: str
    user: str
    category: str
    time_left_us: int


@dataclass(frozen=True, slots=True)
class Admitted:
    """What *admit* gave out; `looks` counts the users who had nothing that might go."""

    now_us: int
    looks: int
    waiting: list[Waiting]
    leased: list[Leased]


def admit(
    users: Sequence[tuple[str, str]],
    rules: RuleTable,
    *,
    most: int,
    lease_us: int,
    worker: str,
    lanes: Sequence[str],
    clock: str = "",
) -> Call[Admitted]:
    """Take the heads that the rules admit of the lines of these (user, lane)."""
    table, indexes = rules.encode(user for user, _ in users)
    flat: list[str | int] = []
    for (user, lane), index in zip(users, indexes, strict=True):
        flat += (user, lane, index)
    args: list[str | bytes | int] = [clock, most, lease_us, worker, json.dumps(list(lanes)), table, json.dumps(flat)]

    def decode(reply: list[Any]) -> Admitted:
        now, looks, held = reply[:3]
        waiting = [
            Waiting(_text(held[i]), _text(held[i + 1]), _text(held[i + 2]), held[i + 3]) for i in range(0, len(held), 4)
        ]
        return Admitted(now, looks, waiting, [_leased(entry) for entry in reply[3:]])

    return Call(script("admit"), [], args, decode)


@dataclass(frozen=True, slots=True)
class DeadToken:
    """A token that its provider called dead. gone_at_us: since when, if the provider said so; else since now."""

    device: Device
    app: str | None
    reason: str
    gone_at_us: int | None = None


@dataclass(frozen=True, slots=True)
class Settlement:
    """What became of a leased job; see *settle* for the states. gone: what is told in the feedback."""

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


def settle(
    settlements: Sequence[Settlement],
    rules: RuleTable,
    *,
    worker: str,
    keep_failed_us: int,
    keep_delivered_us: int,
    keep_feedback_us: int,
    clock: str = "",
) -> Call[list[bool]]:
    """Close permits. The reply holds for each whether it was still this worker's to settle."""
    table, indexes = rules.encode(s.user for s in settlements)
    jobs = [
        (
            *(s.job_id, s.permit, s.user, s.category, index, int(s.reached), s.state, s.word, s.detail, s.answered),
            *([_gone(s.gone)] if s.gone else []),
        )
        for s, index in zip(settlements, indexes, strict=True)
    ]
    args: list[str | bytes | int] = [
        clock,
        -(-keep_failed_us // 1_000_000),
        keep_delivered_us,
        worker,
        table,
        json.dumps(jobs),
        -(-keep_feedback_us // 1000),
    ]
    return Call(script("settle"), [], args, lambda reply: [bool(mine) for mine in reply])


def cancel(job_id: str, *, keep_failed_us: int, clock: str = "") -> Call[Cancelled]:
    """Cancel one job; the reply is 'cancelled', 'sending', 'ended' or 'unknown'."""
    return Call(
        script("cancel"),
        [],
        [clock, job_id, -(-keep_failed_us // 1_000_000)],
        lambda reply: cast("Cancelled", _text(reply)),
    )


def begin(job_id: str, permit: str) -> Call[bool]:
    """Note that a suspect is being sent alone; the reply tells whether it is still this worker's to send."""
    return Call(script("begin"), [], [job_id, permit], bool)


def retime(lane: str, cursor: str, *, most: int, clock: str = "") -> Call[tuple[str, int]]:
    """Make about `most` of a lane's gates due; the reply holds the next cursor, '0' at the end, and how many moved."""
    return Call(script("retime"), [], [clock, lane, cursor, most], lambda reply: (_text(reply[0]), reply[1]))


def watch(worker: str, *, lapse_ms: int) -> Call[bool]:
    """Take or renew the watch; the reply tells whether it is this worker's."""
    return Call(script("watch"), ["notifier:watch"], [worker, lapse_ms], bool)


def relieve(worker: str) -> Call[bool]:
    """Give up the watch, if it is this worker's, and wake one idle worker."""
    return Call(script("relieve"), ["notifier:watch", "notifier:relief"], [worker], bool)


def _gone(tokens: Iterable[DeadToken]) -> list[tuple[str, ...]]:
    # Times as text: Lua would print a number of this size with an exponent.
    return [
        (t.device.platform, t.device.token, t.app or "", t.reason, "" if t.gone_at_us is None else str(t.gone_at_us))
        for t in tokens
    ]


def _leased(entry: list[Any]) -> Leased:
    job_id, permit, user, category, data, left, attempts, crashes, answered = entry
    return Leased(
        _text(job_id), _text(permit), _text(user), _text(category), data, left, int(attempts), int(crashes), answered
    )


def _pairs(flat: list[Any]) -> list[tuple[str, str]]:
    return [(_text(flat[i]), _text(flat[i + 1])) for i in range(0, len(flat), 2)]


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
