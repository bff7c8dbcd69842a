"""The producer's side: what `Notifier` promises, on a real Redis, with a real worker where one is needed."""

import asyncio
import json
import os
import signal
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq.job import Job, JobStatus
from rq.registry import CanceledJobRegistry, FailedJobRegistry, StartedJobRegistry
from rq.results import Result
from rq.serializers import JSONSerializer

from notifier import AsyncNotifier, Cancellation, InvalidNotificationError, Notification, Notifier, RedisUnusableError
from notifier.notification.job import decode_data
from notifier.producer.exchanges import CHUNK
from notifier.queue import calls
from notifier.rules.category import LANES
from notifier.simulators.wire import Reply
from notifier.testing import FakeNotifier
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.asking import InRedis
from tests.harness.processes import stop
from tests.harness.support import (
    WORKER,
    Simulators,
    apns,
    ends,
    eventually,
    fcm,
    note,
    notifier,
    queue,
    scheduled,
    state,
    worker,
    write_config,
)
from tests.harness.take import enter

RATES: dict[str, Any] = {
    "users": {"held": {"windows": ["1/1h"]}, "slow": {"windows": ["1/1h"]}},
    "categories": {
        "default": {"lane": "default"},
        "chat": {"lane": "urgent"},
        "brief": {"lane": "default", "expires": "200ms"},
        "once": {"lane": "default", "attempts": 1},
        "ring": {"lane": "urgent", "priority": "high"},
    },
}


@pytest.fixture
def config(tmp_path: Path, redis_server: EmbeddedRedis, simulators: Simulators) -> Path:
    # An answer that a test holds back is waited for until it is let go.
    patient = {"worker": {**WORKER, "lease": "70s"}}
    return write_config(tmp_path, redis_server.url, simulators.providers(timeout="60s"), **RATES, **patient)


def queued(redis: Any, lane: str = "default") -> list[str]:
    return [entry.decode() for entry in redis.lrange(f"rq:queue:{lane}", 0, -1)]


@pytest.mark.parametrize(
    ("category", "own", "expected"),
    [
        ("ring", None, "high"),
        ("ring", "normal", "normal"),
        ("chat", "high", "high"),
        ("chat", None, None),
    ],
)
def test_a_priority_is_for_the_lines_and_for_the_provider(
    redis: Redis, producer: Notifier, category: str, own: Any, expected: str | None
) -> None:
    """Its own, else its category's: in the meta, which the scripts read, and in the call, for the provider."""
    job_id = producer.send(note("ann", category=category, priority=own))
    data, meta = redis.hmget(f"rq:job:{job_id}", "data", "meta")
    assert decode_data(data)[1].get("priority") == expected
    assert json.loads(meta).get("priority") == ("high" if expected == "high" else None)


def test_a_million_would_not_sit_in_memory(redis: Redis, producer: Notifier) -> None:
    """`send_many` takes from a generator as it sends: never more than a chunk ahead, in memory that stays flat."""
    ahead: list[int] = []

    def many(count: int) -> Iterator[Notification]:
        for number in range(count):
            if number % 1_000 == 0:
                ahead.append(number - redis.llen("rq:queue:default"))
            yield note(f"user-{number}", "x" * 1_000)

    producer.send_many(many(CHUNK))  # what is loaded once is not what is measured
    redis.delete("rq:queue:default")
    tracemalloc.start()
    try:
        assert producer.send_many(many(6_000)) == 6_000
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert max(ahead) <= CHUNK
    assert peak < 2_000_000  # 6,000 notifications are at least 6 MB
    assert redis.llen("rq:queue:default") == 6_000


def test_redis_and_the_producer_work_at_the_same_time(
    redis: Redis, redis_server: EmbeddedRedis, producer: Notifier
) -> None:
    """The next are taken from the iterable while Redis has not answered for the hundred before."""

    def some() -> Iterator[Notification]:
        yield from (note(f"u{number}") for number in range(CHUNK - 1))
        stop(redis_server.pid)
        yield from (note(f"v{number}") for number in range(CHUNK - 1))
        os.kill(redis_server.pid, signal.SIGCONT)
        yield from (note(f"w{number}") for number in range(CHUNK))

    told: list[str] = []
    try:
        assert producer.send_many(some(), on_accepted=told.extend) == 3 * CHUNK - 2
    finally:
        os.kill(redis_server.pid, signal.SIGCONT)
    assert told == queued(redis)


