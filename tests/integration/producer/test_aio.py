"""AsyncNotifier: all that `Notifier` promises, awaited; and an event loop that goes on while Redis hangs."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from redis import Redis

from notifier import (
    AsyncNotifier,
    Cancellation,
    Hold,
    InvalidNotificationError,
    LimiterUnreachableError,
    Notification,
    Notifier,
    NotReplicatedError,
    OverloadedError,
    Permit,
    RedisUnusableError,
)
from notifier.producer.aio import MAX_CALLS
from notifier.producer.exchanges import CHUNK
from notifier.producer.permits import UserPermit
from notifier.queue import calls
from notifier.queue.calls import DeadToken, Settlement
from notifier.queue.retention import Retention
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.settings import load_settings
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.forks import exit_of_fork
from tests.harness.processes import stop
from tests.harness.support import fcm, note, notifier, write_config
from tests.harness.take import take

T = TypeVar("T")
SECTIONS: dict[str, Any] = {
    "user": {"windows": ["1/1h"], "max_waiting": 150},
    "categories": {"default": {"lane": "default"}, "news": {"lane": "bulk", "overflow": "drop_oldest"}},
}


def with_notifier(config: Path, do: Callable[[AsyncNotifier], Awaitable[T]]) -> T:
    async def session() -> T:
        async with AsyncNotifier.from_config(config) as made:
            return await do(made)

    return asyncio.run(session())


def test_a_notification_is_sent_looked_up_and_cancelled(redis: Redis, config: Path) -> None:
    """The job is the same as the synchronous one's, in all that Redis keeps of it but its id and time."""

    async def session(made: AsyncNotifier) -> str:
        job_id = await made.send(note("anna"))
        assert await made.send(note("anna"), job_id=job_id, timeout=timedelta(seconds=30)) == job_id
        status = await made.status(job_id)
        assert status.state == "queued"
        assert await made.status("unknown") is None
        assert await made.routes() == []
        return job_id

    job_id = with_notifier(config, session)
    with notifier(config) as plain:
        other = plain.send(note("anna"))
        mine, theirs = redis.hgetall(f"rq:job:{job_id}"), redis.hgetall(f"rq:job:{other}")
        differ = {name for name in mine | theirs if mine.get(name) != theirs.get(name)}
        assert differ <= {b"created_at", b"enqueued_at", b"push_order", b"push_history"}
        assert with_notifier(config, lambda made: made.cancel(job_id)) == "cancelled"
        assert plain.cancel(job_id) == "cancelled"
        assert with_notifier(config, lambda made: made.cancel(user="anna", category="default")) == Cancellation(1)
        assert with_notifier(config, lambda made: made.cancel_many([other, "x"])) == Cancellation(1, (), ("x",))
        status = plain.status(job_id)
        assert status is not None
        assert status == with_notifier(config, lambda made: made.status(job_id))


@pytest.mark.usefixtures("redis")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_fork_leaves_what_its_parents_event_loop_has_alone(config: Path) -> None:
    """Its child would write on the parent's connections: what the parent is answered would be the child's."""

    async def refused(made: AsyncNotifier) -> None:
        for call in (made.send(note("bert")), anext(made.feedback()), made.aclose()):
            with pytest.raises(RuntimeError, match="another process"):
                await call

    async def session(made: AsyncNotifier) -> None:
        for job_id in ("one", "two", "three"):
            assert await made.send(note("anna"), job_id=job_id) == job_id
            assert exit_of_fork(lambda: asyncio.run(refused(made))) == 0
            assert (await made.status(job_id)).job_id == job_id

    with_notifier(config, session)


@pytest.mark.usefixtures("redis")
def test_a_crowd_may_use_it_in_each_event_loop_in_turn(config: Path) -> None:
    """Once it was closed in the one before, in which calls have waited for each other."""
    made = AsyncNotifier.from_config(config)

    async def session() -> list[Any]:
        async with made:
            return await asyncio.gather(*(made.status("unknown") for _ in range(MAX_CALLS + 1)))

    assert not any(asyncio.run(session()) + asyncio.run(session()))


def test_what_is_wrong_is_refused_before_anything_is_written(redis: Redis, config: Path) -> None:
    """InvalidNotificationError as from `Notifier`; `check` asks nobody."""

    async def session(made: AsyncNotifier) -> None:
        with pytest.raises(InvalidNotificationError, match="category"):
            await made.send(note("anna", category="nope"))
        with pytest.raises(InvalidNotificationError, match="job_id"):
            await made.send(note("anna"), job_id="not one!")
        made.check(note("anna"))

    with_notifier(config, session)
    assert redis.dbsize() == 0


