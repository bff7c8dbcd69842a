"""What a worker of an older version left in Redis is taken up by this one, without a step between.

`recorded/` holds whole keyspaces as older versions wrote them: a depth of one commit is all that CI has, so the older
version itself cannot be run there.
"""

import base64
import json
from pathlib import Path
from typing import Any, Final

import pytest
from redis import Redis

from notifier import Notifier
from notifier.operations.audit.audit import Audit
from notifier.queue import backlogs
from notifier.rules.category import LANES
from notifier.scripts.loader import run
from notifier.settings import parse_settings
from workers import PushWorker

RECORDED: Final = sorted(Path(__file__).with_name("recorded").glob("keyspace-*.json"))
RATES: Final = """
user: {windows: [1000/1s]}
categories:
  default: {lane: default}
  chat: {lane: urgent, when_blocked: collapse}
providers: {fcm: {client: console}}
"""
ENDED: Final = {"collapsed": "superseded", "cancelled": "cancelled", "expiring": "expired"}  # all others: delivered


def plain(value: str) -> bytes:
    return base64.b64decode(value)


def restore(redis: Any, keys: dict[str, Any]) -> None:
    """Write a recorded keyspace. Its times are those of then, so leases have ended, and what waited is due."""
    for key, (kind, ttl_ms, value) in keys.items():
        if kind == "hash":
            redis.hset(key, mapping={plain(name): plain(text) for name, text in value.items()})
        elif kind == "zset":
            redis.zadd(key, {plain(member): float(score) for member, score in value})
        elif kind == "list":
            redis.rpush(key, *map(plain, value))
        elif kind == "set":
            redis.sadd(key, *map(plain, value))
        else:
            assert kind == "string", kind
            redis.set(key, plain(value))
        if ttl_ms:
            redis.pexpire(key, ttl_ms)


class InProcess(PushWorker):
    """A worker in this thread, without the thread that hears RQ's commands and without signals."""

    def subscribe(self) -> None:
        pass

    def unsubscribe(self) -> None:
        pass

    def _install_signal_handlers(self) -> None:
        pass


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: path.stem)
def test_all_of_it_ends(recorded: Path, redis: Redis) -> None:
    """Queued, waiting, in flight, to be retried, of its own time: each ends as it should; the audit finds nothing."""
    told = json.loads(recorded.read_text(encoding="utf-8"))
    restore(redis, told["keys"])
    settings = parse_settings(RATES)
    for lane in LANES:  # as a worker does that takes up other rates
        run(redis, backlogs.retime(lane, "0", max_users=100))
    InProcess(list(LANES), name="new", connection=redis, settings=settings).work(burst=True, logging_level="CRITICAL")
    producer = Notifier(redis, settings)
    states = {what: getattr(producer.status(job_id), "state", None) for what, job_id in told["ids"].items()}
    # What was delivered before is kept for ten minutes, and that was long ago.
    assert states.pop("delivered") in {None, "delivered"}
    assert states == {what: ENDED.get(what, "delivered") for what in states}
    assert list(Audit(redis, lease_us=10**7).findings()) == []