def test_job_ids_are_told_in_order(redis: Redis, producer: Notifier) -> None:
    """`on_accepted` gets each chunk's job ids, in the order of the notifications, which is the queue's."""
    chunks: list[list[str]] = []
    assert (
        producer.send_many((note(f"u{n}") for n in range(250)), on_accepted=lambda ids: chunks.append(list(ids))) == 250
    )
    assert [len(chunk) for chunk in chunks] == [CHUNK, CHUNK, 50]
    assert [job_id for chunk in chunks for job_id in chunk] == queued(redis)
    assert producer.send_many([]) == 0


@pytest.mark.parametrize(("job_ids", "has"), [(["a"], "fewer"), (["a", "b", "c"], "more")])
def test_job_ids_are_as_many_as_notifications(redis: Redis, producer: Notifier, job_ids: list[str], has: str) -> None:
    """The error says so; those that have both are accepted."""
    with pytest.raises(ValueError, match=rf"^job_ids has {has} entries than there are notifications$"):
        producer.send_many([note("ann"), note("bea")], job_ids=job_ids)
    assert queued(redis) == job_ids[:2]


def test_all_before_a_bad_one_is_accepted(redis: Redis, producer: Notifier) -> None:
    """A bad notification in the middle is named by its place; all before it are accepted, none after is asked for."""
    asked: list[int] = []
    told: list[str] = []

    def some() -> Iterator[Notification]:
        for number in range(500):
            asked.append(number)
            yield note("" if number == 217 else f"u{number}")

    with pytest.raises(InvalidNotificationError) as caught:
        producer.send_many(some(), on_accepted=told.extend)
    assert caught.value.field == "notifications[217].user"
    assert len(asked) == 218
    assert len(told) == 217
    assert told == queued(redis)


def test_all_before_an_error_of_the_generator_is_accepted(redis: Redis, producer: Notifier) -> None:
    """Where the iterable itself breaks, all that it had given is accepted and told."""
    told: list[str] = []

    def some() -> Iterator[Notification]:
        yield from (note(f"u{number}") for number in range(130))
        raise LookupError("the database of users is gone")

    with pytest.raises(LookupError):
        producer.send_many(some(), on_accepted=told.extend)
    assert len(told) == 130
    assert told == queued(redis)


def test_every_state_is_told(redis: Redis, config: Path, producer: Notifier, simulators: Simulators) -> None:
    """`status` follows a notification through all its states."""
    assert producer.status("0" * 20) is None
    slow = apns("state-sending")
    release = simulators.hold(slow)
    dead = simulators.answer(fcm("state-dead"), Reply(404, "UNREGISTERED"))
    cut = simulators.answer(apns("state-cut"), Reply(0, drop=True))
    sent = producer.send(note("sent"))
    assert state(producer, sent) == "queued"
    soon = datetime.now(UTC) + timedelta(hours=1)
    later = producer.send(note("later", send_at=soon))
    waiting = producer.status(later)
    assert waiting.state == "waiting"
    assert waiting.expected_at is not None
    assert abs(waiting.expected_at - soon) < timedelta(milliseconds=1)

    with worker(config) as running:
        running.ready(redis)
        ends(producer, sent, "delivered")
        delivered = producer.status(sent)
        assert delivered.settled_at is not None
        assert abs(delivered.settled_at - datetime.now(UTC)) < timedelta(seconds=20)

        sending = producer.send(note("sending", "sending", slow))
        ends(producer, sending, "sending")
        assert held_s(producer, sending) == 0.0  # its provider is slow, and nobody else
        release()
        ends(producer, sending, "delivered")

        held = [producer.send(note("held", "held")), producer.send(note("held", "held"))]
        ends(producer, held[0], "delivered")
        ends(producer, held[1], "waiting")
        behind = producer.status(held[1])
        assert behind.expected_at is not None
        assert timedelta(minutes=59) < behind.expected_at - datetime.now(UTC) <= timedelta(hours=1)

        rejected = producer.send(note("dead", "dead", dead))
        ends(producer, rejected, "rejected")
        reason = producer.status(rejected)
        assert "UNREGISTERED" in (reason.reason or "")

        expired = [producer.send(note("slow", "slow", expires_in=s)) for s in (None, 0.3)][1]
        ends(producer, expired, "expired")
        failed = producer.send(note("cut", "cut", cut, category="once"))
        ends(producer, failed, "failed")
        why = producer.status(failed)
        assert "unknown" in (why.reason or "")
    assert producer.cancel(later) == "cancelled"
    assert state(producer, later) == "cancelled"


