"""Mending: what a script has left halfway is repaired, whoever is killed before."""

import asyncio
from collections.abc import Coroutine, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ResponseError

import workers.loop.mending
from notifier.operations.audit import audit
from notifier.scripts.keys import in_force, redis_key
from notifier.settings import parse_settings
from notifier.testing.embedded import EmbeddedRedis
from workers import PushWorker
from workers.beat import Beat
from workers.loop.mending import Mender


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A script that has failed a moment ago fails no more."""
    monkeypatch.setattr(workers.loop.mending, "QUIET_S", -1.0)


def begun(server: EmbeddedRedis) -> Mender:
    """One of a worker that begins now."""
    begins = Mender(AsyncRedis.from_url(server.url, protocol=2), "w1", ["default"])
    finish(begins, begins.take_over())
    return begins


def fail(meets: Mender) -> None:
    """Let this one meet a failing script."""
    finish(meets, meets.mend(ResponseError("a script failed")))


def finish(of: Mender, work: Coroutine[Any, Any, None]) -> None:
    async def go() -> None:
        await work
        await of._redis.aclose()

    asyncio.run(go())


def repair(redis: Redis, of: Mender) -> None:
    """Do what a beat does about it, to the end."""
    worker = PushWorker(["default"], connection=redis, settings=parse_settings("providers: {fcm: {client: console}}"))
    parts = SimpleNamespace(tuning=SimpleNamespace(lease_us=1))
    served: Any = SimpleNamespace(
        at=SimpleNamespace(number=0, prefixes=in_force(), client=redis), parts=parts, engine=SimpleNamespace(mender=of)
    )
    beat = Beat(worker, [served], Mock(), Mock(), reload=None, secrets=None)
    beat._repair(served)
    beat._repairs[0].join()


@pytest.fixture
def audits(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is to happen in the next audits."""
    happens: list[Any] = []

    def findings(_: object) -> Iterator[Any]:
        happens.pop(0)()
        return iter(())

    monkeypatch.setattr(audit.Audit, "findings", findings)
    return happens


def test_who_is_killed_leaves_it_to_the_next(redis: Redis, redis_server: EmbeddedRedis, audits: list[Any]) -> None:
    """Killed before the repair, as the next one is, too; or in the middle of it."""
    fail(begun(redis_server))
    begun(redis_server)
    knows: list[bool] = []
    audits.append(lambda: knows.append(begun(redis_server).is_over()))
    repair(redis, begun(redis_server))
    assert knows == [True]
    assert not begun(redis_server).is_over(), "it is repaired"


def test_what_fails_meanwhile_is_left_to_the_next_repair(
    redis: Redis, redis_server: EmbeddedRedis, audits: list[Any]
) -> None:
    """The repair that runs may have passed the place."""
    first = begun(redis_server)
    fail(first)
    audits += [lambda: fail(first), lambda: None]
    repair(redis, first)
    assert begun(redis_server).is_over()
    repair(redis, first)
    assert not redis.exists(redis_key("halfway"))


def test_what_fails_meanwhile_with_who_has_failed_before_is_left_too(
    redis: Redis, redis_server: EmbeddedRedis, audits: list[Any]
) -> None:
    """Its own repair is still to come, and it may be killed before; the repair that ends now began too early."""
    first = begun(redis_server)
    fail(first)
    second = begun(redis_server)
    audits.append(lambda: fail(second))
    repair(redis, first)
    assert begun(redis_server).is_over()


def test_what_is_no_set_of_marks_hinders_no_repair(redis: Redis, redis_server: EmbeddedRedis) -> None:
    """The audit removes it, as each key that is of another type."""
    redis.set(redis_key("halfway"), "1")
    repair(redis, begun(redis_server))
    assert not redis.exists(redis_key("halfway"))
