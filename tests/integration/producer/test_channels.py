"""Broadcast channels by `notifier.channels`: made, sent to by a worker, each limited by itself, and deleted."""

import asyncio
import itertools
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier import AsyncNotifier, ChannelError, to_channel
from notifier.simulators.apns import ApnsChannelsSimulator
from notifier.testing import FakeNotifier
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import WORKER, Simulators, ends, notifier, worker, write_config

GAP_US = 2_000_000
RATES: dict[str, Any] = {"categories": {"default": {"lane": "default"}, "scores": {"lane": "urgent", "gap": "2s"}}}


@pytest.fixture
def config(tmp_path: Path, redis_server: EmbeddedRedis, simulators: Simulators) -> Iterator[Path]:
    apns = simulators.apns
    manage = ApnsChannelsSimulator(apns, certificates=apns.certificates, log=apns.log)
    apns.channels.made.clear()
    simulators.call(manage.start())
    # The simulators share this process with some of their clients: what it is late by must not look like their silence.
    providers = simulators.providers(timeout="60s")
    providers["apns"]["channels_endpoint"] = manage.url
    patient = {"redis": {"url": redis_server.url, "socket_timeout": "60s"}, "worker": {**WORKER, "lease": "70s"}}
    yield write_config(tmp_path, redis_server.url, providers, **RATES, **patient)
    simulators.call(manage.close())


def update(score: int) -> dict[str, Any]:
    return {"event": "update", "timestamp": int(time.time()), "content_state": {"score": score}}


def test_each_channel_is_limited_by_itself(redis: Redis, config: Path, simulators: Simulators) -> None:
    """The gap of the category holds between two messages to one channel, and not between two channels. All sign in by
    one token: Apple takes a new one every 20 minutes. A deleted channel comes back as a dead token.
    """
    with worker(config) as running, notifier(config) as producer:
        running.ready(redis)
        channels = [producer.channels.create() for _ in range(2)]
        assert producer.channels.list() == channels
        jobs = [
            producer.send(to_channel(channel, update(score), category="scores"))
            for score in range(3)
            for channel in channels
        ]
        for job in jobs:
            ends(producer, job, "delivered")
        by_channel = [[each for each in simulators.all() if each.token == f"channel:{channel}"] for channel in channels]
        for arrived in by_channel:
            times = [each.at_us for each in arrived]
            assert len(times) == 3
            assert min(later - earlier for earlier, later in itertools.pairwise(times)) >= GAP_US
        first, second = by_channel
        assert second[0].at_us < first[1].at_us, "one channel's gap does not hold up the other"
        assert simulators.apns.checks.tokens_seen == 1
        producer.channels.delete(channels[0])
        ends(producer, producer.send(to_channel(channels[0], update(9))), "rejected")
        (gone,) = producer.feedback()
        assert (gone.token, gone.reason) == (f"channel:{channels[0]}", "ChannelNotRegistered")


async def test_in_an_asyncio_program(config: Path, redis: Redis) -> None:
    """AsyncNotifier sends to them; a thread makes and deletes them, and a Notifier works in a running loop too."""
    async with AsyncNotifier.from_config(config, follow=False) as made:
        with notifier(config) as plain:
            channel = await asyncio.to_thread(plain.channels.create, stores=True)
            assert plain.channels.read(channel).stores
            assert await made.send(to_channel(channel, update(1), category="scores"))
            assert plain.channels.list() == [channel]
            await asyncio.to_thread(plain.channels.delete, channel)
            with pytest.raises(ChannelError, match="ChannelNotRegistered"):
                plain.channels.read(channel)
    assert redis.llen("rq:queue:urgent") == 1


def test_in_memory() -> None:
    """A FakeNotifier has channels too, and asks nobody."""
    fake = FakeNotifier()
    channel = fake.channels.create(stores=True)
    fake.send(to_channel(channel, update(1)))
    assert fake.channels.read(channel).stores
    assert [each.apns["content_state"] for each in fake.delivered(f"channel:{channel}")] == [{"score": 1}]
    assert asyncio.run(fake.aio.send(to_channel(channel, update(2)))) != ""
    fake.channels.delete(channel)
    assert len(fake.accepted) == 2
    assert fake.channels.list() == []
    with pytest.raises(ChannelError, match="ChannelNotRegistered"):
        fake.channels.delete(channel)