def test_what_is_due_waits_for_a_worker_and_for_no_backlog(redis: Redis, producer: Notifier) -> None:
    """Nothing stands before it any more, and no worker has looked since."""
    first, second = (producer.send(note("due")) for _ in range(2))
    enter(redis, calls.Worker(name="gone", lanes=LANES), calls.Room(10))
    producer.cancel(first)
    status = producer.status(second)
    assert (status.state, [delay.what for delay in status.record.delays][-1]) == ("waiting", "the queue")


def held_s(producer: Notifier, job_id: str) -> float:
    """For how long a notification was held, by what its status tells."""
    status = producer.status(job_id)
    return status.record.held_s


def test_a_job_that_is_no_notification_has_no_status(redis: Redis, producer: Notifier) -> None:
    """Of a job of another function on a lane nothing untrue is said."""
    job = queue(redis).enqueue("math.factorial", 3)
    job.set_status(JobStatus.FINISHED)
    status = producer.status(job.id)
    assert status is None or status.state not in {"failed", "delivered"}


@pytest.mark.parametrize("user", [42, 4.5, {"a": 1}, "\ud800", None])
def test_a_job_that_rq_schedules_waits_whoever_its_user_is(redis: Redis, producer: Notifier, user: Any) -> None:
    """Its meta is the caller's own; a worker reads it when RQ hands the job over."""
    job = queue(redis).enqueue_in(timedelta(hours=1), "app.notify", meta={"user": user})
    told = producer.status(job.id)
    assert told.state == "waiting"
    assert told.expected_at is not None


def test_what_rq_delays_of_a_user_is_found(redis: Redis, producer: Notifier) -> None:
    """`enqueue_in` of plain RQ with a meta: its status tells when, and cancelling and forgetting the user find it.

    What names no category is the program's own, and stays; so does another user's.
    """
    lane, hour = queue(redis), timedelta(hours=1)
    first = lane.enqueue_in(hour, "notifier.deliver", meta={"user": "ann", "category": "chat"})
    own = lane.enqueue_in(hour, "app.notify", meta={"user": "ann"})
    other = lane.enqueue_in(hour, "app.notify", meta={"user": "bob", "category": "chat"})
    told = producer.status(first.id)
    assert told.expected_at is not None
    assert abs(told.expected_at - datetime.now(UTC) - hour) < timedelta(minutes=1)
    assert told.not_before == "its own time, send_at"
    assert producer.cancel(user="ann", category="chat") == Cancellation(1)
    assert first.get_status(refresh=True) == JobStatus.CANCELED
    lane.enqueue_in(hour, "app.notify", meta={"user": "ann", "category": "chat"})
    assert producer.forget("ann") == Cancellation(1)
    assert set(scheduled(redis).get_job_ids()) == {own.id, other.id}


