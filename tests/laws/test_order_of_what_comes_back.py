"""What a provider did not take keeps its place: those behind it in its backlog do not go before it (law 4)."""

import itertools
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from notifier.notification import Device
from notifier.simulators.wire import Reply
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import Simulators, apns, ends, eventually, fcm, note, notifier, state, worker, write_config

MESSAGES = 60


@pytest.mark.parametrize("streams", [4, 10, 20])
def test_order_after_goaway(tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis, streams: int) -> None:
    """All streams are in use when Apple ends the connection, again and again, in the middle of what it has begun.

    Each message came for the last time behind those that were accepted before it.
    """
    users = [f"u{n}" for n in range(3)]
    with Simulators(tmp_path / "simulators") as simulators:
        simulators.apns.latency_ms = 15
        simulators.apns.max_streams = streams
        config = write_config(tmp_path, redis_server.url, simulators.providers())

        async def go_away() -> None:
            simulators.apns.go_away("Shutdown", keep=0.5)

        with worker(config) as process, notifier(config) as producer:
            process.ready(redis)
            ends(producer, producer.send(note("first", "first")), "delivered")
            titles = [(user, f"{user}-{n}") for n, user in itertools.product(range(MESSAGES), users)]
            devices = [apns("one"), apns("another")]
            notes = [note(user, title, devices[n % 2]) for n, (user, title) in enumerate(titles)]
            job_ids = [producer.send(each) for each in notes]
            for share in (0.1, 0.3, 0.5, 0.7, 0.9):
                eventually(lambda share=share: len(set(simulators.titles("u"))) > share * len(titles))
                simulators.call(go_away())
            for job_id in job_ids:
                ends(producer, job_id, "delivered")
        last = {title: at for at, title in enumerate(simulators.titles("u"))}
        for user in users:
            came = sorted((at, title) for title, at in last.items() if title.startswith(user))
            assert [title for _, title in came] == [f"{user}-{n}" for n in range(MESSAGES)]


@pytest.mark.parametrize("device", [apns, fcm])
def test_what_is_refused_for_now_holds_those_behind_it(
    tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis, device: Callable[[str], Device]
) -> None:
    """A device takes no more for now: what follows it in its backlog waits behind it, also what goes elsewhere."""
    with Simulators(tmp_path / "simulators") as simulators:
        first, second = device("first"), device("second")
        if device is apns:
            simulators.answer(
                first, Reply(200), Reply(429, "TooManyRequests", headers={"retry-after": "1"}), Reply(200)
            )
        else:
            simulators.answer(first, Reply(200), Reply(429, "QUOTA_EXCEEDED"), Reply(200))
        config = write_config(tmp_path, redis_server.url, simulators.providers())
        with notifier(config) as producer:
            notes = [note("anna", f"a{n}", (first, first, second, first, second)[n]) for n in range(5)]
            job_ids = [producer.send(each) for each in notes]
            with worker(config) as process:
                process.ready(redis)
                eventually(lambda: simulators.arrived("a1"))
                eventually(lambda: state(producer, job_ids[1]) == "waiting")
                barrier = [producer.send(note("bert", f"b{n}", device("third"))) for n in range(5)]
                for job_id in barrier:
                    ends(producer, job_id, "delivered")
                if device is fcm:  # it asks for a minute
                    assert simulators.titles("a") == ["a0"]
                    return
                for job_id in job_ids:
                    ends(producer, job_id, "delivered")
        assert simulators.titles("a") == [f"a{n}" for n in range(5)]