async def some(count: int, *, wrong_at: int | None = None) -> AsyncIterator[Notification]:
    for n in range(count):
        await asyncio.sleep(0)
        yield note("anna" if n < 150 else "bert", category="nope" if n == wrong_at else "default")


def test_many_come_from_an_async_iterable(redis: Redis, config: Path) -> None:
    """A hundred to a round trip; what is wrong is named by its place, and all before it was accepted."""
    told: list[str] = []

    async def session(made: AsyncNotifier) -> None:
        ids = [f"job-{n}" for n in range(250)]
        assert await made.send_many(some(250), job_ids=ids, on_accepted=told.extend) == 250
        assert told == ids
        with pytest.raises(InvalidNotificationError, match=r"notifications\[3\]\.category"):
            await made.send_many(some(9, wrong_at=3), job_ids=ids[:9])
        assert await made.send_many([note("carl")]) == 1
        for wrong in (["a"], ["a", "b", "c"]):
            with pytest.raises(ValueError, match="job_ids has"):
                await made.send_many([note("carl"), note("carl")], job_ids=wrong)

    with_notifier(config, session)
    assert redis.llen("rq:queue:default") == 250 + len({"carl", "a", "b"})


def test_who_is_told_may_be_awaited(redis: Redis, config: Path) -> None:
    """`on_accepted` as a coroutine function, such as one that writes job ids into a database."""
    told: list[str] = []

    async def note_down(job_ids: Sequence[str]) -> None:
        await asyncio.sleep(0)
        told.extend(job_ids)

    async def session(made: AsyncNotifier) -> None:
        assert await made.send_many(some(250), on_accepted=note_down) == 250

    with_notifier(config, session)
    assert told == [job_id.decode() for job_id in redis.lrange("rq:queue:default", 0, -1)]


def test_redis_and_the_producer_work_at_the_same_time(redis: Redis, redis_server: EmbeddedRedis, config: Path) -> None:
    """As of `Notifier.send_many`; an iterable that never waits needs no turn of the loop for it."""

    def given() -> Iterator[Notification]:
        yield from (note(f"u{number}") for number in range(CHUNK - 1))
        stop(redis_server.pid)
        yield from (note(f"v{number}") for number in range(CHUNK - 1))
        os.kill(redis_server.pid, signal.SIGCONT)

    try:
        assert with_notifier(config, lambda made: made.send_many(given())) == 2 * CHUNK - 2
    finally:
        os.kill(redis_server.pid, signal.SIGCONT)
    assert redis.llen("rq:queue:default") == 2 * CHUNK - 2


def test_what_is_too_much_is_refused_by_its_place(redis: Redis, config: Path) -> None:
    """OverloadedError as from `Notifier.send_many`, with each place in what was given."""

    async def session(made: AsyncNotifier) -> OverloadedError:
        with pytest.raises(OverloadedError) as caught:
            await made.send_many([note("anna") for _ in range(153)] + [note("bert")])
        return caught.value

    assert redis.dbsize() == 0
    error = with_notifier(config, session)
    assert ([each.place for each in error.refused], error.tried) == ([150, 151, 152], 154)


def test_permits_and_the_feedback(redis: Redis, config: Path) -> None:
    """`acquire` and `refund`; and every dead token once, acknowledged when the loop comes back."""

    async def session(made: AsyncNotifier) -> None:
        permit = await made.acquire("anna")
        assert isinstance(permit, Permit)
        assert isinstance(await made.acquire("anna"), Hold)
        assert await made.refund(permit)
        assert not await made.refund(permit)
        permit = await made.acquire("anna")
        assert isinstance(permit, Permit)
        assert await made.refund(permit, timeout=1)
        assert [gone.token async for gone in made.feedback()] == []
        job_id = await made.send(note("anna", "T", fcm("anna")))
        tell_dead(redis, config, job_id)
        assert [(gone.user, gone.job_id) async for gone in made.feedback("mine", "me")] == [("anna", job_id)]
        assert [gone async for gone in made.feedback("mine", "me")] == []

    with_notifier(config, session)


