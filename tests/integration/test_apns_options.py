"""Apple's own options from the producer's call to the wire: checked before they are enqueued, whole on arrival."""

import time
from pathlib import Path

import pytest
from redis import Redis

from notifier import Notification
from notifier.errors import InvalidNotificationError
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import Simulators, apns, ends, notifier, worker, write_config


def test_from_the_call_to_the_wire(
    tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis, simulators: Simulators
) -> None:
    """A call, a Live Activity and a silent widget, sent through RQ and a worker, are taken by a strict server."""
    live = {"push_type": "liveactivity", "event": "update", "timestamp": int(time.time()), "content_state": {"s": 1}}
    config = write_config(tmp_path, redis_server.url, simulators.providers())
    with worker(config) as process, notifier(config) as producer:
        process.ready(redis)
        for user, fields in {
            "call": {"data": {"call": "7"}, "apns": {"push_type": "voip"}},
            "score": {"title": "Goal", "apns": live},
            "widget": {"apns": {"push_type": "widgets"}},
            "critical": {"title": "Fire", "apns": {"sound": {"name": "a.caf", "critical": True}, "store": False}},
        }.items():
            job_id = producer.send(Notification(user=user, devices=[apns(user)], **fields))
            ends(producer, job_id, "delivered")


def test_refused_before_it_is_enqueued(tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis) -> None:
    """A wrong option is refused by the call, with its field, and nothing is written."""
    with notifier(write_config(tmp_path, redis_server.url)) as producer:
        for options, field in (
            ({"thread-id": "a"}, r"apns\.thread-id: is not an option"),
            ({"push_type": "background"}, "title: is not shown"),
            ({"push_type": "voip", "priority": 3}, r"apns\.priority"),
        ):
            with pytest.raises(InvalidNotificationError, match=field):
                producer.send(Notification(user="u", devices=[apns("u")], title="t", apns=options))
    assert redis.keys("rq:job:*") == []
