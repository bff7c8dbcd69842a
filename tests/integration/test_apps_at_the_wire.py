"""Several apps at the wire: each message arrives under its own topic or project, whoever sends it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier import Notifier
from notifier.notification import Device
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import Simulators, apns, ends, eventually, fcm, note, plain, queue, worker, write_config

CATEGORIES: dict[str, Any] = {
    "default": {"lane": "default"},
    "shift": {"lane": "default", "app": "driver"},
    "brief": {"lane": "default", "expires": "1s"},
}
UNDER = {
    "apns": {None: "com.example.app", "driver": "com.example.driver", "kitchen": "com.example.kitchen"},
    "fcm": {None: "simulated-project", "driver": "simulated-driver", "kitchen": "simulated-kitchen"},
}


@pytest.fixture(scope="module")
def simulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulators]:
    with Simulators(tmp_path_factory.mktemp("simulators"), apps=("driver", "kitchen")) as running:
        yield running


@pytest.fixture
def config(tmp_path: Path, redis_server: EmbeddedRedis, simulators: Simulators) -> Path:
    return write_config(
        tmp_path, redis_server.url, simulators.providers("driver", "kitchen"), categories=CATEGORIES, user={}
    )


def devices(name: str) -> tuple[Device, Device]:
    return apns(name), fcm(name)


def under(simulators: Simulators, title: str) -> dict[str, str | None]:
    """By platform, under which app what was accepted with this title arrived."""
    return {arrival.platform: arrival.app for arrival in simulators.arrived(title) if arrival.status == 200}


def test_each_arrives_under_its_topic_and_project(
    redis: Redis, config: Path, simulators: Simulators, producer: Notifier
) -> None:
    """The notification's own app goes before its category's, and that before the unnamed one; on both platforms."""
    asked: list[tuple[str, str, str | None, str | None]] = [
        ("plain", "default", None, None),
        ("named", "default", "kitchen", "kitchen"),
        ("by-category", "shift", None, "driver"),
        ("own-first", "shift", "kitchen", "kitchen"),
    ]
    before = simulators.apns.connections_opened
    with worker(config) as running:
        running.ready(redis)
        for title, category, app, _ in asked:
            job_id = producer.send(note(title, title, *devices(title), category=category, app=app))
            ends(producer, job_id, "delivered")
        assert running.end() == 0
    assert {title: under(simulators, title) for title, *_ in asked} == {
        title: {platform: apps[expected] for platform, apps in UNDER.items()} for title, _, _, expected in asked
    }
    # One team and one key: one connection, whatever the topic.
    assert simulators.apns.connections_opened - before == 1


def test_another_programs_job_names_an_app_too(
    redis: Redis, config: Path, simulators: Simulators, producer: Notifier
) -> None:
    """A plain RQ job, with meta and without: `app` is a keyword argument like the others."""
    with worker(config) as running:
        running.ready(redis)
        for title, meta in (("with-meta", {"user": "anna", "category": "default"}), ("without-meta", None)):
            kwargs = plain("anna", title, *devices(title), app="driver")
            job = queue(redis).enqueue("notifier.deliver", kwargs=kwargs, meta=meta)
            ends(producer, job.id, "delivered")
            assert under(simulators, title) == {platform: apps["driver"] for platform, apps in UNDER.items()}


def test_a_worker_gives_back_what_another_one_can_send(
    redis: Redis, redis_server: EmbeddedRedis, config: Path, simulators: Simulators, producer: Notifier
) -> None:
    """A worker with one of the apps sends for that one; the other's wait a minute each time, and go with who has it."""
    only = write_config(config.parent / "only", redis_server.url, simulators.providers("kitchen"))
    with worker(only, name="only-kitchen") as running:
        running.ready(redis)
        driver = [producer.send(note(f"user-{n}", f"for-driver-{n}", *devices("d"), app="driver")) for n in range(3)]
        kitchen = [producer.send(note(f"user-{n}", f"for-kitchen-{n}", *devices("k"), app="kitchen")) for n in range(3)]
        for job_id in kitchen:
            ends(producer, job_id, "delivered")
        for job_id in driver:
            ends(producer, job_id, "waiting")
        for platform in UNDER:
            eventually(
                lambda platform=platform: f"no provider is configured for {platform}/driver" in running.log,
                "a shout in the log",
            )
        assert not [arrival for n in range(3) for arrival in simulators.arrived(f"for-driver-{n}")]
    # What names an app itself is refused by its own fault: it spends an attempt, and waits (decision 0039).
    assert redis.zcard("notifier:later") == len(driver)
    redis.zadd("notifier:later", dict.fromkeys(driver, 0))  # the minute is over
    with worker(config, name="all") as running:
        running.ready(redis)
        for job_id in driver:
            ends(producer, job_id, "delivered")
    assert redis.hget("notifier:stats", "retried") == b"3"


def test_an_app_that_nobody_has_ends_with_the_expiry(redis: Redis, config: Path, producer: Notifier) -> None:
    """A plain RQ job for an unknown app is not sent under another one: it waits until it expires."""
    with worker(config) as running:
        running.ready(redis)
        kwargs = plain("anna", "for nobody", fcm("nobody"), app="drivers", category="brief")
        meta = {"user": "anna", "category": "brief", "expires_in": 1}
        job = queue(redis).enqueue("notifier.deliver", kwargs=kwargs, meta=meta)
        ends(producer, job.id, "expired")
        assert "no provider is configured for fcm/drivers" in running.log
