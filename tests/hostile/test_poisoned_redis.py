"""What no script can read ends no worker: keys that each worker reads, with every type and odd numbers.

After each, a user who has nothing to do with it is sent a notification. It is enqueued as a plain producer does: what
is poisoned is met by the worker, not by the producer.
"""

import contextlib
import itertools
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ResponseError

from notifier.scripts.key_types import OF_RQ, types_of
from notifier.scripts.keys import CATALOGUE, redis_key, rq_key, user_key
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import (
    Simulators,
    WorkerProcess,
    apns,
    client_of,
    eventually,
    fcm,
    queue,
    worker,
    write_config,
)

LANES = ("urgent", "default", "bulk")
TOGETHER = "bulk,default,urgent"
FORMS = (
    "",
    "urgent",
    "default",
    "bulk",
    TOGETHER,
    "{victim}",
    "{victim}:default",
    "{victim}:0",
    "apns",
    "fcm",
    "worker",
)
NAMES = (*CATALOGUE, *(f"rq:{name}" for name in OF_RQ))
NUMBERS = ("inf", "-inf", "1e300", str(2**63 - 1), str(2**53), "-1", "0")
AGAIN_S = 0.1
JUNK = b"\xff\x00junk"
Plant = Callable[[Redis, bytes], Any]
PLANTS: dict[str, Plant] = {
    "junk": lambda r, key: r.set(key, JUNK),
    "huge": lambda r, key: r.set(key, 2**63 - 1),
    "list": lambda r, key: r.rpush(key, JUNK, "1"),
    "set": lambda r, key: r.sadd(key, JUNK, "x"),
    "zset": lambda r, key: r.zadd(key, {JUNK: 1, "x": float("inf"), "y": float("-inf"), "z": 1e300, "w": -1}),
    "hash": lambda r, key: r.hset(key, mapping={JUNK: JUNK, "state": "x", "until": "soon", "used": "nan", "x": "inf"}),
    "numbers": lambda r, key: r.hset(key, mapping=dict(zip(FORMS, NUMBERS, strict=False))),
    "stream": lambda r, key: r.xadd(key, {"x": JUNK}),
}


def keys_of(name: str, *rests: str) -> list[bytes]:
    """Keys of this name: of a user, a lane, a route, and these."""
    ours, rqs = partial(redis_key, name), partial(rq_key, name.removeprefix("rq:"))
    return [(rqs if name.startswith("rq:") else ours)(*filter(None, [rest])).encode() for rest in (*FORMS, *rests)]


def poison(redis: Redis, key: bytes, plant: Plant) -> None:
    with redis.pipeline() as pipe:  # the worker may write it in between
        pipe.delete(key)
        plant(pipe, key)
        pipe.execute()


@dataclass
class World:
    redis: Redis
    simulators: Simulators
    worker: WorkerProcess
    config: Path
    numbers: Iterator[int] = field(default_factory=itertools.count)
    waiting: list[str] = field(default_factory=list)  # jobs of the victim

    def enqueue(self, user: str, pipe: Any = None) -> str:
        name = f"{user}-{next(self.numbers)}"
        devices: list[dict[str, str]] = [asdict(apns(user))]
        if user == "victim":
            devices.append(asdict(fcm(user)))
        kwargs = {"user": user, "devices": devices, "title": name, "collapse_id": user, "tags": ["of-all"]}
        lane = queue(self.redis, "default")
        job = lane.create_job("notifier.deliver", kwargs=kwargs, meta={"user": user, "category": "default"})
        job.save(pipe)
        if user == "victim":
            self.waiting = [job.id]
        with contextlib.suppress(ResponseError):  # the queue itself is what cannot be read, until a worker has met it
            (pipe or self.redis).rpush(lane.key, job.id)
        return name

    def others_go_on(self, what: str) -> None:
        """A bystander's notification arrives, and the worker lives."""
        begun = time.monotonic()
        names: list[str] = []

        def arrived() -> bool:
            assert self.worker.process.poll() is None, (what, self.worker.log[-3000:])
            if len(names) <= (time.monotonic() - begun) / AGAIN_S:
                names.append(self.enqueue(f"bystander-{next(self.numbers)}"))
            return any(map(self.simulators.arrived, names))

        eventually(arrived, f"a delivery after {what}")

    def clean(self) -> None:
        """Leave what the worker itself lives by."""
        for key in self.redis.scan_iter("notifier:*"):
            self.redis.delete(key)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory, redis_server: EmbeddedRedis) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("poisoned")
    with Simulators(folder / "simulators") as simulators:
        rates: dict[str, Any] = {
            "users": {
                "victim": {
                    "windows": ["1/1h", {"limit": 1000, "interval": "1d", "precision": "5m"}],
                    "burst": {"capacity": 20, "refill": "1/3m"},
                }
            },
            "categories": {"default": {"lane": "default", "windows": ["1000/1d"], "when_blocked": "collapse"}},
            "events": {"keep": "1h"},
            "history": {"keep": "1h", "max": 10},
        }
        config = write_config(folder, redis_server.url, simulators.providers(), **rates)
        with client_of(config) as redis:
            redis.flushdb()
            with worker(config) as running:
                running.ready(redis)
                yield World(redis, simulators, running, config)


@pytest.mark.parametrize("name", NAMES)
def test_no_key_ends_a_worker(world: World, name: str) -> None:
    """Whatever is under the keys of this name, of each type, a worker goes on, and others are served."""
    for turn in range(len(PLANTS)):  # each type under one form after the other
        plants = itertools.islice(itertools.cycle(PLANTS.values()), turn, None)
        keys = keys_of(name, world.worker.name, *world.waiting)
        for key, plant in zip(keys, plants, strict=False):
            poison(world.redis, key, plant)
        world.enqueue("victim")
        world.others_go_on(f"poison {turn} at {name}")
        world.redis.delete(*keys)


def test_what_a_failing_script_had_taken_is_put_back(world: World) -> None:
    """A script that meets what it cannot read may have taken jobs out of their queue: the worker finds these again."""
    world.clean()
    with world.redis.pipeline() as pipe:  # one look takes them all, and fails on the one in the middle
        names = [world.enqueue(f"taken-{n}", pipe) for n in range(20)]
        pipe.set(user_key("backlogs", "taken-10"), JUNK)
        pipe.execute()
    for name in names:
        eventually(partial(world.simulators.arrived, name), name)


def test_the_catalogue_tells_the_types(world: World) -> None:
    """Each key that a worker has written is of a type that its entry names: what is not is taken for poison."""
    world.clean()
    for user in ("bystander", "victim", "victim"):
        world.enqueue(user)
    world.others_go_on("nothing")
    for key in world.redis.scan_iter("*"):
        if types := types_of(key):
            # The worker goes on, so a key may be gone since it was listed.
            assert world.redis.type(key).decode() in {"none", *types}, key


def test_it_is_told_once(world: World) -> None:
    """A key that cannot be read is named in the log, and set aside whole."""
    world.clean()
    before = len(world.worker.log)
    world.redis.set("notifier:leases", "poison")
    world.others_go_on("a string at leases")
    told = [json.loads(line) for line in world.worker.log[before:].splitlines()]
    (line,) = [line for line in told if line["event"] == "quarantined"]
    assert "notifier:leases" in line["at"]
    assert world.redis.get("notifier:quarantine:notifier:leases") == b"poison"
