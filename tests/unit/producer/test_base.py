"""Which clients a producer takes that is made without `from_config`."""

from typing import Any

import pytest
import redis
import redis.asyncio

from notifier import AsyncNotifier, Notifier
from notifier.settings import parse_settings

SETTINGS = parse_settings("user: {gap: 1s}")


@pytest.mark.parametrize(
    ("kind", "of", "other"), [(Notifier, redis, redis.asyncio), (AsyncNotifier, redis.asyncio, redis)]
)
def test_a_client_that_answers_otherwise_is_refused(kind: Any, of: Any, other: Any) -> None:
    """Its replies would be misread, long after it sent: the type says so when the producer is made."""
    for good in (of.Redis(), of.Redis.from_url("redis://localhost?protocol=2")):
        kind(good, SETTINGS)
    text = of.Redis(decode_responses=True)
    for bad in (
        text,
        of.Redis(protocol=3),
        of.Redis.from_url("redis://h?protocol=3"),
        other.Redis(),
        "redis://:pw@h",
        None,
    ):
        with pytest.raises(
            TypeError, match=rf"{kind.__name__} takes a {of.__name__}.Redis\(decode_responses=False"
        ) as why:
            kind(bad, SETTINGS)
        assert "pw" not in str(why.value)