def tell_dead(redis: Redis, config: Path, job_id: str) -> None:
    rules = RuleTable(load_settings(config, {}).policies())
    worker = calls.Worker(name="w", lanes=("default",), lease_us=10**9)
    (leased,) = take(redis, worker, calls.Room(1), rules).leased
    assert leased.job_id == job_id
    gone = (DeadToken(fcm("anna"), None, "UNREGISTERED"),)
    settled = Settlement(
        job_id, leased.permit, "anna", "default", reached=False, state="failed", word="rejected", gone=gone
    )
    kept = Retention(10**12, 10**12, 10**12)
    assert run(redis, calls.settle([settled], rules, calls.Worker(name="w", keep=kept))) == [True]


def test_replicas_are_waited_for(redis: Redis, config: Path, redis_server: EmbeddedRedis) -> None:
    """With `redis.wait_replicas` and no replica the call says that it is accepted and not replicated."""
    settled = {"url": redis_server.url, "wait_replicas": 1, "socket_timeout": "400ms"}
    config = write_config(config.parent / "replicas", redis_server.url, redis=settled)

    async def session(made: AsyncNotifier) -> None:
        with pytest.raises(NotReplicatedError) as caught:
            await made.send(note("anna"), job_id="kept", timeout=30)
        assert caught.value.job_ids == ["kept"]

    with redis.monitor() as seen:
        with_notifier(config, session)
        assert _who_waits(seen) == "the writer"
        with notifier(config) as plain, pytest.raises(NotReplicatedError):
            plain.send(note("anna"))
        assert _who_waits(seen) == "the writer"
        with notifier(config) as plain, pytest.raises(NotReplicatedError):
            plain.send(note("anna"), job_id="kept")
        assert _who_waits(seen) == "the writer", "also where the script had nothing to write"
    assert redis.exists("rq:job:kept") == 1


def test_where_replicas_are_waited_for_a_redis_that_is_away_is_told_of_alike(tmp_path: Path) -> None:
    """The connection that such a call has alone cannot be made; nothing of redis-py comes through."""
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"redis://127.0.0.1:{nobody.getsockname()[1]}/0"
        config = write_config(tmp_path, url, redis={"url": url, "wait_replicas": 1})

        async def session(made: AsyncNotifier) -> None:
            with pytest.raises(RedisUnusableError):
                await made.send(note("anna"))

        with_notifier(config, session)
        with notifier(config) as plain, pytest.raises(RedisUnusableError):
            plain.send(note("anna"))


def _who_waits(seen: Any) -> str:
    """Which connection sent the next WAIT: Redis counts what that one wrote, from 7.2 on by nothing but writes."""
    writer = None
    while True:
        command = seen.next_command()
        if command["command"].startswith("WAIT "):
            return "the writer" if command["client_port"] == writer else "another"
        if command["command"].startswith("HINCRBY") and command["client_type"] != "lua":
            writer = command["client_port"]


def test_a_redis_that_hangs_never_blocks_the_loop(tmp_path: Path) -> None:
    """200 sends at a server that never answers: each ends by its deadline, and meanwhile the loop's work goes on.

    Ticks are counted, not times: a loop that one call blocked until its deadline would tick a few times in all.
    """
    ticks = 0

    async def heartbeat() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0.005)

    async def session(made: AsyncNotifier) -> list[BaseException | str]:
        beating = asyncio.create_task(heartbeat())
        sends = [made.send(note(f"user-{n}"), timeout=1) for n in range(200)]
        answers = await asyncio.gather(*sends, return_exceptions=True)
        with pytest.raises(RedisUnusableError, match=r"does not answer within 0\.1 s"):
            await made.status("any", timeout=0.1)
        with pytest.raises(LimiterUnreachableError, match=r"does not answer within 0\.1 s"):
            await made.acquire("anna", timeout=0.1)
        with pytest.raises(LimiterUnreachableError, match=r"does not answer within 0\.1 s"):
            await made.refund(UserPermit("any", "anna", 1, 0), timeout=0.1)
        beating.cancel()
        return answers

    with socket.create_server(("127.0.0.1", 0), backlog=1024) as deaf:
        url = f"redis://127.0.0.1:{deaf.getsockname()[1]}/0"
        answers = with_notifier(write_config(tmp_path, url), session)
    assert [type(answer) for answer in answers] == [RedisUnusableError] * 200
    assert {str(answer) for answer in answers} == {"Redis does not answer within 1 s"}
    assert ticks > 10


def test_both_have_the_same_methods() -> None:
    """Nothing of `Notifier` is missing in `AsyncNotifier`, whatever is added there: but its channels."""
    of_sync = {name for name in dir(Notifier) if not name.startswith("_")}
    of_async = {name for name in dir(AsyncNotifier) if not name.startswith("_")}
    assert of_async == of_sync - {"close", "channels"} | {"aclose"}
