"""Laws 1, 2, 4 and 7 where users choose: measured at the provider, with several workers, while choices change."""

import time
from itertools import pairwise
from pathlib import Path

from redis import Redis

from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import Simulators, eventually, note, notifier, worker, write_config

COUNT = 30
GAP_US = 20_000  # of the configuration
CHOSEN_US = 150_000  # what the user chooses for a while


def now_us() -> int:
    """By the clock that this host's Redis and simulators share."""
    return time.time_ns() // 1_000


def test_a_choice_holds_at_the_wire_from_the_moment_it_was_made(
    redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path, simulators: Simulators
) -> None:
    """Between the choice and its end no two receipts are closer than the user chose; all arrive, once and in order."""
    config = write_config(tmp_path, redis_server.url, simulators.providers(), user={"gap": "20ms"})

    def arrived() -> list[str]:
        return simulators.titles("choice-")

    with worker(config, name="one") as one, worker(config, name="two") as two, notifier(config) as producer:
        one.ready(redis)
        two.ready(redis)
        producer.send_many(note("ann", f"choice-{n:02}") for n in range(COUNT))
        eventually(lambda: len(arrived()) >= 3, "the first")
        producer.users.set("ann", gap="150ms")
        begun_us, so_far = now_us(), len(arrived())
        eventually(lambda: len(arrived()) >= so_far + 5, "some by the choice")
        ended_us = now_us()
        producer.users.clear("ann")
        eventually(lambda: len(arrived()) == COUNT, "all of them")
    titles = [f"choice-{n:02}" for n in range(COUNT)]
    assert arrived() == titles
    moments = [simulators.arrived(title)[0].at_us for title in titles]
    assert all(later - earlier >= GAP_US for earlier, later in pairwise(moments))
    chosen = [at for at in moments if begun_us <= at <= ended_us]
    assert len(chosen) >= 4
    assert all(later - earlier >= CHOSEN_US for earlier, later in pairwise(chosen))
