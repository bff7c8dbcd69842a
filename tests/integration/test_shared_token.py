"""Apple's provider token among real worker processes: one for all of them, through their Redis."""

import contextlib
from pathlib import Path

from redis import Redis

from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import Simulators, ends, note, notifier, worker, write_config

TURNS = 25  # after which a worker that has sent nothing is taken for one that sends nothing


def test_workers_send_with_one_token(tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis) -> None:
    """Four worker processes that start at once send with one provider token; Redis does not hold it in the clear."""
    with Simulators(tmp_path / "simulators") as simulators, contextlib.ExitStack() as stack:
        config = write_config(tmp_path, redis_server.url, simulators.providers(), worker={"batch": 1})
        workers = [stack.enter_context(worker(config, name=f"w{n}")) for n in range(4)]
        for process in workers:
            process.ready(redis)
        with notifier(config) as producer:
            # Slow answers and one job a batch: each worker has its share, who is slow to begin of the next forty.
            simulators.apns.latency_ms = 100
            for turn in range(TURNS):
                for job_id in [producer.send(note(f"user-{turn}-{n}", f"token-{turn}-{n}")) for n in range(40)]:
                    ends(producer, job_id, "delivered")
                if simulators.apns.connections_opened >= len(workers):
                    break
        assert simulators.apns.connections_opened == 4
        assert simulators.apns.checks.tokens_seen == 1
        assert len(redis.keys("notifier:token:*")) == 1
        assert not any("eyJ" in process.log for process in workers)