def test_what_waits_can_be_cancelled(redis: Redis, config: Path, producer: Notifier, simulators: Simulators) -> None:
    """A notification in its queue, in its backlog or waiting for its time never goes once it is cancelled."""
    in_queue, kept = producer.send(note("a", "cancel-queue")), producer.send(note("b", "cancel-kept"))
    timed = producer.send(note("c", "cancel-timed", send_at=datetime.now(UTC) + timedelta(seconds=1)))
    assert producer.cancel(in_queue) == "cancelled"
    assert producer.cancel(in_queue) == "cancelled"
    assert producer.cancel(timed) == "cancelled"
    assert producer.cancel("no-such-job") == "unknown"
    with worker(config) as running:
        running.ready(redis)
        ends(producer, kept, "delivered")
        slow = [producer.send(note("slow", f"cancel-slow-{n}")) for n in range(4)]
        ends(producer, slow[0], "delivered")
        ends(producer, slow[3], "waiting")
        assert producer.cancel(slow[1]) == "cancelled"
        assert producer.cancel(slow[3]) == "cancelled"
        InRedis(redis).give_all_back("slow")
        ends(producer, slow[2], "delivered")
        assert producer.cancel(slow[2]) == "ended"
        canceled = CanceledJobRegistry(queue=queue(redis))
        assert {in_queue, timed, slow[1], slow[3]} <= set(canceled.get_job_ids())
        InRedis(redis).give_all_back("slow")
        after = producer.send(note("slow", "cancel-after"))
        ends(producer, after, "delivered")
    assert simulators.titles("cancel-") == ["cancel-kept", "cancel-slow-0", "cancel-slow-2", "cancel-after"]
    assert scheduled(redis).count == 0


def test_what_has_become_stale_is_cancelled_at_once(
    redis: Redis, config: Path, producer: Notifier, simulators: Simulators
) -> None:
    """By a tag wherever it waits: in its backlog, for its time, in flight it is too late; and none of it goes later."""
    slow = apns("stale")
    release = simulators.hold(slow)
    soon = datetime.now(UTC) + timedelta(seconds=1)
    with worker(config) as running:
        running.ready(redis)
        first = producer.send(note("held", "stale-0", slow, tags=["read"]))
        eventually(lambda: simulators.arrived("stale-0"), "the arrival")
        in_backlog = producer.send(note("held", "stale-1", slow, tags=["other", "read"]))
        ends(producer, in_backlog, "waiting")
        producer.send(note("held", "stale-2", slow, tags=["read"], send_at=soon))
        producer.send(note("b", "stale-kept", slow, tags=["read"], send_at=soon))
        assert producer.cancel(user="held", tag="read", category="chat") == Cancellation()
        assert producer.cancel(user="held", tag="read") == Cancellation(2, (first,))
        release()
        ends(producer, first, "delivered")
        after = producer.send(note("b", "stale-after", slow, send_at=soon + timedelta(milliseconds=1)))
        ends(producer, after, "delivered")
        assert not redis.zrange("notifier:tagged:{b}", 0, -1)
    assert simulators.titles("stale-") == ["stale-0", "stale-kept", "stale-after"]


@pytest.mark.parametrize(
    ("tags", "field"),
    [
        (["x"] * 6, "tags"),
        ("thread", "tags"),
        (["ok", ""], "tags[1]"),
        (["x" * 65], "tags[0]"),
        ([1], "tags[0]"),
        (["\ud800"], "tags[0]"),
    ],
)
def test_tags_are_checked(producer: Notifier, tags: Any, field: str) -> None:
    """At most five texts of at most 64 bytes."""
    with pytest.raises(InvalidNotificationError) as caught:
        producer.send(note("ann", tags=tags))
    assert caught.value.field == field


def first(found: Any) -> Any:
    """The first that is found, of either kind of client."""
    return anext(found) if isinstance(found, AsyncIterator) else next(found)


