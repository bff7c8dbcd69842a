"""What each answer costs, at a worker: the permit, an attempt, a wait; and which tokens it declares dead."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier import Notifier
from notifier.simulators.wire import Reply
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import (
    Simulators,
    apns,
    client_of,
    ends,
    eventually,
    fcm,
    note,
    notifier,
    scheduled,
    waits_its_time,
    worker,
    write_config,
)

RATES: dict[str, Any] = {
    "user": {"windows": ["1/1h"]},
    "users": {"free": {"windows": []}},
    "categories": {
        "default": {"lane": "default", "attempts": 3},
        "once": {"lane": "default", "attempts": 1},
        "careful": {"lane": "default", "on_unknown": "give_up"},
    },
    # So long that what is to be tried again still waits when a test looks.
    "worker": {"lease": "10s", "grace": "4s", "backoff": {"first": "1m", "most": "10m"}},
}
OK = Reply(200)
CUT = Reply(0, drop=True)
TIMEOUT = "8s"  # for a connection and for an answer, each
HASTY = "2s"  # where nothing is to be answered in time
SLOW = Reply(200, delay_ms=4_500)
SOON = {"Retry-After": "70"}


@dataclass(frozen=True, slots=True)
class World:
    """One worker at work; each user may receive one notification an hour, save the user "free"."""

    redis: Redis
    simulators: Simulators
    producer: Notifier

    def stands(self, job_id: str) -> tuple[str, int]:
        """Its state, and how many attempts were spent."""
        status = self.producer.status(job_id)
        return status.state, status.attempts


@pytest.fixture(scope="module")
def simulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulators]:
    with Simulators(tmp_path_factory.mktemp("simulators"), apps=("driver",)) as running:
        yield running


@contextmanager
def at_work(folder: Path, url: str, simulators: Simulators, timeout: str) -> Iterator[World]:
    config = write_config(folder, url, simulators.providers("driver", timeout=timeout), **RATES)
    with client_of(config) as redis:
        redis.flushdb()
        with notifier(config) as producer, worker(config) as running:
            running.ready(redis)
            yield World(redis, simulators, producer)


@pytest.fixture(scope="module")
def world(
    tmp_path_factory: pytest.TempPathFactory, redis_server: EmbeddedRedis, simulators: Simulators
) -> Iterator[World]:
    with at_work(tmp_path_factory.mktemp("world"), redis_server.url, simulators, TIMEOUT) as made:
        yield made


@pytest.fixture(scope="module")
def hasty(tmp_path_factory: pytest.TempPathFactory, simulators: Simulators) -> Iterator[World]:
    with EmbeddedRedis() as server, at_work(tmp_path_factory.mktemp("hasty"), server.url, simulators, HASTY) as made:
        yield made


@pytest.mark.parametrize("make", [apns, fcm])
@pytest.mark.parametrize(
    ("category", "reply", "state", "attempts", "permits"),
    [
        ("default", OK, "delivered", 0, 1),
        ("default", {apns: Reply(410, "Unregistered"), fcm: Reply(404, "UNREGISTERED")}, "rejected", 1, 0),
        ("default", Reply(400, "INVALID_ARGUMENT"), "rejected", 1, 0),
        ("default", Reply(429, "TooManyRequests", SOON), "waiting", 0, 0),
        ("once", Reply(429, "TooManyRequests", SOON), "waiting", 0, 0),
        ("default", CUT, "waiting", 1, 1),
        ("default", SLOW, "waiting", 1, 1),
        ("default", Reply(503, "Shutdown", SOON), "waiting", 1, 1),
        ("once", CUT, "failed", 1, 1),
        ("careful", CUT, "failed", 1, 1),
        ("careful", SLOW, "failed", 1, 1),
        ("careful", Reply(503, "Shutdown"), "failed", 1, 1),
        ("careful", Reply(429, "TooManyRequests", SOON), "waiting", 0, 0),
    ],
    ids=[
        "delivered", "dead token", "refused", "throttled", "throttled with one attempt", "cut", "no answer",
        "error of the server", "cut at last", "cut and given up", "no answer and given up",
        "error of the server and given up", "throttled and careful",
    ],
)  # fmt: skip
def test_an_answer_has_its_price(  # noqa: PLR0917 - a row of the table
    request: Any, make: Any, category: str, reply: Any, state: str, attempts: int, permits: int
) -> None:
    """A permit is kept where it may have reached the user and refunded where it cannot have; tries are counted."""
    world: World = request.getfixturevalue("hasty" if reply is SLOW else "world")
    user = f"{make.__name__}-{category}-{id(reply)}"
    device = world.simulators.answer(make(user), reply[make] if isinstance(reply, dict) else reply)
    began = time.time()
    job_id = world.producer.send(note(user, user, device, category=category))
    if state == "waiting":
        eventually(lambda: waits_its_time(world.redis, job_id), "its wait")
    # It may have been given back for free before: after a cut no connection is opened at once.
    eventually(lambda: world.stands(job_id) == (state, attempts), f"{state} after {attempts} attempts")
    status = world.producer.status(job_id)
    assert status is not None
    assert world.redis.zcard(f"notifier:sent:{{{user}}}") == permits
    records = world.producer.history(user)
    assert [record.outcome for record in records] == ([] if state == "waiting" else [state])
    if state == "waiting":
        # The wait stands where RQ's tools look for it, and nobody sleeps for it.
        expected = status.expected_at.timestamp()
        waits_there = lambda: abs(scheduled(world.redis).get_scheduled_time(job_id).timestamp() - expected) < 1  # noqa: E731
        eventually(waits_there, "RQ's registry to say when")  # a look after it is back in its backlog says so
        assert status.expected_at.timestamp() - began > 29


def test_a_dead_token_is_told_once_however_often_the_rest_is_tried(world: World) -> None:
    """One entry for the dead of several devices, with its app and Apple's own time; a retry tells it no second time."""
    dead = world.simulators.answer(apns("dead"), Reply(410, "Unregistered"))
    busy = world.simulators.answer(fcm("busy-beside-dead"), CUT, CUT, OK)
    before = time.time()
    job_id = world.producer.send(note("free", "dead", dead, busy, fcm("well-beside-dead"), app="driver"))
    for tries in (1, 2):
        eventually(lambda tries=tries: world.stands(job_id) == ("waiting", tries), f"try {tries}")
        world.redis.zadd("notifier:later", {job_id: 0})
    ends(world.producer, job_id, "delivered")
    assert [a.status for a in world.simulators.arrived("dead") if a.token == busy.token] == [0, 0, 200]
    assert [a.status for a in world.simulators.arrived("dead") if a.token == dead.token] == [410]
    (gone,) = [gone for gone in world.producer.feedback("once") if gone.token == dead.token]
    assert (gone.platform, gone.app, gone.user, gone.reason, gone.job_id) == (
        "apns", "driver", "free", "Unregistered", job_id
    )  # fmt: skip
    # Apple tells it in milliseconds.
    assert gone.gone_at.microsecond % 1000 == 0
    assert before - 1 < gone.gone_at.timestamp() < time.time()


