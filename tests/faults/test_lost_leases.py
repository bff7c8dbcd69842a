"""Law 4 at the worker: a lease whose answer was lost keeps its place, and those behind it wait for it."""

import os
import signal
from pathlib import Path

from redis import Redis

from notifier.testing.embedded import EmbeddedRedis
from tests.harness.processes import total
from tests.harness.support import Simulators, eventually, fcm, note, notifier, worker, write_config

SENT = 200


def test_what_a_lost_answer_leased_goes_first(redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """Redis is stopped until the worker gives up, and then does what it was asked: all arrive in order, and once."""
    with Simulators(tmp_path / "simulators") as simulators:
        simulators.fcm.latency_ms = 5
        config = write_config(
            tmp_path,
            redis_server.url,
            simulators.providers(),
            redis={"url": redis_server.url, "socket_timeout": "2s"},
            # What cannot be settled before its lease ends comes twice: it outlasts the stop of Redis.
            worker={"lease": "12s", "batch": 5, "in_flight": 10},
        )
        with worker(config) as process, notifier(config) as producer:
            process.ready(redis)
            titles = [f"ann-{n:03}" for n in range(SENT)]
            producer.send_many(note("ann", title, fcm("ann")) for title in titles)
            eventually(lambda: len(simulators.titles("ann-")) > SENT / 4, "traffic")
            os.kill(redis_server.pid, signal.SIGSTOP)
            try:
                eventually(lambda: "limiter_unreachable" in process.log, "the worker to give up")
            finally:
                os.kill(redis_server.pid, signal.SIGCONT)
            eventually(lambda: total(redis, "delivered") == SENT, "all to be delivered")
        assert simulators.titles("ann-") == titles
