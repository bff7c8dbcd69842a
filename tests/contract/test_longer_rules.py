"""Rules that only `acquire` knows count what a worker sends, however short the worker's own rules are."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Final

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from notifier import AsyncNotifier, Notifier
from notifier.limiter import Hold, Permit
from notifier.queue import calls
from notifier.queue.retention import Retention
from notifier.rules.category import Category
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import NO_RULES, Policy, Window
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.settings import parse_settings
from notifier.testing import FakeNotifier
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


@pytest.mark.parametrize("category", [None, "news"])
def test_what_acquire_takes_by_a_shorter_rule_counts_for_the_workers(redis: Redis, category: str | None) -> None:
    """Law 1: what is acquired by a rule of a second, or by none, is known as long as the workers' rules need it."""
    day = Policy((Window(4, "1d"),))
    of_news = "categories: {news: {lane: bulk, windows: [4/1d]}}"
    program = Notifier(redis, parse_settings(f"{{user: {{windows: [4/1d]}}, {of_news}}}"))
    assert isinstance(program.limiter, RedisLimiter)
    for n, policy in enumerate((*(3 * (Policy((Window(1, "1s"),)),)), NO_RULES)):
        program.limiter.clock = str(NOW + n * 2 * S)
        rules = policy if category is None else Rules(NO_RULES, Category(category, policy=policy))
        assert isinstance(program.limiter.acquire("ann", rules), Permit)
        let_pass(redis, 2 * S)
    known = RedisLimiter(redis, clock=str(NOW + 8 * S))
    assert isinstance(known.peek("ann", day), Hold)
    if category is not None:
        assert isinstance(known.peek("ann", Rules(NO_RULES, Category(category, policy=day))), Hold)


@pytest.mark.parametrize("category", [None, "news"])
def test_what_a_test_acquires_by_a_shorter_rule_counts_as_long(category: str | None) -> None:
    """FakeNotifier's limiter knows its configuration's rules, too."""
    day = Policy((Window(4, "1d"),))
    of_news = "categories: {news: {lane: bulk, windows: [4/1d]}}"
    fake = FakeNotifier(parse_settings(f"{{user: {{windows: [4/1d]}}, {of_news}}}"))
    for policy in (*(3 * (Policy((Window(1, "1s"),)),)), NO_RULES):
        rules = policy if category is None else Rules(NO_RULES, Category(category, policy=policy))
        assert isinstance(fake.limiter.acquire("ann", rules), Permit)
        fake.advance(timedelta(seconds=2))
    assert isinstance(fake.limiter.peek("ann", day), Hold)
    if category is not None:
        assert isinstance(fake.limiter.peek("ann", Rules(NO_RULES, Category(category, policy=day))), Hold)


def test_an_asyncio_program_keeps_what_it_acquires_as_long(redis: Redis) -> None:
    """AsyncNotifier's limiter knows the workers' rules, too."""

    async def story() -> None:
        kwargs = redis.connection_pool.connection_kwargs
        client = AsyncRedis(host=kwargs["host"], port=kwargs["port"], db=kwargs.get("db", 0), protocol=2)
        program = AsyncNotifier(client, parse_settings("user: {windows: [4/1d]}"))
        await program.limiter.acquire("ann", Policy((Window(1, "1s"),)))
        await program.aclose()

    asyncio.run(story())
    assert redis.pttl("notifier:sent:{ann}") > 23 * 60 * 60_000
