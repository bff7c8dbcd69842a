"""What the providers' rules mean for a notification: one worker process, strict servers, real Redis."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier import Notifier
from notifier.notification import Device
from notifier.producer.exchanges import Status
from notifier.simulators.wire import Arrival, Reply
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import (
    Simulators,
    WorkerProcess,
    apns,
    client_of,
    ends,
    eventually,
    fcm,
    note,
    notifier,
    state,
    waits_its_time,
    worker,
    write_config,
)

RATES: dict[str, Any] = {
    "user": {"windows": ["1/1h"]},
    "users": {"free": {"windows": []}},
    "categories": {
        "default": {"lane": "default"},
        "careful": {"lane": "default", "on_unknown": "give_up"},
    },
}
OK = Reply(200)
CUT = Reply(0, drop=True)
SECOND = 1_000_000


@dataclass(frozen=True, slots=True)
class World:
    """One worker at work; each user may receive one notification an hour, save the user "free"."""

    redis: Redis
    simulators: Simulators
    producer: Notifier
    worker: WorkerProcess

    def send(self, user: str, *devices: Device, title: str = "", **fields: Any) -> str:
        return self.producer.send(note(user, title or user, *devices, **fields))

    def permits(self, user: str) -> int:
        return int(self.redis.zcard(f"notifier:sent:{{{user}}}"))

    def after(self, job_id: str) -> Status:
        """The notification's state once it waits for its next try."""
        eventually(lambda: waits_its_time(self.redis, job_id), f"the wait of {job_id}")
        status = self.producer.status(job_id)
        assert status is not None
        return status

    def wait_s(self, status: Status) -> float:
        """For how long the notification still waits, in seconds."""
        assert status.state == "waiting"
        assert status.expected_at is not None
        return (status.expected_at - datetime.now(UTC)).total_seconds()

    def waits_in_all_s(self, status: Status, title: str) -> float:
        """For how long it waits from its last arrival on, in seconds."""
        return self.wait_s(status) + time.time() - self.simulators.arrived(title)[-1].at_us / 1e6

    def now(self, job_id: str) -> None:
        """Let its wait be over: a test has not the minutes that providers ask for."""
        if self.redis.hdel(f"rq:job:{job_id}", "push_wait"):  # at the head of its backlog
            user = json.loads(self.redis.hget(f"rq:job:{job_id}", "meta"))["user"]
            self.redis.zadd("notifier:wakeups:default", {user: 0})
        else:
            self.redis.zadd("notifier:later", {job_id: 0})

    def wire(self, title: str, device: Device) -> list[Arrival]:
        return [arrival for arrival in self.simulators.arrived(title) if arrival.token == device.token]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, redis_server: EmbeddedRedis) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("world")
    with Simulators(folder / "simulators") as simulators:
        config = write_config(folder, redis_server.url, simulators.providers(), **RATES)
        with client_of(config) as redis:
            redis.flushdb()
            with notifier(config) as producer, worker(config) as running:
                yield World(redis, simulators, producer, running.ready(redis))


@pytest.mark.parametrize(
    ("device", "reply", "least_s"),
    [
        (fcm("quota"), Reply(429, "QUOTA_EXCEEDED"), 60),
        (fcm("quota-soon"), Reply(429, "QUOTA_EXCEEDED", {"Retry-After": "1"}), 60),
        (fcm("quota-late"), Reply(429, "QUOTA_EXCEEDED", {"Retry-After": "300"}), 300),
        (apns("busy"), Reply(429, "TooManyRequests"), 60),
    ],
    ids=["fcm", "fcm soon", "fcm late", "apns"],
)
def test_too_many_requests_wait_without_a_permit(world: World, device: Device, reply: Reply, least_s: int) -> None:
    """A 429 reached nobody: the permit is given back, no attempt is spent, and the job itself holds the wait."""
    user = device.token[-12:]
    job_id = world.send(user, world.simulators.answer(device, reply, OK))
    status = world.after(job_id)
    assert world.waits_in_all_s(status, user) >= least_s
    assert world.wait_s(status) < least_s + 80
    assert (status.attempts, world.permits(user)) == (0, 0)
    world.now(job_id)
    ends(world.producer, job_id, "delivered")
    assert [a.status for a in world.wire(user, device)] == [429, 200]


