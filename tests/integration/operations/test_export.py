"""`notifier users export --user`: all that is kept of one person, and nothing of another."""

import json
from pathlib import Path

import pytest
from redis import Redis

from notifier import Notifier
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import CONSOLE, apns, ends, note, worker, write_config
from tests.integration.conftest import Run


@pytest.fixture
def config(tmp_path: Path, redis_server: EmbeddedRedis) -> Path:
    return write_config(tmp_path, redis_server.url, CONSOLE, user={"windows": ["1/1h"]}, history={"keep": "1h"})


def test_all_that_is_kept_of_one(config: Path, redis: Redis, run: Run, producer: Notifier) -> None:
    """What was sent and when, what became of it, what waits with its text, and what the user chose; no token whole."""
    with worker(config) as running:
        running.ready(redis)
        sent = producer.send(note("ann", "the first"))
        ends(producer, sent, "delivered")
        waits = producer.send(note("ann", "the second", apns("her-phone")))
        ends(producer, waits, "waiting")
        ends(producer, producer.send(note("bob", "a stranger's")), "delivered")
    producer.users.mute("ann", categories=["chat"])
    told = run("users", "export", "--user", "ann")
    assert told.status == 0
    kept = json.loads(told.out)
    assert [record["job_id"] for record in kept["history"]] == [sent]
    assert kept["totals"]["delivered"] == 1
    assert len(kept["sends"]) == 1
    assert [each["job_id"] for each in kept["waiting"]] == [waits]
    assert kept["waiting"][0]["notification"]["title"] == "the second"
    assert kept["chosen"]["mutes"][0]["categories"] == ["chat"]
    assert len(kept["changes"]) == 1
    assert apns("her-phone").token not in told.out
    assert "stranger" not in told.out
    producer.forget("ann", hard=True)
    gone = json.loads(run("users", "export", "--user", "ann").out)
    assert {name for name, value in gone.items() if value} == {"user", "waiting_is_all"}
