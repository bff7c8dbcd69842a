"""How a worker that serves many partitions comes round to each of them."""

import asyncio
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import pytest
from redis import Redis

import workers.beat
from notifier.queue.health import LOOKED
from notifier.settings import parse_settings
from workers import PushWorker
from workers.beat import BEAT_S, Beat
from workers.served import TURNS

COUNT = 32


async def test_all_partitions_have_their_turn_also_where_each_beat_lasts(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the node of its first partition hangs, a beat may wait for seconds: the others are told of it in time."""
    tended, now = [0] * COUNT, 1_000.0
    worker = PushWorker(["default"], connection=redis, settings=parse_settings("providers: {fcm: {client: console}}"))
    worker.birth_date = datetime.now(UTC)

    def served(n: int) -> Any:
        async def tend(*_: object) -> None:
            tended[n] += 1

        return SimpleNamespace(tending=None, tend=tend, is_behind=False, engine=SimpleNamespace(flights=()))

    all_served: list[Any] = [served(n) for n in range(COUNT)]
    monkeypatch.setattr(workers.beat, "time", SimpleNamespace(monotonic=lambda: now))

    async def beats(beat: Beat, lasting_s: float) -> None:
        nonlocal now
        for _ in range(round(TURNS / lasting_s)):
            now += lasting_s
            await beat._tend_partitions()
            await asyncio.gather(*(each.tending for each in all_served if each.tending))

    beat = Beat(worker, all_served, Mock(), Mock(), reload=None, secrets=None)
    await beats(beat, BEAT_S)
    assert tended == [1] * COUNT
    await beats(beat, 8 * BEAT_S)
    assert tended == [2] * COUNT


def test_a_redis_that_is_emptied_as_a_worker_registers_knows_it_again(redis: Redis) -> None:
    """Between its registration and its first sign of life: that makes an entry anew, which is not the whole one."""
    worker = PushWorker(["default"], connection=redis, settings=parse_settings("providers: {fcm: {client: console}}"))
    engine = MagicMock(flights=MagicMock(busy=False, delivered=0, failed=0), looked_us=1, suspended_us=0)
    engine.mender.is_over.return_value = False
    beat = Beat(worker, [MagicMock(engine=engine)], Mock(), MagicMock(), reload=None, secrets=None)
    worker.register_birth()  # type: ignore[no-untyped-call]
    redis.flushall()
    redis.hset(worker.key, LOOKED, 1)
    beat._tend({"own": "1"})
    assert redis.smembers("rq:workers") == {worker.key.encode()}
    entry: Any = redis.hgetall(worker.key)
    assert {b"birth", b"state", b"own", LOOKED.encode()} <= set(entry)