@pytest.mark.parametrize(
    ("device", "reply", "least_s"),
    [
        (fcm("maybe"), Reply(503, "UNAVAILABLE"), 10),
        (fcm("maybe-late"), Reply(503, "UNAVAILABLE", {"Retry-After": "120"}), 120),
        (apns("maybe"), Reply(503, "Shutdown"), 900),
        (apns("maybe-soon"), Reply(500, "InternalServerError", {"Retry-After": "5"}), 900),
    ],
    ids=["fcm", "fcm late", "apns", "apns soon"],
)
def test_a_server_error_may_have_delivered(world: World, device: Device, reply: Reply, least_s: int) -> None:
    """A 5xx is unknown: the permit stays spent, so that nobody is burst, and it is tried again when they say."""
    user = device.token[-12:]
    job_id = world.send(user, world.simulators.answer(device, reply, OK))
    status = world.after(job_id)
    assert world.waits_in_all_s(status, user) >= least_s
    assert world.wait_s(status) < least_s * 1.3
    assert (status.attempts, world.permits(user)) == (1, 1)
    world.now(job_id)
    # Its user's one permit of the hour is gone: the second try waits for the next one, like any other.
    eventually(lambda: world.redis.zscore("notifier:later", job_id) is None, "the end of its wait")
    # For an instant it is due, until its user has been looked at.
    eventually(lambda: world.wait_s(world.producer.status(job_id)) > 3000, "the wait for the next permit")
    assert [a.status for a in world.wire(user, device)] == [503 if reply.status == 503 else 500]


@pytest.mark.parametrize("device", [fcm("given-up"), apns("given-up")], ids=["fcm", "apns"])
def test_what_is_given_up_keeps_its_permit(world: World, device: Device) -> None:
    """With on_unknown: give_up a 503 ends as failed after one try, and counts against its user's limits."""
    user = device.token[-12:]
    job_id = world.send(user, world.simulators.answer(device, Reply(503, "UNAVAILABLE"), OK), category="careful")
    ends(world.producer, job_id, "failed")
    assert world.permits(user) == 1
    assert len(world.wire(user, device)) == 1


def test_a_second_try_is_the_same_message_to_the_device(world: World) -> None:
    """After an unknown the second try carries the same apns-id and collapse id, so that a device shows it once."""
    apple, google = (world.simulators.answer(make("same"), CUT, OK) for make in (apns, fcm))
    job_id = world.send("free", apple, google, title="same", collapse_id="score")
    ends(world.producer, job_id, "delivered")
    first, second = world.wire("same", apple)
    assert (first.status, second.status) == (0, 200)
    assert first.message_id == second.message_id != ""
    assert [a.collapse_id for a in (first, second, *world.wire("same", google))] == ["score"] * 4


def test_a_device_that_is_told_to_wait_holds_up_no_other(world: World) -> None:
    """APNs' 429 is for one device: the notification goes on to the others, and other notifications are not held."""
    busy = world.simulators.answer(apns("one-busy"), Reply(429, "TooManyRequests"), OK)
    others = [apns("one-other"), fcm("one-google")]
    job_id = world.send("free", busy, *others, title="one")
    eventually(lambda: all(world.wire("one", device) for device in (busy, *others)), "the three devices")
    next_one = world.send("free", *others, title="two")
    to_another = world.send("another", apns("another"))
    for after in (next_one, to_another):
        ends(world.producer, after, "delivered")
    assert state(world.producer, job_id) == "waiting"
    assert [a.status for a in world.wire("one", busy)] == [429]
    world.now(job_id)
    ends(world.producer, job_id, "delivered")
    assert [a.status for a in world.wire("one", busy)] == [429, 200]
    assert [len(world.wire("one", device)) for device in others] == [1, 1]


@pytest.mark.parametrize(
    ("device", "reply"),
    [
        (fcm("argument"), Reply(400, "INVALID_ARGUMENT")),
        (fcm("sender"), Reply(403, "SENDER_ID_MISMATCH")),
        (apns("bad-token"), Reply(400, "BadDeviceToken")),
        (apns("bad-topic"), Reply(400, "DeviceTokenNotForTopic")),
        (apns("large"), Reply(413, "PayloadTooLarge")),
    ],
    ids=lambda value: getattr(value, "reason", None),
)
def test_what_will_never_be_taken_is_not_tried_again(world: World, device: Device, reply: Reply) -> None:
    """A final refusal ends the notification after one try, with the provider's own word, and costs its user nothing."""
    user = device.token[-12:]
    job_id = world.send(user, world.simulators.answer(device, reply, OK))
    ends(world.producer, job_id, "rejected")
    status = world.producer.status(job_id)
    assert status is not None
    assert reply.reason in (status.reason or "")
    assert "dead_token" not in (status.reason or "")
    assert len(world.wire(user, device)) == 1
    assert world.permits(user) == 0


def test_a_dry_run_is_shouted_and_reaches_no_phone(tmp_path: Path, world: World) -> None:
    """With providers.fcm.dry_run all goes its way but to the phone, and the worker says so when it starts."""
    providers = world.simulators.providers()
    rehearsal = {**providers, "fcm": {**providers["fcm"], "dry_run": True}}
    with EmbeddedRedis() as server:
        config = write_config(tmp_path, server.url, rehearsal, **RATES)
        with notifier(config) as producer:
            job_id = producer.send(note("dry", "dry", fcm("dry")))
            with worker(config, "--burst") as running:
                assert running.process.wait(60) == 0
            assert state(producer, job_id) == "delivered"
        assert [line for line in running.log.splitlines() if '"dry_run"' in line and '"warning"' in line]
    assert not world.simulators.arrived("dry")
    assert [a.title for a in world.simulators.dry_runs()] == ["dry"]
