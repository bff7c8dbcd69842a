"""The limiter while Redis cannot be asked: what it answers, who waits for it, and when it asks again."""

import asyncio
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import ClusterError, OutOfMemoryError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError

from notifier.errors import LimiterUnreachableError
from notifier.limiter import AsyncLimiter, Hold, Limiter, LimitExceeded, MemoryLimiter, Permit, outage
from notifier.limiter.middleware import WebAnswer, WebLimit
from notifier.limiter.middleware.guard import Guard
from notifier.limiter.middleware.request import WebRequest
from notifier.limiter.outage import share_of
from notifier.testing.embedded import EmbeddedRedis
from tests.faults.cutting_proxy import CuttingProxy
from tests.harness.mortal_redis import MortalRedis
from tests.harness.support import PATIENCE_S

NOWHERE = "redis://127.0.0.1:1"


@pytest.fixture
def hanging() -> Iterator[str]:
    """A server that takes connections and says nothing."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(100)
        yield f"redis://127.0.0.1:{server.getsockname()[1]}"


class Clock:
    """The clock of the breaker."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(outage, "time", SimpleNamespace(monotonic=lambda: self.now, time_ns=lambda: 0))


class Broken:
    """A client that counts how often it is asked, and cannot."""

    asked = 0

    def execute_command(self, *_: Any, **__: Any) -> None:
        self.asked += 1
        raise RedisConnectionError


