"""Apple ends connections in the midst of a batch: each message is delivered, and none spends an attempt for it."""

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path

from redis import Redis

from notifier.simulators.wire import Arrival
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import Simulators, ends, note, notifier, worker, write_config

MESSAGES = 120


def test_goaway_in_mid_batch(tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis) -> None:
    """What Apple says it did not process goes over the next connection, what it did is answered and not sent again."""
    with Simulators(tmp_path / "simulators") as simulators:
        simulators.apns.latency_ms = 30
        simulators.apns.max_streams = 20
        config = write_config(tmp_path, redis_server.url, simulators.providers())

        record, shares = simulators.apns.log.record, [0.2, 0.5, 0.8]

        def record_and_go(arrival: Arrival) -> None:
            record(arrival)
            if shares and len(simulators.titles("batch-")) > shares[0] * MESSAGES:
                del shares[0]
                asyncio.get_running_loop().call_soon(partial(simulators.apns.go_away, "Shutdown", keep=0.5))

        simulators.apns.log.record = record_and_go
        with worker(config) as process, notifier(config) as producer:
            process.ready(redis)
            ends(producer, producer.send(note("first", "batch-first")), "delivered")
            job_ids = [producer.send(note(f"user-{n}", f"batch-{n}")) for n in range(MESSAGES)]
            for job_id in job_ids:
                ends(producer, job_id, "delivered")
        arrived = Counter(simulators.titles("batch-"))
        assert len(arrived) == 1 + MESSAGES
        stats = redis.hgetall("notifier:stats")
        assert b"retried" not in stats
        # The log has each arrival, also of what the server then disowned: no other comes a second time.
        assert 0 < arrived.total() - len(arrived) <= int(stats[b"returned"])
        assert 2 <= simulators.apns.connections_opened <= 4  # one for each that found one to end
        assert '"reason": "Shutdown"' in process.log
