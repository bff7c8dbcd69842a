"""A work horse's patience with a Redis that cannot be used."""

import socket
import time
from collections.abc import Callable
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, ReadOnlyError, ResponseError

from workers.rq import horse
from workers.rq.horse import Patience


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes minutes takes parts of a second."""
    for name, seconds in (("AWAY_S", 0.6), ("FULL_S", 0.2), ("AGAIN_S", 0.01)):
        monkeypatch.setattr(horse, name, seconds)


@pytest.mark.parametrize("ask", [Redis.ping, lambda redis: redis.pipeline().set("a", 1).execute()])
def test_a_redis_that_is_away_is_waited_for_as_long_as_is_said(ask: Callable[[Any], object]) -> None:
    """Also where no connection is left, and all that is asked again is to connect."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        redis = Redis(port=taken.getsockname()[1])
        redis.connection_pool.connection_kwargs["retry"] = Patience()
        began = time.monotonic()
        with pytest.raises(RedisConnectionError):
            ask(redis)
        assert 0.6 <= time.monotonic() - began < 3.0


@pytest.mark.parametrize(
    ("error", "least", "most"),
    [
        (ResponseError("WRONGTYPE"), 0.0, 0.55),
        (OutOfMemoryError("no"), 0.2, 0.55),
        (RedisConnectionError("no"), 0.6, 3.0),
        (ReadOnlyError("no"), 0.6, 3.0),
        (ResponseError("NOREPLICAS Not enough good replicas to write."), 0.6, 3.0),
        (ResponseError("MISCONF Redis is configured to save RDB snapshots, but it cannot."), 0.6, 3.0),
    ],
)
def test_one_that_is_full_is_waited_for_less(error: Exception, least: float, most: float) -> None:
    """It may be for days, and the worker is what empties it. With the others nobody can go on."""

    def fails() -> None:
        raise error

    began = time.monotonic()
    with pytest.raises(type(error)):
        Patience().call_with_retry(fails, lambda _: None)
    assert least <= time.monotonic() - began < most