@pytest.mark.parametrize(
    ("call", "why"),
    [
        (lambda made: made.cancel(5), "job_id: must be text, is int"),
        (lambda made: made.cancel([]), "job_id: must be text, is list"),
        (lambda made: made.status(b"x"), "job_id: must be text, is bytes"),
        (lambda made: made.cancel_many(["x", True]), "job_id: must be text, is bool"),
        (lambda made: made.cancel_many([None]), "job_id: must be text, is NoneType"),
        (lambda made: made.cancel_many("abc"), "job_ids: give a list of job ids, not text"),
        (lambda made: made.status("\ud800"), "job_id: is not valid Unicode text"),
        (lambda made: made.cancel("\ud800"), "job_id: is not valid Unicode text"),
        (lambda made: made.cancel_many(["x", "\ud800"]), "job_id: is not valid Unicode text"),
        (lambda made: made.status("x", "\ud800"), "user: is not valid Unicode text"),
        (lambda made: made.history("\ud800"), "user: is not valid Unicode text"),
        (lambda made: made.acquire("\ud800"), "user: is not valid Unicode text"),
        (lambda made: made.status("x", ""), "user: must not be empty"),
        (lambda made: made.history(7), "user: must be text, is int"),
        (lambda made: made.history("x", since=3600), "since: must be a timedelta, is int"),
        (lambda made: made.send_many([note("x")], job_ids="a"), "job_ids: give a list of job ids, not text"),
        (lambda made: made.acquire(""), "user: must not be empty"),
        (lambda made: made.users.get(""), "user: must not be empty"),
        (lambda made: made.acquire("x" * 257), "user: is 257 bytes long; at most 256 are allowed"),
        (lambda made: first(made.feedback("\ud800")), "group: is not valid Unicode text"),
        (lambda made: first(made.feedback("x", "\ud800")), "consumer: is not valid Unicode text"),
        (lambda made: first(made.feedback(None)), "group: must be text, is NoneType"),
        (lambda made: first(made.feedback(["a"])), "group: must be text, is list"),
        (lambda made: first(made.feedback(42)), "group: must be text, is int"),
        (lambda made: first(made.feedback("x", 42)), "consumer: must be text, is int"),
        (lambda made: first(made.feedback("x", lease=5)), "lease: must be a timedelta, is int"),
    ],
)
def test_a_name_that_nobody_can_have_is_refused(producer: Notifier, config: Path, call: Any, why: str) -> None:
    """By the calls that ask as by those that send, as what it is: of a Redis that is away a program asks again."""

    async def awaited() -> None:
        async with AsyncNotifier.from_config(config, follow=False) as made:
            await call(made)

    for ask in (lambda: call(producer), lambda: call(FakeNotifier(config)), lambda: asyncio.run(awaited())):
        with pytest.raises(InvalidNotificationError) as caught:
            ask()
        assert str(caught.value) == why


@pytest.mark.parametrize(
    "written",
    [
        ("HSET", "rq:job:spoilt", "status", b"\xff"),
        ("HSET", "rq:job:spoilt", "status", "queued", "push_attempts", "abc"),
        ("HSET", "rq:job:spoilt", "status", "queued", "push_history", "1e400", "meta", '{"user": "ann"}'),
        ("HSET", "rq:job:spoilt", "status", "canceled", "push_by", b"\xff", "push_outcome", "superseded"),
        ("ZADD", "notifier:delivered", "inf", "spoilt"),
    ],
)
def test_a_record_that_cannot_be_read_is_told_as_one(redis: Redis, producer: Notifier, written: Any) -> None:
    """By an error of ours that says so, as the command does: another program may have written it."""
    redis.execute_command(*written)
    with pytest.raises(RedisUnusableError, match=r"^Redis holds something that cannot be read \("):
        producer.status("spoilt")


def test_a_dedupe_key_makes_one_of_two(redis: Redis, config: Path, producer: Notifier, simulators: Simulators) -> None:
    """The same user and dedupe key is the same notification, before and after its delivery; another user's is not."""
    first = producer.send(note("anna", "dedupe", dedupe_key="order-7"))
    assert producer.send(note("anna", "dedupe again", dedupe_key="order-7")) == first
    other = producer.send(note("berta", "dedupe", dedupe_key="order-7"))
    third = producer.send(note("anna", "dedupe", dedupe_key="order-8"))
    assert len({first, other, third}) == 3
    told: list[str] = []
    assert producer.send_many([note("anna", "dedupe", dedupe_key="order-7")] * 3, on_accepted=told.extend) == 3
    assert told == [first] * 3
    with worker(config, "--burst") as running:
        assert running.process.wait(60) == 0
    assert state(producer, first) == "delivered"
    assert producer.send(note("anna", "dedupe", dedupe_key="order-7")) == first
    assert len(simulators.arrived("dedupe")) == 3
    assert not simulators.arrived("dedupe again")
    assert queued(redis) == []


