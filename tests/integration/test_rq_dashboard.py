"""The real rq-dashboard over HTTP, beside a worker: what it shows, and what people do by it."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import Request, urlopen

import pytest
from redis import Redis

from notifier import Notifier
from notifier.operations.audit.audit import Audit
from notifier.simulators.simulator import Reply
from notifier.testing.embedded import EmbeddedRedis
from notifier.testing.ports import free_port
from tests.harness.support import (
    Simulators,
    apns,
    clean_environ,
    ends,
    eventually,
    note,
    scheduled,
    worker,
    write_config,
)

RATES: dict[str, Any] = {"users": {"held": {"windows": ["1/1h"]}, "paced": {"gap": "500ms"}}}


@pytest.fixture
def config(tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis, simulators: Simulators) -> Path:
    del redis  # an empty one
    return write_config(tmp_path, redis_server.url, simulators.providers(), **RATES)


def audit(redis: Redis) -> list[str]:
    return [str(finding) for finding in Audit(redis, lease_us=3_000_000, repair=False).findings()]


@dataclass(frozen=True, slots=True)
class Dashboard:
    """A running rq-dashboard."""

    url: str

    def get(self, path: str) -> str:
        with urlopen(self.url + path) as answer:
            return str(answer.read().decode())

    def json(self, path: str) -> Any:
        return json.loads(self.get(path + ".json"))

    def post(self, path: str) -> None:
        with urlopen(Request(self.url + path, data=b"", method="POST")) as answer:
            assert json.load(answer)["status"] == "OK"

    def jobs(self, registry: str, lane: str = "default") -> list[str]:
        """The ids that a page of a registry lists."""
        return [job["id"] for job in self.json(f"/0/data/jobs/{lane}/{registry}/20/asc/1")["jobs"]]


@contextmanager
def dashboard(redis_url: str) -> Iterator[Dashboard]:
    port = free_port()
    command = [str(Path(sys.executable).with_name("rq-dashboard")), "--json", "--redis-url", redis_url]
    with subprocess.Popen([*command, "--bind", "127.0.0.1", "--port", str(port)], env=clean_environ()) as process:
        try:
            found = Dashboard(f"http://127.0.0.1:{port}")

            def answers() -> bool:
                assert process.poll() is None
                try:
                    return bool(found.get("/"))
                except URLError:
                    return False

            eventually(answers, "rq-dashboard")
            yield found
        finally:
            process.terminate()


def test_it_shows_and_does_what_it_says(
    redis: Redis, redis_server: EmbeddedRedis, config: Path, producer: Notifier, simulators: Simulators
) -> None:
    """It lists what waits, what failed and the worker; requeue sends again, delete ends, the rest goes on in order.

    Nothing is left behind that the audit would find.
    """
    once = simulators.answer(apns("dead"), Reply(410, "Unregistered"), Reply(200))
    with worker(config) as running, dashboard(redis_server.url) as shown:
        running.ready(redis)
        held = [producer.send(note("held", f"held-{n}")) for n in range(4)]
        failed = producer.send(note("dead", "again", once))
        ends(producer, held[0], "delivered")
        ends(producer, held[3], "waiting")
        ends(producer, failed, "rejected")

        assert [each["state"] for each in shown.json("/0/data/workers")["workers"]] in (["idle"], ["busy"])
        assert {each["name"] for each in shown.json("/0/data/queues")["queues"]} >= {"default"}
        assert sorted(shown.jobs("scheduled")) == sorted(held[1:])
        assert failed in shown.jobs("failed")
        assert shown.json(f"/0/data/job/{held[1]}")["status"] == "scheduled"
        assert "410 Unregistered" in shown.json(f"/0/data/job/{failed}")["exc_info"]
        assert held[1] in shown.get(f"/0/view/job/{held[1]}")
        for page in ("/0/view/workers", "/0/view/jobs/default/scheduled/8/asc/1"):
            assert "RQ" in shown.get(page)

        shown.post(f"/job/{failed}/requeue")
        ends(producer, failed, "delivered")
        shown.post(f"/job/{held[1]}/delete")
        assert producer.status(held[1]) is None
        ends(producer, held[2], "waiting")
        assert audit(redis) == []
        shown.post("/queue/default/scheduled/empty")
        eventually(lambda: scheduled(redis).count == 0, "an empty registry")
        eventually(lambda: audit(redis) == [], "a clean audit")

        line = [producer.send(note("paced", f"paced-{n}")) for n in range(4)]
        shown.post(f"/job/{line[2]}/delete")
        ends(producer, line[3], "delivered")
        assert simulators.titles("paced-") == ["paced-0", "paced-1", "paced-3"]
        eventually(lambda: audit(redis) == [], "a clean audit")
