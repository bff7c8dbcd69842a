"""The pool of a Redis: as many connections as it has are in use at once, and others wait."""

from __future__ import annotations

from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from notifier.settings import RedisSettings, parse_settings
from notifier.store.connection import client_of
from tests.harness.ended import TimeLimitError, goes_on_wherever_ended
from tests.harness.support import PATIENCE_S


def test_a_call_that_is_ended_anywhere_leaves_no_lock_behind() -> None:
    """The next one is given a connection."""
    free: Any = client_of(RedisSettings(url="redis://127.0.0.1:1")).connection_pool.pool
    goes_on_wherever_ended(lambda: free.put_nowait(free.get(block=True, timeout=PATIENCE_S)))


def test_one_that_is_not_made_to_its_end_costs_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal's handler raises meanwhile: to make the first takes a millisecond."""

    def ends(**_: object) -> None:
        raise TimeLimitError

    pool: Any = client_of(parse_settings("redis: {url: 'redis://127.0.0.1:1?max_connections=1'}").redis).connection_pool
    monkeypatch.setattr(pool, "connection_class", ends)
    with pytest.raises(TimeLimitError):
        pool.get_connection()
    assert pool.pool.get(block=True, timeout=0) is None


def test_who_finds_none_free_is_told() -> None:
    """After the time that the settings give."""
    settings = parse_settings("redis: {url: 'redis://127.0.0.1:1?max_connections=1', socket_timeout: 100ms}")
    pool: Any = client_of(settings.redis).connection_pool
    assert pool.pool.get(block=True, timeout=0) is None
    with pytest.raises(RedisConnectionError, match="No connection available"):
        pool.get_connection()