def test_dedupe_keys_of_two_users_never_meet(redis: Redis, producer: Notifier) -> None:
    """Whatever characters users and keys are made of, two users' keys are never one."""
    one = producer.send(note("a}:b", dedupe_key="c"))
    two = producer.send(note("a", dedupe_key="b}:c"))
    assert one != two
    assert sorted(queued(redis)) == sorted([one, two])


class User(str, Enum):  # noqa: UP042 - a StrEnum is written by its value
    HELD = "held"


async def _each_call_means(made: Any, user: Any, redis: Redis) -> None:
    async def now(found: Any) -> Any:
        return await found if isinstance(made, AsyncNotifier) else found

    first = await now(made.send(note("held", dedupe_key="order-7")))
    assert await now(made.send(note(user, dedupe_key="order-7"))) == first
    assert (await now(made.cancel(user=user))).cancelled == 1
    assert [record.user for record in await now(made.history(user))] == ["held"]
    assert (await now(made.status(first, user))).record.outcome == "cancelled"
    assert (await now(made.acquire(user))).key == "held"
    await now(made.users.set(user, gap="10m"))
    assert redis.hkeys("notifier:preferences") == [b"held"]
    assert redis.exists("notifier:sent:{held}") == 1
    await now(made.forget(user, hard=True))
    assert [key for key in redis.scan_iter() if b"held" in key.lower()] == []


async def test_a_user_may_be_a_member_of_an_enum(redis: Redis, config: Path, producer: Notifier) -> None:
    """Every call means the user of that text: whose dedupe key it is, who is counted, asked for, and forgotten."""
    await _each_call_means(producer, User.HELD, redis)
    async with AsyncNotifier.from_config(config, follow=False) as made:
        await _each_call_means(made, User.HELD, redis)


def test_nothing_goes_before_its_time(redis: Redis, config: Path, producer: Notifier, simulators: Simulators) -> None:
    """`send_at` is never early and soon kept; one in the past goes at once; an expiry counts from it."""
    with worker(config) as running:
        running.ready(redis)
        at = datetime.now(UTC) + timedelta(seconds=6)
        job_ids = [
            producer.send(note("timed-a", "at-a", send_at=at)),
            producer.send(note("timed-b", "at-b", send_at=at, expires_in=60)),
        ]
        deadline_us = redis.hget(f"rq:job:{job_ids[1]}", "push_deadline")
        assert int(deadline_us or 0) == pytest.approx((at.timestamp() + 60) * 1e6, abs=1_000)
        past = producer.send(note("timed-c", "at-c", send_at=at - timedelta(days=1), expires_in=30))
        ends(producer, past, "delivered")
        for job_id in job_ids:
            ends(producer, job_id, "delivered")
    assert simulators.arrived("at-c")[0].at_us / 1e6 < at.timestamp()
    for title in ("at-a", "at-b"):
        assert simulators.arrived(title)[0].at_us / 1e6 >= at.timestamp()


def test_the_category_says_how_long_by_default(redis: Redis, config: Path, producer: Notifier) -> None:
    """Without `expires_in` the category's expiry holds; with it, the notification's own."""
    brief, own = producer.send(note("a", category="brief")), producer.send(note("b", category="brief", expires_in=60))
    time.sleep(0.25)
    assert len(queued(redis)) == 2
    with worker(config, "--burst") as running:
        assert running.process.wait(60) == 0
    assert state(producer, brief) == "expired"
    assert state(producer, own) == "delivered"


def test_one_round_trip_a_call(redis: Redis, producer: Notifier) -> None:
    """A send, whatever it carries, is one command, and two where Redis has not seen the script before."""
    redis.script_flush()

    def round_trips(call: Any) -> int:
        before = _sent(redis)
        call()
        return _sent(redis) - before

    assert round_trips(lambda: producer.send(note("anna", dedupe_key="k", expires_in=5))) <= 2
    assert round_trips(lambda: producer.send(note("anna"))) == 1
    assert round_trips(lambda: producer.send_many([note("anna")] * CHUNK)) == 1