def test_what_is_not_dead_is_not_told(world: World) -> None:
    """A token that is refused for another reason, or not answered for, may live: the feedback is silent about it."""
    refused = [
        world.simulators.answer(apns("bad"), Reply(400, "BadDeviceToken")),
        world.simulators.answer(apns("other-topic"), Reply(400, "DeviceTokenNotForTopic")),
        world.simulators.answer(fcm("argument"), Reply(400, "INVALID_ARGUMENT")),
        world.simulators.answer(fcm("sender"), Reply(403, "SENDER_ID_MISMATCH")),
    ]
    for number, device in enumerate(refused):
        ends(world.producer, world.producer.send(note("free", f"alive-{number}", device)), "rejected")
    tokens = {gone.token for gone in world.producer.feedback("alive")}
    assert not tokens & {device.token for device in refused}


def test_a_second_try_is_the_same_message_to_the_device(world: World) -> None:
    """After an unknown the second try carries the same apns-id and collapse id, so that a device shows it once."""
    apple, google = (world.simulators.answer(make("same"), CUT, OK) for make in (apns, fcm))
    job_id = world.producer.send(note("free", "same", apple, google, collapse_id="score"))
    eventually(lambda: world.stands(job_id) == ("waiting", 1), "the first try")
    world.redis.zadd("notifier:later", {job_id: 0})
    ends(world.producer, job_id, "delivered")
    first, second, *of_google = sorted(world.simulators.arrived("same"), key=lambda arrival: arrival.platform)
    assert [arrival.status for arrival in (first, second)] == [0, 200]
    assert first.message_id == second.message_id != ""
    assert [arrival.collapse_id for arrival in (first, second, *of_google)] == ["score"] * 4


def test_a_dry_run_is_shouted_and_reaches_no_phone(tmp_path: Path, simulators: Simulators) -> None:
    """With providers.fcm.dry_run all goes its way but to the phone, and the worker says so when it starts."""
    providers = simulators.providers()
    rehearsal = {**providers, "fcm": {**providers["fcm"], "dry_run": True}}
    with EmbeddedRedis() as server:
        config = write_config(tmp_path, server.url, rehearsal, **RATES)
        with notifier(config) as producer:
            job_id = producer.send(note("dry", "dry", fcm("dry")))
            with worker(config, "--burst") as running:
                assert running.process.wait(60) == 0
            ends(producer, job_id, "delivered")
        assert [line for line in running.log.splitlines() if '"dry_run"' in line and '"warning"' in line]
    assert not simulators.arrived("dry")
    assert [a.title for a in simulators.dry_runs()] == ["dry"]