async def test_a_server_that_hangs_is_not_waited_for(hanging: str) -> None:
    """With `timeout` a call ends, in threads and in tasks, and `on_error` says how."""
    with Limiter.from_url(hanging, namespace="n", timeout="30ms") as limiter, pytest.raises(LimiterUnreachableError):
        limiter.acquire("k", "1/day")
    with Limiter.from_url(hanging, namespace="n", timeout=0.03, on_error="permit") as limiter:
        assert limiter.acquire("k", "1/day")
    async with AsyncLimiter.from_url(hanging, namespace="n", timeout="30ms", on_error="hold") as held:
        assert isinstance(await held.acquire("k", "1/day"), Hold)


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_while_redis_is_away_stays_one(
    interrupt: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends who waits, though the permit cannot be given back; no handler of outages gets it."""
    with MortalRedis() as server, Limiter.from_url(server.url, namespace="n") as limiter:

        def interrupted(_limiter: Limiter, _seconds: float) -> None:
            server.kill()
            raise interrupt

        monkeypatch.setattr(Limiter, "_sleep", interrupted)
        with pytest.raises(interrupt), limiter.slot("k", "1/hour"):
            pass


@pytest.mark.parametrize("timeout", ["5s", None])
@pytest.mark.parametrize("kind", ["sync", "async"])
def test_a_call_whose_answer_is_lost_is_not_made_again(
    redis: Redis, redis_server: EmbeddedRedis, timeout: str | None, kind: str
) -> None:
    """It may have taken its permit: a second one would be refused because of the first, or take twice."""

    def story(ask: Callable[..., Any]) -> None:
        assert ask("known", "5/day")
        for n in range(3):
            proxy.cut(1)
            with pytest.raises(LimiterUnreachableError):
                ask("k", "5/day", cost=2 - n % 2)
        assert Limiter(redis, namespace="n").count("k", last="1d") == 5

    with CuttingProxy(redis_server.port) as proxy:
        if kind == "sync":
            with Limiter.from_url(proxy.url, namespace="n", timeout=timeout) as limiter:
                story(limiter.acquire)
            return
        with asyncio.Runner() as runner:
            waits = AsyncLimiter.from_url(proxy.url, namespace="n", timeout=timeout)
            story(lambda *args, **kwargs: runner.run(waits.acquire(*args, **kwargs)))
            runner.run(waits.aclose())


@pytest.mark.parametrize("timeout", ["0s", 0, -1.5])
def test_a_timeout_is_a_time(timeout: Any) -> None:
    """One that is over at once is a mistake."""
    with pytest.raises(ValueError, match="timeout must be longer"):
        Limiter.from_url(NOWHERE, namespace="n", timeout=timeout)


@pytest.mark.parametrize("on_error", ["hold", "permit", "memory"])
def test_one_call_in_a_while_tries(redis: Redis, monkeypatch: pytest.MonkeyPatch, on_error: Any) -> None:
    """The others are answered at once; and when one is answered by Redis, all are."""
    clock, client = Clock(monkeypatch), Broken()
    limiter = Limiter(client, namespace="n", on_error=on_error)
    for tries in (1, 2, 3):
        for _ in range(50):
            limiter.acquire("k", "1000/day")
        assert client.asked == tries
        clock.now += 10
    limiter.redis = redis
    for _ in range(7):
        limiter.acquire("k", "1000/day")
    assert limiter.count("k", last="1h") == 7


@contextmanager
def asked(port: int, kinds: tuple[Any, Any], on_error: Any, *, is_async: bool) -> Iterator[Any]:
    """A limiter over a client of the first kind; or over one of the second, for asyncio, each call run to its end."""
    if not is_async:
        with closing(kinds[0](port=port)) as client:
            yield Limiter(client, namespace="n", on_error=on_error)
        return
    with asyncio.Runner() as runner:
        tasks: Any = AsyncLimiter(kinds[1](port=port), namespace="n", on_error=on_error)
        yield SimpleNamespace(
            acquire=lambda *args: runner.run(tasks.acquire(*args)),
            acquire_many=lambda *args: runner.run(tasks.acquire_many(*args)),
        )
        runner.run(tasks.aclose())


class Dying(Redis):
    """A client that loses its server before its second script."""

    scripts = 0

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Ask, or fail."""
        self.scripts += args[0] == "EVALSHA"
        if self.scripts > 1:
            raise RedisConnectionError
        return super().execute_command(*args, **options)


class DyingAsync(AsyncRedis):
    """The same for asyncio."""

    scripts = 0

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Ask, or fail."""
        self.scripts += args[0] == "EVALSHA"
        if self.scripts > 1:
            raise RedisConnectionError
        return await super().execute_command(*args, **options)


@pytest.mark.parametrize("is_async", [False, True])
def test_an_error_of_one_key_concerns_no_other(redis: Redis, redis_server: EmbeddedRedis, *, is_async: bool) -> None:
    """Redis has answered, so the limits of other keys hold on. An error that concerns all keys is an outage."""
    with asked(redis_server.port, (Redis, AsyncRedis), "permit", is_async=is_async) as limiter:
        for key in ("good", "bad"):
            assert limiter.acquire(key, "1/day").id
        for key in redis.scan_iter("*n:{bad}*"):
            redis.set(key, "of another program")
        assert limiter.acquire("bad", "1/day").id == ""
        assert isinstance(limiter.acquire("good", "1/day"), Hold)
        redis.config_set("maxmemory", 1)
        try:
            assert limiter.acquire("other", "2/day").id == ""
        finally:
            redis.config_set("maxmemory", 0)
        assert limiter.acquire("good", "1/day").id == ""


@pytest.mark.parametrize(
    ("error", "is_of_its_keys"),
    [
        (ResponseError("WRONGTYPE Operation against a key script: 4a1ee1b5, on @user_script:1."), True),
        (ResponseError("user_script:1: attempt to call local 'x' script: 4251e00b, on @user_script:1."), True),
        (ResponseError("value is not an integer script: 4251e00b, on @user_script:1."), True),
        (ResponseError("NOREPLICAS Not enough good replicas. script: d6ec636b, on @user_script:1."), False),
        (ResponseError("Error running script (call to f_4a1e): @user_script:1: WRONGTYPE Operation"), True),
        (ResponseError("Error running script (call to f_4a1e): @user_script:1: user_script:1: attempt to call"), True),
        (ResponseError("Error running script (call to f_da8455f0): @user_script:1: ERR value is not an integer"), True),
        (ResponseError("Error running script (call to f_d6ec): @user_script:1: @user_script: 1: -OOM command"), False),
        (ResponseError("unknown command 'EVALSHA', with args beginning with:"), False),
        (OutOfMemoryError("command not allowed. script: d6ec636b, on @user_script:1."), False),
        (RedisConnectionError("Connection closed by server."), False),
        (ClusterError("TTL exhausted."), True),
    ],
)
def test_what_an_error_concerns(error: Exception, *, is_of_its_keys: bool) -> None:
    """As Redis 7 and 6.2 say it: its own keys, or all."""
    assert outage.is_of_its_keys(error) is is_of_its_keys


@pytest.mark.parametrize("is_async", [False, True])
def test_what_redis_has_granted_is_told(redis: Redis, redis_server: EmbeddedRedis, *, is_async: bool) -> None:
    """Of 600 keys 500 are asked at once. Where Redis is gone then, these have permits, and the others are held."""
    Limiter(redis, namespace="n").acquire("known", "5/day")  # so the script is there
    with asked(redis_server.port, (Dying, DyingAsync), "hold", is_async=is_async) as limiter:
        answers = limiter.acquire_many([(f"k{n}", "1/day") for n in range(600)])
    assert [isinstance(answer, Permit) for answer in answers] == [True] * 500 + [False] * 100


def test_calls_that_fail_together_are_one_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait grows with each call that has tried again in vain, not with all that failed in one blip."""
    clock, breaker = Clock(monkeypatch), outage.Breaker()
    for wait in (0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0):
        assert breaker.lets_through()
        for _ in range(20):
            breaker.failed()
        clock.now += wait - 0.001
        assert not breaker.lets_through()
        clock.now += 0.002
    breaker.worked()
    assert breaker.lets_through()


def test_a_signals_handler_may_ask_in_the_middle() -> None:
    """At any line of a call that fails it asks the limiter that the program asks: nobody waits for themselves."""
    breaker = outage.Breaker()

    def handler(*_: object) -> Any:
        breaker.lets_through()
        breaker.failed()
        return handler

    def ask() -> None:
        sys.settrace(handler)
        breaker.failed()
        breaker.lets_through()

    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    asking.join(PATIENCE_S)
    assert not asking.is_alive()


async def test_a_process_limits_by_its_share() -> None:
    """With "memory" each of four processes admits a quarter, takes back what it gave, and names the rates asked for."""
    limiter = Limiter.from_url(NOWHERE, namespace="n", on_error="memory", processes=4)
    permits = [limiter.acquire("k", "8/minute") for _ in range(3)]
    assert [type(permit) for permit in permits] == [Permit, Permit, Hold]
    assert isinstance(permits[2], Hold)
    assert permits[2].policy == limiter.policy("8/minute")
    assert isinstance(permits[0], Permit)
    assert limiter.refund(permits[0])
    assert limiter.acquire("k", "8/minute")
    assert limiter.acquire("large", "8/minute", cost=8)
    assert not limiter.acquire("large", "8/minute")
    with pytest.raises(LimiterUnreachableError):
        limiter.count("k", last="1m")
    async with AsyncLimiter.from_url(NOWHERE, namespace="n", on_error="memory", processes=4) as tasks:
        one = await tasks.check("k", "4/minute")
        assert not await tasks.acquire("k", "4/minute")
        assert await tasks.refund(one)
        assert await tasks.acquire("k", "4/minute")


@pytest.mark.parametrize(
    ("rates", "rule"), [("100/day; 10/minute", "10/1m"), ("burst 8 then 1/3s", "burst 8 then 1/3s")]
)
def test_an_answer_by_a_share_names_the_rule_that_was_asked_for(rates: str, rule: str) -> None:
    """So the headers of a web limit name a policy that RateLimit-Policy has, and its limit."""
    limiter = Limiter.from_url(NOWHERE, namespace="n", on_error="memory", processes=4)
    permit, _, held = (limiter.acquire("k", rates) for _ in range(3))
    assert isinstance(permit, Permit)
    assert isinstance(held, Hold)
    assert (permit.rule or rule, held.rule) == (rule, rule)
    guard = Guard(limiter, [WebLimit("api", rates)], WebAnswer(x_headers=True), awaited=False)
    (refusal,) = filter(None, (guard.ask(WebRequest("GET", "/", {}, "1.2.3.4", {})).refusal for _ in range(3)))
    headers = dict(refusal.headers)
    assert headers["RateLimit"].partition(";")[0] in headers["RateLimit-Policy"]
    assert headers["X-RateLimit-Limit"] == rule.removeprefix("burst ").partition("/")[0].partition(" ")[0]


@pytest.mark.parametrize(
    ("whole", "share"),
    [
        ("100/minute", "25/minute"),
        ("7/minute", "1/1m"),
        ("2/minute", "1/2m"),
        ("3/minute", "1/2m"),
        ("burst 8 then 1/3s", "burst 2 then 1/12s"),
        ("gap 1s", "gap 4s"),
    ],
)
def test_shares(whole: str, share: str) -> None:
    """Four shares admit no more in the long run than the whole."""
    limiter = MemoryLimiter()
    assert share_of(limiter.policy(whole), 4) == limiter.policy(share)


@pytest.mark.parametrize(
    ("whole", "share"),
    [
        ("10/minute", "6/5m"),
        ("100/minute", "12/1m"),
        ("burst 10 then 1/1s", "burst 6 then 1/8s"),
        ("10/day; gap 1s", "6/5d; gap 8s"),
        ("10/month", "6/month"),
    ],
)
def test_a_share_has_room_for_a_cost(whole: str, share: str) -> None:
    """Eight shares that admit six at once do so the more seldom; only a calendar's months are no longer for it."""
    limiter = MemoryLimiter()
    assert share_of(limiter.policy(whole), 8, 6) == limiter.policy(share)


def test_a_cost_over_the_share() -> None:
    """Eight processes that take six of ten each admit no more than ten a minute, once each has had its first."""
    fleet = [Limiter.from_url(NOWHERE, namespace="n", on_error="memory", processes=8) for _ in range(8)]
    permits = [limiter.acquire("k", "10/minute", cost=6) for limiter in fleet]
    assert [permit.cost for permit in permits if isinstance(permit, Permit)] == [6] * 8
    held = [limiter.acquire("k", "10/minute", cost=6) for limiter in fleet]
    assert all(timedelta(minutes=4) < hold.time_left < timedelta(minutes=5) for hold in held if isinstance(hold, Hold))
    assert not any(held)


@pytest.mark.parametrize("is_known", [False, True])
def test_what_is_never_held_raises(is_known: bool) -> None:
    """With "hold" nothing is counted without Redis, and who counts is told so; also while one call in a while tries."""
    limiter = Limiter.from_url(NOWHERE, namespace="n", on_error="hold")
    if is_known:
        assert not limiter.acquire("k", "5/minute")
    with pytest.raises(LimiterUnreachableError):
        limiter.add("k", 3)
    with pytest.raises(LimiterUnreachableError):
        limiter.penalize("k", "5/minute", cost=2)
    with pytest.raises(LimitExceeded, match=r"^k: the limiter cannot be asked; try again in 1\.000 s$"):
        limiter.check("k", "5/minute")


@pytest.mark.parametrize("options", [{"on_error": "open"}, {"processes": 0}, {"processes": True}])
def test_what_cannot_be_meant_is_refused(options: dict[str, Any]) -> None:
    """A way that is none, and no processes."""
    with pytest.raises(ValueError, match=r"on_error is|processes is"):
        Limiter.from_url(NOWHERE, namespace="n", **options)
