"""A permit is a number: what was counted under it stands beside it in the job's hash, and holds for it alone."""

import json
from typing import Final

import pytest
from redis import Redis

from notifier.queue.calls import Leased
from tests.contract.test_direct import LEASE, NOW, S, Worker, job

JOB: Final = "rq:job:one"
SENT: Final = "notifier:sent:{ann}"


@pytest.fixture
def worker(redis: Redis) -> Worker:
    made = Worker(redis)
    made.publish()
    return made


def lease(worker: Worker, category: str, *, direct: bool = True) -> Leased:
    worker.accept(job(category=category))
    (leased,) = worker.take(direct=direct)
    return leased


def settle(worker: Worker, leased: Leased, *, reached: bool) -> None:
    """Half a second later: it was delivered, or is to be tried again."""
    worker.now += S // 2
    if reached:
        worker.end(leased, "delivered", reached=True, word="delivered")
    else:
        worker.end(leased, "later", word="retried", detail=60 * S)


def sends(worker: Worker) -> dict[str, float]:
    """µs from now by what stands in the user's set."""
    found = worker.redis.zrange(SENT, 0, -1, withscores=True)
    return {member.decode(): at - worker.now for member, at in found}


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("reached", [True, False])
def test_one_that_counts_as_three(worker: Worker, *, direct: bool, reached: bool) -> None:
    """All three are in flight until the lease ends; then all are sends of now, or none is left."""
    leased = lease(worker, "costly", direct=direct)
    three = [leased.permit, f"{leased.permit}#2", f"{leased.permit}#3"]
    assert leased.permit.isdigit()
    assert sends(worker) == dict.fromkeys(three, LEASE)
    settle(worker, leased, reached=reached)
    assert sends(worker) == (dict.fromkeys(three, 0) if reached else {})
    assert not worker.redis.hexists(JOB, "push_counted")


def test_a_plain_one_has_nothing_beside_it(worker: Worker) -> None:
    """Which is nearly every notification."""
    leased = lease(worker, "free")
    assert leased.permit.isdigit()
    assert not worker.redis.hexists(JOB, "push_counted")


@pytest.mark.parametrize(
    "said", [json.dumps({"permit": "7", "cost": 3}), '{"permit": "%s"}', '{"permit": "%s", "cost": "many"}', "[]", "{"]
)
def test_what_is_not_said_of_this_permit_says_nothing(worker: Worker, said: str) -> None:
    """What another permit counted, or anybody wrote there: one send is taken back, and the neighbour stays."""
    leased = lease(worker, "free")
    worker.redis.hset(JOB, "push_counted", said.replace("%s", leased.permit))
    neighbour = f"{leased.permit}#2"
    worker.redis.zadd(SENT, {neighbour: NOW})
    settle(worker, leased, reached=False)
    assert list(sends(worker)) == [neighbour]


@pytest.mark.parametrize("reached", [True, False])
def test_a_job_that_is_deleted_in_flight(worker: Worker, *, reached: bool) -> None:
    """All its sends are closed, although nothing beside it says how many there are."""
    leased = lease(worker, "costly")
    worker.redis.delete(JOB)
    settle(worker, leased, reached=reached)
    assert sorted(sends(worker).values()) == ([0, 0, 0] if reached else [])