def _sent(redis: Redis) -> int:
    """How many commands all clients have sent, without those that scripts ran: of EVAL and EVALSHA and no other."""
    stats: dict[str, Any] = redis.info("commandstats")
    return sum(stats.get(f"cmdstat_{name}", {}).get("calls", 0) for name in ("eval", "evalsha"))


def test_rq_sees_the_truth(redis: Redis, config: Path, producer: Notifier, simulators: Simulators) -> None:
    """RQ's own API finds what is queued, waiting, in flight and failed, where its documentation says."""
    lane = queue(redis)
    job_id = producer.send(note("anna", "rq-queued"))
    job = Job.fetch(job_id, connection=redis, serializer=JSONSerializer)
    assert job.get_status() is JobStatus.QUEUED
    assert job.func_name == "notifier.deliver"
    assert job.kwargs["title"] == "rq-queued"
    assert job.meta["user"] == "anna"
    assert job.origin == "default"
    assert lane.job_ids == [job_id]
    assert job.get_position() == 0
    slow = apns("rq-slow")
    release = simulators.hold(slow)
    dead = simulators.answer(apns("rq-dead"), Reply(410, "Unregistered"))
    with worker(config) as running:
        running.ready(redis)
        ends(producer, job_id, "delivered")
        started = producer.send(note("rq-slow", "rq-slow", slow))
        ends(producer, started, "sending")
        registry = StartedJobRegistry(queue=lane)
        assert registry.get_job_ids() == [started]
        assert Job.fetch(started, connection=redis, serializer=JSONSerializer).get_status() is JobStatus.STARTED
        release()
        ends(producer, started, "delivered")
        assert registry.count == 0
        with pytest.raises(Exception, match="No such job"):
            Job.fetch(started, connection=redis, serializer=JSONSerializer)

        held = [producer.send(note("held")), producer.send(note("held"))]
        ends(producer, held[1], "waiting")
        waiting = scheduled(redis)
        eventually(lambda: waiting.get_job_ids() == [held[1]], "the waiting one")
        in_an_hour = datetime.now(UTC) + timedelta(minutes=59)
        eventually(lambda: waiting.get_scheduled_time(held[1]) > in_an_hour, "its time, once a worker has looked")
        assert Job.fetch(held[1], connection=redis, serializer=JSONSerializer).get_status() is JobStatus.SCHEDULED

        failed = producer.send(note("rq-dead", "rq-dead", dead))
        ends(producer, failed, "rejected")
        assert FailedJobRegistry(queue=lane).get_job_ids() == [failed]
        job = Job.fetch(failed, connection=redis, serializer=JSONSerializer)
        assert job.get_status() is JobStatus.FAILED
        result = job.latest_result()
        assert result.type is Result.Type.FAILED
        assert "Unregistered" in (result.exc_string or "")
        week = FailedJobRegistry(queue=lane).get_expiration_time(job) - datetime.now(UTC)
        assert timedelta(days=6, hours=23) < week <= timedelta(days=7)
        assert 0 < redis.ttl(f"rq:job:{failed}") <= 7 * 86_400


def test_a_delivered_one_leaves_little(redis: Redis, config: Path, producer: Notifier) -> None:
    """A delivered notification leaves at most 150 bytes, and all of that is in one key."""
    with worker(config) as running:
        running.ready(redis)
        told: list[str] = []
        producer.send_many((note("one") for _ in range(10)), on_accepted=told.extend)
        ends(producer, told[-1], "delivered")
        keys, before = redis.dbsize(), redis.memory_usage("notifier:delivered", samples=0)
        used = _used(redis)
        producer.send_many((note("one") for _ in range(1_000)), on_accepted=told.extend)
        for job_id in told[::100]:  # they go one after the other, which takes a busy machine minutes
            ends(producer, job_id, "delivered")
        eventually(lambda: redis.zcard("notifier:delivered") == 1_010, "the deliveries")
        after = redis.memory_usage("notifier:delivered", samples=0)
        assert before is not None
        assert after is not None
        assert (after - before) / 1_000 <= 150
        assert redis.dbsize() < keys + 10
        assert (_used(redis) - used) / 1_000 <= 150


