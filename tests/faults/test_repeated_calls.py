"""Law 2 at the producer: a call whose answer was lost, and one made twice, is one notification and one delivery."""

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier import Notifier, RedisUnusableError
from notifier.testing.embedded import EmbeddedRedis
from tests.faults.consistency import assert_empty_of_work
from tests.faults.cutting_proxy import CuttingProxy
from tests.harness.processes import total
from tests.harness.support import Simulators, eventually, note, notifier, worker, write_config


@dataclass
class Scene:
    """A worker with a way of its own to Redis, and a producer behind the proxy."""

    producer: Notifier
    proxy: CuttingProxy
    simulators: Simulators
    redis: Redis
    config: Path

    def is_once(self, titles: set[str]) -> None:
        """Each of these arrives once, and nothing is left over."""
        eventually(lambda: total(self.redis, "delivered") == total(self.redis, "accepted"), "the end of all")
        assert Counter(self.simulators.titles("")) == Counter(titles)


@pytest.fixture
def scene(redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path) -> Iterator[Scene]:
    with Simulators(tmp_path / "simulators") as simulators, CuttingProxy(redis_server.port) as proxy:
        direct = write_config(tmp_path / "worker", redis_server.url, simulators.providers(), keep_delivered="0s")
        config = write_config(tmp_path / "producer", proxy.url, simulators.providers())
        with worker(direct) as process, notifier(config) as producer:
            process.ready(redis)
            # From here on Redis knows the script: what is lost is the answer to a call that was run.
            producer.send(note("first", "first"))
            eventually(lambda: total(redis, "delivered") == 1, "the first")
            yield Scene(producer, proxy, simulators, redis, config)
        assert_empty_of_work(redis)


WAYS: dict[str, dict[str, Any]] = {
    "a random id": {},
    "an id of its own": {"job_id": "mine"},
    "a dedupe key": {"dedupe_key": "k"},
    "both": {"job_id": "mine", "dedupe_key": "k"},
}


@pytest.mark.parametrize("way", WAYS)
def test_a_lost_answer_is_asked_for_again(scene: Scene, way: str) -> None:
    """The connection breaks between the call and its answer: `send` returns all the same, and one arrives."""
    scene.redis.set("rq:suspended", "1")  # the worker waits, so that the second call finds the first one's job
    given = dict(WAYS[way])
    job_id = given.pop("job_id", None)
    scene.proxy.cut(1)
    sent = scene.producer.send(note("ann", "one", **given), job_id=job_id)

    assert scene.proxy.lost == 1
    assert total(scene.redis, "accepted") == 2
    assert scene.redis.lrange("rq:queue:default", 0, -1) == [sent.encode()]
    scene.redis.delete("rq:suspended")
    scene.is_once({"first", "one"})


@pytest.mark.parametrize("way", WAYS)
def test_a_lost_answer_is_asked_for_again_after_the_delivery(scene: Scene, way: str) -> None:
    """The same where the worker has delivered it before `send` asks again, and keeps nothing that is delivered."""
    given = dict(WAYS[way])
    job_id = given.pop("job_id", None)
    scene.proxy.cut(1, until=lambda: total(scene.redis, "delivered") == 2)
    sent = scene.producer.send(note("ann", "one", **given), job_id=job_id)

    assert scene.proxy.lost == 1
    assert total(scene.redis, "accepted") == 2
    assert scene.producer.status(sent) is not None
    scene.is_once({"first", "one"})


@pytest.mark.parametrize("way", ["a dedupe key", "an id of its own"])
def test_who_was_told_of_a_failure_may_call_again(scene: Scene, way: str) -> None:
    """No answer came at all, and the caller does not know: the same key or id, said again, is the same notification."""
    scene.redis.set("rq:suspended", "1")
    given = dict(WAYS[way])
    job_id = given.pop("job_id", None)
    scene.proxy.cut(2)
    with pytest.raises(RedisUnusableError):
        scene.producer.send(note("ann", "one", **given), job_id=job_id)
    again = {scene.producer.send(note("ann", "one", **given), job_id=job_id) for _ in range(3)}

    assert scene.proxy.lost == 2
    assert len(again) == 1
    assert total(scene.redis, "accepted") == 2
    scene.redis.delete("rq:suspended")
    scene.is_once({"first", "one"})


def test_a_dedupe_key_outlasts_the_notification(scene: Scene) -> None:
    """Delivered, and said again within dedupe_for: the same id, and nothing more is sent."""
    said = [scene.producer.send(note("ann", "one", dedupe_key="k"), job_id="mine")]
    eventually(lambda: total(scene.redis, "delivered") == 2, "its delivery")
    scene.proxy.cut(1)
    said += [scene.producer.send(note("ann", "one", dedupe_key="k"), job_id=job_id) for job_id in ("mine", None)]

    assert said == ["mine"] * 3
    assert scene.proxy.lost == 1
    scene.is_once({"first", "one"})


def test_two_producers_with_one_key_are_one(scene: Scene) -> None:
    """The same dedupe_key from two producers at once, again and again: both are told one id, and one arrives."""
    keys = [f"key-{n}" for n in range(60)]
    together = threading.Barrier(2)

    def produce(_: int) -> list[str]:
        said = []
        with notifier(scene.config) as producer:
            for key in keys:
                together.wait(60)
                said.append(producer.send(note(key, key, dedupe_key=key)))
        return said

    with ThreadPoolExecutor(2) as pool:
        one, other = pool.map(produce, range(2))
    assert one == other
    assert len(set(one)) == len(keys)
    scene.is_once({"first", *keys})


def test_a_batch_whose_answer_was_lost_is_accepted_once(scene: Scene) -> None:
    """`send_many` asks again for the hundred whose answer did not come, and for no other."""
    scene.redis.set("rq:suspended", "1")
    scene.proxy.cut(1)
    told: list[str] = []
    assert scene.producer.send_many((note(f"u{n}", f"n{n}") for n in range(250)), on_accepted=told.extend) == 250

    assert scene.proxy.lost == 1
    assert len(set(told)) == 250
    scene.redis.delete("rq:suspended")
    scene.is_once({"first", *(f"n{n}" for n in range(250))})
