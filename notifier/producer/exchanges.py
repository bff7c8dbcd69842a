"""A producer's exchanges with one Redis, for `Notifier` and `AsyncNotifier` alike."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from redis.exceptions import RedisError

from notifier.errors import NotReplicatedError, OverloadedError, Refused
from notifier.forecast.expected import BEHIND_MANY, Expected, expect_later, find_forecast
from notifier.limiter import Hold
from notifier.notification.job import decode_reason, read_meta
from notifier.producer.cancel import Cancellation
from notifier.producer.events import Ended, read_ended
from notifier.producer.feedback import Gone, read_gone
from notifier.producer.memory_limit import MemoryLimit
from notifier.producer.permits import Asked, UserPermit, acquire, refund
from notifier.producer.stream import Reader, check_reader, find_each
from notifier.producer.users import Edit, nothing, unchanged
from notifier.queue import backlogs, calls
from notifier.queue.circuits import Held, find_routes
from notifier.queue.forget import ForgottenPage, Sends, forget
from notifier.queue.history import Record, as_due, decode_records, history_keys, name_those_before, so_far
from notifier.queue.preferences import prefer
from notifier.queue.retention import Retention
from notifier.queue.waits import OF_LATER, describe_later
from notifier.queue.walk import Kind, Met, Walk
from notifier.rules.preferences import Preferences
from notifier.scripts.keys import in_force, job_key, redis_key, rq_key
from notifier.scripts.loader import run_async
from notifier.scripts.records import Job
from notifier.scripts.rule_table import decoded
from notifier.store.cluster import times_connected
from notifier.store.connection import unreadable
from notifier.store.exchange import Commands, Exchange, Item, Once, Search
from notifier.units import clock_us, from_bytes, moment

if TYPE_CHECKING:
    from notifier.settings import Settings

CHUNK: Final = 100  # notifications that one call enqueues or cancels: about a millisecond of Redis's time
LOOK: Final = 500  # users in one step

State = Literal[
    "queued", "waiting", "sending", "delivered", "rejected", "expired", "cancelled", "superseded", "dropped", "failed"
]
OF_RQ: Final[Mapping[str, State]] = {
    "queued": "queued",
    "started": "sending",
    "canceled": "cancelled",
    "finished": "delivered",  # a throttled function
    "stopped": "failed",
}
OF_RQ_RUN: Final = frozenset({"finished", "stopped"})
UNDELIVERED: Final[Mapping[bytes | None, State]] = {b"rejected": "rejected", b"expired": "expired"}
FIELDS: Final = (
    "status",
    "push_outcome",
    "push_attempts",
    "push_by",
    "push_reason",
    "push_permit",
    "meta",
    "push_rq_job",
)
UNENDED: Final = frozenset({"queued", "waiting", "sending"})


@dataclass(frozen=True, slots=True)
class Status:
    """The state of a notification.

    expected_at: when it should go, if it waits.
    reason: why it was not delivered.
    settled_at: when it was delivered.
    attempts: how many it has used so far.
    superseded_by: the job that took its place.
    not_before: a reason, other than the user's rules, for which it may go later than `expected_at`; None if there is
    none.
    held_by: the rule of the user or category for which it waits the longest, such as 'user 10/1m'; None if it waits for
    none.
    record: what has held it back so far, and how it ended; None if that is not known, or no history is kept.
    """

    job_id: str
    state: State
    expected_at: datetime | None = None
    settled_at: datetime | None = None
    reason: str | None = None
    attempts: int = 0
    superseded_by: str | None = None
    not_before: str | None = None
    held_by: str | None = None
    record: Record | None = None


class Exchanges:
    """The exchanges with one Redis, by the settings."""

    def __init__(self, settings: Settings) -> None:
        self.use(settings)

    def use(self, settings: Settings) -> None:
        self.settings = settings
        self._keep = Retention.of(settings)
        self._memory_limits: dict[str, MemoryLimit] = {}  # by partition
        self._policies = settings.policies()
        self.waits_for_replicas = settings.redis.wait_replicas > 0

    def cancel(self, job_ids: Sequence[str]) -> Exchange[list[backlogs.Cancelled]]:
        answers: list[backlogs.Cancelled] = []
        for first in range(0, len(job_ids), CHUNK):
            answers += yield backlogs.cancel(job_ids[first : first + CHUNK], self._keep)
        return answers

    def cancel_of(self, user: str, kind: Kind) -> Exchange[Cancellation]:
        answers: dict[str, backlogs.Cancelled] = {}  # the walk may meet a notification twice, as it may move meanwhile

        def meet(met: Sequence[Met], _: int) -> Exchange[None]:
            job_ids = [each.job_id for each in met]
            told = zip(job_ids, (yield from self.cancel(job_ids)), strict=True)
            answers.update((job_id, answer) for job_id, answer in told if answer != "unknown")

        yield from Walk(kind, meet).of_user(user)
        return Cancellation.of([*answers], [*answers.values()])

    def prefer(self, user: str, edit: Edit, who: str = "") -> Exchange[Preferences]:
        """Change a user's choices, even if another caller does so meanwhile; return them."""
        # Read before the edit: an edit may refuse the choices that it changes, so it must not be given a guess.
        stands, now = yield Commands(lambda pipe: (pipe.hget(redis_key("preferences"), user), pipe.time()))
        before: str | None = from_bytes(stands or b"")
        while before is not None:
            made = edit(decoded(before), moment(clock_us(now)))
            if edit is unchanged:
                break
            before = yield prefer(user, before, made.encode(), who=who)
        return made

    def acquire(self, user: str, category: str) -> Exchange[UserPermit | Hold]:
        text, now = yield Commands(lambda pipe: (pipe.hget(redis_key("preferences"), user), pipe.time()))
        chosen = decoded(from_bytes(text or b""))
        call = acquire(Asked.of(self._policies, user, category, chosen, clock_us(now)))
        answer: UserPermit | Hold = yield Once(partial(run_async, call=call))
        return answer

    def refund(self, permit: UserPermit) -> Exchange[bool]:
        was_there: bool = yield refund(permit)
        return was_there

    def forget(self, user: str, *, hard: bool) -> Exchange[Cancellation]:
        cancelled = yield from self.cancel_of(user, Kind())
        yield from self.prefer(user, nothing)
        # A worker settles a notification in flight under the user's own name, so the sends must stay there. *hide* sees
        # that for a permit that is dated ahead, but not for one that has lapsed and is not yet taken over.
        sends: Sends = "delete" if hard else "leave" if cancelled.too_late else "hide"
        places = deque([""])
        while places:
            place, cursor, done = places.popleft(), "0", False
            while not done:
                call = forget(user, self._policies.categories, sends, place, cursor)
                page: ForgottenPage = yield call
                cursor, done = page.cursor, page.cursor == "0"
            places.extend(page.places)
        return cancelled

    def preferences(self) -> Search[tuple[str, Preferences]]:
        """Find the preferences of all users, some hundreds at a step."""
        cursor = -1
        while cursor:

            def ask(pipe: Any, at: int = max(cursor, 0)) -> None:
                pipe.hscan(redis_key("preferences"), at, count=LOOK)

            ((cursor, page),) = yield Commands(ask)
            for user, text in page.items():
                yield Item((from_bytes(user), decoded(from_bytes(text))))

    def routes(self) -> Exchange[list[Held]]:
        return find_routes()

    def feedback(self, group: str, consumer: str | None, *, follow: bool, lease: timedelta) -> Search[Gone]:
        return find_each(self._reader("feedback", group, consumer, lease), read_gone, follow=follow)

    def events(self, group: str, consumer: str | None, *, follow: bool, lease: timedelta) -> Search[Ended]:
        decode = partial(read_ended, self.settings.redis.partitions)
        return find_each(self._reader("events", group, consumer, lease), decode, follow=follow)

    def _reader(self, stream: str, group: str, consumer: str | None, lease: timedelta) -> Reader:
        check_reader(group, consumer, lease)
        return Reader(redis_key(stream), group, consumer, lease, self.settings.redis.socket_timeout_us / 1e6)

    def enqueue(self, jobs: Sequence[Job]) -> Exchange[list[str]]:
        """Accept jobs; see `calls.enqueue`. If `waits_for_replicas`, the caller runs this on one connection.

        Raises OverloadedError, and NotReplicatedError.
        """
        if text := self.settings.redis.max_memory:
            yield from self._memory_limits.setdefault(in_force().ours, MemoryLimit(text)).check(jobs)
        call = calls.enqueue(
            jobs,
            dedupe_for_us=self.settings.dedupe_for_us,
            stamp=f"{datetime.now(UTC).isoformat(timespec='microseconds')[:-6]}Z",
            max_waiting=self.settings.max_waiting_here,
            keep=self._keep,
        )
        count, is_kept = self.settings.redis.partitions, False
        while not is_kept:
            answers: list[str | Refused] = yield call
            is_kept = True
            if self.waits_for_replicas and (job_ids := accepted(answers)):
                times = yield Once(times_connected)
                yield from self._wait_for_replicas(job_ids, refused(answers, count))
                # If it has connected anew, the replicas are another's: what the first one took may be lost.
                is_kept = (yield Once(times_connected)) == times
        return all_accepted(answers, count)

    def _wait_for_replicas(self, job_ids: list[str], over: list[Refused]) -> Exchange[None]:
        settings = self.settings.redis
        # Half the connection's timeout, so that the answer comes before that.
        timeout_ms = settings.socket_timeout_us // 2000
        try:
            # From Redis 7.2 on, WAIT counts the replicas that have the last write of its connection, and `enqueue`
            # writes nothing for a known job: so write here. `Once`: a repeat may get a connection that wrote nothing.
            yield Once(lambda client: client.hincrby(redis_key("stats"), "accepted", 0))
            have = yield Once(lambda client: client.wait(settings.wait_replicas, timeout_ms))
        except RedisError as error:
            raise NotReplicatedError(job_ids, f"Redis did not answer WAIT: {error}", over) from error
        if have < settings.wait_replicas:
            raise NotReplicatedError(job_ids, f"{have} of {settings.wait_replicas} replicas have it so far", over)

    def history(self, user: str, since: timedelta | None = None) -> Exchange[list[Record]]:
        def ask(pipe: Any) -> None:
            pipe.time()
            for key in history_keys(user):
                pipe.lrange(key, 0, -1)

        now, *lists = yield Commands(ask)
        kept, now_us = self.settings.history, clock_us(now)
        within = timedelta.max if since is None else max(since, timedelta())
        oldest = moment(now_us) - min(timedelta(microseconds=kept.keep_us), within)
        found = decode_records(user, (entry for entries in lists for entry in entries))
        newest = sorted(
            (each for each in found if each.ended_at >= oldest), key=lambda each: each.ended_at, reverse=True
        )
        return name_those_before(newest)[: kept.max]

    def status(self, job_id: str, user: str | None = None) -> Exchange[Status | None]:
        try:
            return (yield from self._status_and_record(job_id, user))
        except (ValueError, OverflowError) as error:
            raise unreadable(error) from error

    def _status_and_record(self, job_id: str, user: str | None) -> Exchange[Status | None]:
        found = yield from self._status(job_id)
        key = job_key(job_id)
        (meta, noted), now = yield Commands(lambda pipe: (pipe.hmget(key, "meta", "push_history"), pipe.time()))
        steering = read_meta(meta or b"")
        owner = user or steering.get("user")
        if not isinstance(owner, str):
            return found
        if found is not None and found.state in UNENDED:
            category, now_us = str(steering.get("category", "default")), clock_us(now)
            if not noted:
                return found
            if found.state == "sending" and b" " not in noted:
                noted += b" 0 f"  # the scripts note that a worker took it only after a delay, and there was none
            waits = so_far(owner, category, job_id, noted, now_us)
            records = (yield from self.history(owner)) if any(each.why == "backlog" for each in waits.delays) else []
            told = name_those_before([waits, *records])[0]
            is_due = found.expected_at and not found.held_by and found.expected_at <= told.ended_at
            return replace(found, record=as_due(told) if is_due else told)
        records = yield from self.history(owner)
        record = next((each for each in records if each.job_id == job_id), None)
        if found is None and record is not None:
            found = Status(job_id, cast("State", record.outcome), settled_at=record.ended_at)
        return found and replace(found, record=record)

    def _status(self, job_id: str) -> Exchange[Status | None]:
        def ask(pipe: Any) -> None:
            pipe.hmget(job_key(job_id), FIELDS)
            pipe.zscore(redis_key("delivered"), job_id)

        (status, outcome, attempts, by, why, permit, meta, throttled), delivered_us = yield Commands(ask)
        if status is None:
            return None if delivered_us is None else Status(job_id, "delivered", settled_at=moment(delivered_us))
        spent = int(attempts or 0)
        word = status.decode()
        if word == "scheduled":
            expected = yield from self._expected(job_id, meta)
            return Status(
                job_id,
                "waiting",
                expected_at=expected.at,
                attempts=spent,
                not_before=expected.not_before or None,
                held_by=expected.held_by or None,
            )
        if word == "failed":
            (results,) = yield Commands(lambda pipe: pipe.xrevrange(rq_key("results", job_id), count=1))
            text = results[0][1].get(b"exc_string") if results else None
            state = UNDELIVERED.get(outcome, "failed")
            return Status(job_id, state, reason=decode_reason(text) if text else None, attempts=spent)
        if word in OF_RQ_RUN and (throttled is None or throttled.startswith(b"0")):  # RQ's own job: nothing limited it
            return None
        return _ended(job_id, word, outcome, spent, by=by, why=why, permit=permit)

    def _expected(self, job_id: str, meta: bytes | None) -> Exchange[Expected]:
        later, (origin, order) = yield Commands(
            lambda pipe: (pipe.zscore(redis_key("later"), job_id), pipe.hmget(job_key(job_id), "origin", "push_order"))
        )
        if later is None and order is None:  # RQ's enqueue_in has put it into RQ's registry
            (at_s,) = yield Commands(lambda pipe: pipe.zscore(rq_key("scheduled", from_bytes(origin or b"")), job_id))
            later = at_s and at_s * 1e6
        if later is not None:
            (noted,) = yield Commands(lambda pipe: pipe.hmget(job_key(job_id), *OF_LATER))
            waits_for_route = describe_later(later, *noted)[0] == "route"
            return expect_later(later, noted, (yield from find_routes()) if waits_for_route else ())
        user = read_meta(meta or b"").get("user")
        if not isinstance(user, str):  # of a plain producer
            return Expected(None)
        forecast = yield from find_forecast(self._policies, user)
        return forecast.by_job.get(job_id) or Expected(None, BEHIND_MANY)


