"""Rules that only `acquire` knows count what a worker sends, however short the worker's own rules are."""

from __future__ import annotations

from typing import Final

import pytest
from redis import Redis

from notifier.limiter import Permit
from notifier.queue import calls
from notifier.queue.retention import Retention
from notifier.rules.policies import Policies
from notifier.rules.policy import Category, Policy, Window
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.user_limits.redis import RedisLimiter
from tests.contract.test_direct import NOW, S, Worker, job
from tests.harness.support import let_pass

MINUTE: Final = 60 * S
LONG: Final = Policy((Window(4, "1h"),))
WORKERS: Final = {
    "windows": Policy((Window(3, "20s"),)),
    "buckets": Policy((Window(3, interval_us=20 * S, precision_us=S),)),
}


def send(worker: Worker, name: str, *, direct: bool) -> None:
    """One that a worker sends, half a second after it was leased."""
    worker.accept(job(name, category="default"))
    (leased,) = worker.take(direct=direct)
    pass_by(worker, S // 2)
    done = calls.Settlement(name, leased.permit, leased.user, leased.category, True, "delivered", "delivered")
    kept = Retention(S, S, S)
    call = calls.settle([done], worker.rules, calls.Worker(name=worker.name, keep=kept, clock=str(worker.now)))
    assert run(worker.redis, call) == [True]


def pass_by(worker: Worker, us: int) -> None:
    worker.now += us
    let_pass(worker.redis, us)


@pytest.mark.parametrize("direct", [True, False])
@pytest.mark.parametrize("rules", WORKERS)
def test_a_worker_forgets_nothing_that_a_longer_rule_counts(redis: Redis, rules: str, *, direct: bool) -> None:
    """Law 1: asked every minute for four hours, a rule of four an hour never gives more beside what a worker sends."""
    policies = Policies(WORKERS[rules], categories={"default": Category("default")})
    worker = Worker(redis, now=NOW, rules=RuleTable(policies))
    limiter = RedisLimiter(redis)
    send(worker, "first", direct=direct)
    sent = [worker.now]
    taken = 0
    for n in range(240):
        if n % 120 in {7, 8, 20, 31}:
            send(worker, f"job-{n}", direct=direct)
            sent.append(worker.now)
        limiter.clock = str(worker.now)
        if isinstance(limiter.acquire("ann", LONG), Permit):
            assert sum(at > worker.now - 60 * MINUTE for at in sent) < 4
            sent.append(worker.now)
            taken += 1
        pass_by(worker, MINUTE)
    assert taken >= 8, "the rule lets some go"
