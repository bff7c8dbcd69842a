"""The layout of the keys in a Redis: a worker that knows another layout would not find what waits there."""

from __future__ import annotations

from typing import Any, Final

from notifier.errors import RedisUnusableError
from notifier.scripts.keys import redis_key

LAYOUT: Final = "1"  # raise it when a key gets another name or other content


def check_layout(redis: Any) -> None:
    """Write this layout into a Redis that has none; raise RedisUnusableError if it has another one."""
    key = redis_key("layout")
    with redis.pipeline() as pipe:
        pipe.set(key, LAYOUT, nx=True)
        pipe.get(key)
        _, found = pipe.execute()
    if found != LAYOUT.encode():
        told = found.decode(errors="replace")
        raise RedisUnusableError(
            f"this Redis holds keys of layout {told}, and this version knows layout {LAYOUT}: start workers of the"
            " version that wrote it, or use another redis.prefix"
        )
