"""acquire_all: several keys in one step, all or none, whichever script and backend answers."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from redis import Redis

from notifier.limiter import AsyncLimiter, Hold, Limiter, MemoryLimiter, Permit, Window

Make = Callable[["Redis"], Any]
KINDS: dict[str, Make] = {
    "redis": lambda redis: Limiter(redis, namespace="n"),
    "with usage": lambda redis: Limiter(redis, namespace="n", usage_keep="1h"),
    "memory": lambda _redis: MemoryLimiter(usage_keep="1h"),
}


@pytest.mark.parametrize("shared", ["25/hour", "burst 25 then 1/1h", Window(25, "1h")], ids=str)
@pytest.mark.parametrize("kind", list(KINDS))
def test_all_or_none(redis: Redis, kind: str, shared: Any) -> None:
    """Where one key is used up, the others are as they were, and the longest Hold says why; each of them answers."""
    limiter = KINDS[kind](redis)
    first = limiter.acquire_all([("own", "1/hour"), ("shared", shared, 2)])
    assert [(type(permit), permit.key, permit.cost) for permit in first] == [(Permit, "own", 1), (Permit, "shared", 2)]
    for _ in range(3):
        held = limiter.acquire_all([("shared", shared, 2), ("own", "1/hour")])
        assert isinstance(held, Hold)
        assert (held.key, held.rule) == ("own", "1/1h")
    assert limiter.count("shared", last="1h") == 2
    assert limiter.refund(first[0])
    assert isinstance(limiter.acquire_all([("shared", shared), ("own", "1/hour")]), list)
    if kind != "redis":
        assert [(use.total, use.held) for use in map(limiter.usage, ("shared", "own"))] == [(3, 0), (2, 3)]


@pytest.mark.parametrize("kind", list(KINDS))
def test_who_is_over_a_limit_of_his_own_takes_nothing_from_others(redis: Redis, kind: str) -> None:
    """Eight greedy clients at once, each over its own limit: the honest one gets all that is left of the shared one."""
    limiter = KINDS[kind](redis)

    def greedy(n: int) -> int:
        asked = [("shared", "25/hour"), (f"own-{n}", "1/hour")]
        return sum(isinstance(limiter.acquire_all(asked), list) for _ in range(40))

    def honest() -> list[bool]:
        return [
            isinstance(limiter.acquire_all([("shared", "25/hour"), ("honest", "100/hour")]), list) for _ in range(17)
        ]

    with ThreadPoolExecutor(9) as pool:
        mine = pool.submit(honest)
        assert list(pool.map(greedy, range(8))) == [1] * 8
        assert mine.result() == [True] * 17
    assert limiter.count("shared", last="1h") == 25


@pytest.mark.parametrize("asked", [[], [("a", "1/hour"), ("a", "2/hour")]])
def test_a_key_is_asked_for_once(asked: list[Any]) -> None:
    """Nothing, or a key twice, is a mistake of the program: the error says what would be right."""
    with pytest.raises(ValueError, match="give all rates of a key together"):
        MemoryLimiter().acquire_all(asked)


@pytest.mark.parametrize(("rates", "cost"), [("5/fortnight", 1), ("no-such-name", 1), ("5/minute", 6)])
def test_a_wrong_rate_is_refused_at_decoration(redis: Redis, rates: str, cost: int) -> None:
    """Not at the first call, which may come days later."""
    for limiter in (
        MemoryLimiter(),
        Limiter(redis, namespace="n"),
        AsyncLimiter.from_url("redis://localhost:1", namespace="n"),
    ):
        with pytest.raises(ValueError, match=r"fortnight|no-such-name|cost of 6"):
            limiter.limit(rates, key="k", cost=cost)