def _ended(
    job_id: str, word: str, outcome: bytes, spent: int, *, by: bytes | None, why: bytes | None, permit: bytes | None
) -> Status | None:
    if by is not None and outcome == b"superseded":
        return Status(job_id, "superseded", superseded_by=by.decode(), attempts=spent)
    if why is not None and outcome == b"dropped":
        return Status(job_id, "dropped", reason=why.decode(), attempts=spent)
    # None: RQ has more states, but only for jobs of other functions.
    state = OF_RQ.get(word)
    if state == "cancelled" and permit is not None:  # RQ's own cancel came while a worker had it
        state = "sending"
    return None if state is None else Status(job_id, state, attempts=spent)


def accepted(answers: Sequence[str | Refused]) -> list[str]:
    """The job ids of the accepted notifications."""
    return [answer for answer in answers if isinstance(answer, str)]


def all_accepted(answers: Sequence[str | Refused], partitions: int = 1) -> list[str]:
    """The job ids; raise OverloadedError if some were refused. partitions: how many the fleet has."""
    if over := refused(answers, partitions):
        raise OverloadedError(over, len(answers))
    return accepted(answers)


def refused(answers: Sequence[str | Refused], partitions: int) -> list[Refused]:
    """The refusals, with their places. partitions: how many the fleet has."""
    found = ((n, answer) for n, answer in enumerate(answers) if isinstance(answer, Refused))
    return [replace(answer, place=n, partitions=partitions) for n, answer in found]