def _used(redis: Redis) -> int:
    """Add up the bytes of all keys; what Redis says of itself has buffers of clients in it."""
    return sum(redis.memory_usage(key, samples=0) or 0 for key in redis.scan_iter())


def test_nothing_is_kept_where_nothing_shall_be(
    redis: Redis, tmp_path: Path, redis_server: EmbeddedRedis, simulators: Simulators
) -> None:
    """`keep_delivered: 0s` leaves the counters, and the id for the minute in which a producer may ask again."""
    config = write_config(tmp_path, redis_server.url, simulators.providers(), keep_delivered="0s")
    with notifier(config) as producer, worker(config, "--burst") as running:
        job_id = producer.send(note("anna"))
        assert running.process.wait(60) == 0
        assert redis.hget("notifier:stats", "delivered") == b"1"
        assert redis.zrange("notifier:delivered", 0, -1) == [job_id.encode()]
        assert not redis.exists(f"rq:job:{job_id}")
        redis.zadd("notifier:delivered", {job_id: int(redis.time()[0] - 61) * 1_000_000})
        other = producer.send(note("berta"))
        with worker(config, "--burst") as again:
            assert again.process.wait(60) == 0
    assert redis.zrange("notifier:delivered", 0, -1) == [other.encode()]


def test_no_token_is_seen_outside_a_jobs_data(
    redis: Redis, tmp_path: Path, config: Path, simulators: Simulators
) -> None:
    """Neither keys, values (save a job's data and the feedback) nor a log hold a token in full, or a text."""
    del tmp_path
    config.write_text(config.read_text(encoding="utf-8").replace("level: info", "level: debug"), encoding="utf-8")
    devices = [
        simulators.answer(apns("secret-dead"), Reply(410, "Unregistered")),
        simulators.answer(fcm("secret-dead"), Reply(404, "UNREGISTERED")),
        simulators.answer(apns("secret-odd"), Reply(400, "BadDeviceToken")),
        simulators.answer(apns("secret-cut"), Reply(0, drop=True), Reply(200)),
        fcm("secret-good"),
        apns("secret-good"),
    ]
    with notifier(config) as producer, worker(config) as running:
        running.ready(redis)
        job_ids = [producer.send(note(f"u{n}", "SECRET-TEXT", device)) for n, device in enumerate(devices)]
        job_ids += [producer.send(note("held", "SECRET-TEXT", device)) for device in devices]
        for job_id in job_ids[:6]:
            eventually(partial(_ended, producer, job_id), "an end")
        ends(producer, job_ids[-1], "waiting")
        eventually(lambda: redis.zcard("rq:wip:default") == 0, "the end of what goes")
        written = _all_but_data(redis) + running.log.encode()
    assert b"dead_token" in written
    for device in devices:
        assert device.token.encode() not in written
    assert b"SECRET-TEXT" not in written


def _ended(producer: Notifier, job_id: str) -> bool:
    return state(producer, job_id) in {"delivered", "rejected"}


def _all_but_data(redis: Any) -> bytes:
    parts: list[bytes] = []
    for key in redis.scan_iter(count=1_000):
        parts.append(key)
        match redis.type(key):
            case b"hash":
                parts += [v for field, value in redis.hgetall(key).items() if field != b"data" for v in (field, value)]
            case b"list":
                parts += redis.lrange(key, 0, -1)
            case b"set":
                parts += redis.smembers(key)
            case b"zset":
                parts += redis.zrange(key, 0, -1)
            case b"string":
                parts.append(redis.get(key) or b"")
            case b"stream" if key == b"notifier:feedback":
                assert redis.xlen(key) >= 2  # the dead tokens, for whoever keeps the devices
            case b"stream":
                parts += [v for _, fields in redis.xrange(key) for v in fields.values()]
            case other:
                assert other == b"none"  # expired meanwhile
    return b"\n".join(parts)
