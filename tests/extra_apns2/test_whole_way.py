"""The whole way with apns2: enqueued, admitted, sent by a worker process, arrived, settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

import pytest

from notifier import Notifier
from notifier.simulators.wire import Arrival, Reply
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
    state,
    worker,
    write_config,
)


@pytest.fixture(scope="module")
def simulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulators]:
    with Simulators(tmp_path_factory.mktemp("simulators")) as running:
        yield running


@pytest.fixture(scope="module")
def producer(
    simulators: Simulators, redis_server: EmbeddedRedis, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Notifier]:
    """A producer, whose notifications a worker process with client apns2 sends."""
    folder = tmp_path_factory.mktemp("worker")
    providers = simulators.providers(timeout="1s")
    providers["apns"]["client"] = "apns2"
    config = write_config(folder, redis_server.url, providers, users={"gapped": {"gap": "150ms"}})
    client = client_of(config)
    client.flushdb()
    with worker(config) as process, notifier(config) as made:
        process.ready(client)
        yield made
        assert process.end() == 0
    client.close()
    assert "Traceback" not in process.log


def arrived(simulators: Simulators, title: str) -> list[Arrival]:
    """What was accepted under titles that begin so, in order."""
    return [a for a in simulators.all() if a.status == 200 and (a.title or "").startswith(title)]


def test_each_arrives_once(simulators: Simulators, producer: Notifier) -> None:
    """Notifications of many users, to Apple's and Google's devices, arrive once each and are settled as delivered."""
    jobs = [producer.send(note(f"user{n}", f"many {n}", apns(f"u{n}"), fcm(f"u{n}"))) for n in range(40)]
    for job in jobs:
        ends(producer, job, "delivered")
    seen = Counter((a.title, a.platform) for a in arrived(simulators, "many"))
    assert seen == {(f"many {n}", platform): 1 for n in range(40) for platform in ("apns", "fcm")}


def test_a_user_is_not_burst(simulators: Simulators, producer: Notifier) -> None:
    """Law 1 at the wire: a user's gap holds, in order, through apns2."""
    jobs = [producer.send(note("gapped", f"gap {n}")) for n in range(5)]
    for job in jobs:
        ends(producer, job, "delivered")
    arrivals = arrived(simulators, "gap")
    assert [a.title for a in arrivals] == [f"gap {n}" for n in range(5)]
    assert all(b.at_us - a.at_us >= 150_000 for a, b in pairwise(arrivals))


def test_answers_are_settled(simulators: Simulators, producer: Notifier) -> None:
    """A dead token is rejected for good, a refusal for now is tried again and delivered."""
    gone, busy = apns("gone"), apns("busy")
    simulators.answer(gone, Reply(410, "Unregistered"))
    simulators.answer(busy, Reply(429, "TooManyRequests", headers={"Retry-After": "0"}), Reply(200))
    ends(producer, producer.send(note("gone", "dead", gone)), "rejected")
    ends(producer, producer.send(note("busy", "again", busy)), "delivered")
    assert len(arrived(simulators, "again")) == 1


def test_an_outage_loses_nothing(simulators: Simulators, producer: Notifier) -> None:
    """What is enqueued while Apple cannot be reached is sent by the same worker when it can be."""
    simulators.call(simulators.apns.close())
    jobs = [producer.send(note(f"patient{n}", f"outage {n}")) for n in range(10)]
    eventually(lambda: {state(producer, job) for job in jobs} == {"waiting"}, "a first try of all")
    simulators.call(simulators.apns.start())
    for job in jobs:
        ends(producer, job, "delivered")
    assert Counter(a.title for a in arrived(simulators, "outage")) == {f"outage {n}": 1 for n in range(10)}
