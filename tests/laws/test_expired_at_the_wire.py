"""Nothing is handed over after its expiry, however long what was leased waits for its provider."""

import asyncio
import time
from bisect import bisect
from collections.abc import Callable
from pathlib import Path

import pytest
from redis import Redis

from notifier.notification import Device
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import Simulators, apns, ends, eventually, fcm, note, notifier, state, worker, write_config

MESSAGES = 40
LIFE_S = 3.0  # a busy machine has to begin meanwhile
ANSWER_MS = 1_200
# Between the moment at which a request is written and the moment at which the simulator has read it, on a machine with
# much to do; what waited too long came up to 2.5 s late where it lived for a second.
ON_ITS_WAY_S = 1.0


def ticks_of(simulators: Simulators) -> list[int]:
    """When the simulators' loop came round, µs: what it read between two such moments may have come at the first."""
    ticks: list[int] = []

    async def tick() -> None:
        while True:
            ticks.append(time.time_ns() // 1000)
            await asyncio.sleep(0.01)

    async def begin() -> asyncio.Task[None]:
        return asyncio.create_task(tick())

    simulators.call(begin())
    return ticks


@pytest.mark.parametrize(("device", "of"), [(apns, "forty users"), (apns, "one user"), (fcm, "one user")])
def test_what_waits_for_its_provider_expires(
    tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis, device: Callable[[str], Device], of: str
) -> None:
    """A provider that serves four at once, each in 1.2 s, gets forty in one moment that live for three seconds.

    Those that could not go in time end as expired, and their permits come back.
    """
    with Simulators(tmp_path / "simulators") as simulators:
        simulators.apns.max_streams = 4
        providers = simulators.providers()
        providers["fcm"]["limits"] = {"device": [], "collapsible": None, "project": None}
        for section in providers.values():
            section["timeout"] = "8s"
        settings = {"lease": "10s", "grace": "4s"}
        config = write_config(tmp_path, redis_server.url, providers, worker=settings, user={"windows": ["1000/1d"]})
        users = [f"u{n if of == 'forty users' else 0}" for n in range(MESSAGES)]
        for user in users:
            simulators.delay(device(user), ANSWER_MS)
        with worker(config) as process, notifier(config) as producer:
            process.ready(redis)
            # Connections are open, and it has signed in, before anything's time begins.
            ends(producer, producer.send(note("warm-up", "warm-up", device("warm-up"))), "delivered")
            ticks = ticks_of(simulators)
            notes = [note(user, f"n{n}", device(user), expires_in=LIFE_S) for n, user in enumerate(users)]
            job_ids, expires_us = [], {}
            for each in notes:
                job_ids.append(producer.send(each))
                expires_us[each.title] = time.time_ns() // 1000 + LIFE_S * 1e6
            ended = {"delivered", "expired"}
            eventually(lambda: {state(producer, job_id) for job_id in job_ids} <= ended, "the end of all")
            arrived = simulators.titles("n")
            states = [state(producer, job_id) for job_id in job_ids]
            assert states.count("delivered") == len(arrived) == len(set(arrived))
            assert states.count("expired") == MESSAGES - len(arrived) > 0
            came_us = {a.title: ticks[bisect(ticks, a.at_us) - 1] for a in simulators.all() if a.title in expires_us}
            late_s = [(at_us - expires_us[title]) / 1e6 for title, at_us in came_us.items()]
            assert max(late_s) < ON_ITS_WAY_S
            assert sum(redis.zcard(f"notifier:sent:{{{user}}}") for user in set(users)) == len(arrived)
