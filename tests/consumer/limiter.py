"""What `pip install push-throttle-limiter` brings: run where nothing else is installed, and then with [redis]."""

# pyright: strict
from __future__ import annotations

import asyncio
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import assert_type

from push_throttle_limiter import AsyncMemoryLimiter, Hold, LimiterUnreachableError, MemoryLimiter, Permit
from push_throttle_limiter.middleware import WebLimit, WSGILimits

ALONE = {"push-throttle-limiter", "tzdata"}
WITH_REDIS = {*ALONE, "redis", "async-timeout"}  # the last by an older Python
MAX_KB = 300


def in_memory() -> None:
    """The limiter in memory and the middleware, without redis."""
    memory = MemoryLimiter(zone="Europe/Berlin")
    assert_type(memory.acquire("k", "5/minute"), Permit | Hold)
    assert isinstance(memory.acquire("k", "2/minute; 5/calendar-day"), Permit)
    assert isinstance(memory.acquire("k", "2/minute; 5/calendar-day"), Hold)
    assert asyncio.run(AsyncMemoryLimiter().acquire("k", "burst 2 then 1/1s"))
    assert WSGILimits(lambda _environ, _start: [], memory, WebLimit("api", "100/minute"))


def types() -> None:
    """A test of truth tells a Permit from a Hold; a decorated function returns what it does."""
    memory, tasks = MemoryLimiter(), AsyncMemoryLimiter()
    if answer := memory.acquire("k", "5/minute"):
        assert_type(answer, Permit)
    else:
        assert_type(answer, Hold)

    @memory.limit("1/minute", key="sync", on_hold="return")
    def plain(number: int) -> int:
        return number

    @memory.limit("1/minute", key="async", on_hold="return")
    async def threaded(number: int) -> int:
        return number

    @tasks.limit("1/minute", key="tasks")
    async def awaited(number: int) -> int:
        return number

    assert assert_type(plain(1), int | Hold) == assert_type(asyncio.run(threaded(1)), int | Hold) == 1
    assert assert_type(asyncio.run(awaited(1)), int) == 1
    assert isinstance(plain(1), Hold)


def in_redis() -> None:
    """The limiter in Redis says that there is none."""
    from push_throttle_limiter import Limiter  # noqa: PLC0415 - where redis is installed

    try:
        Limiter.from_url("redis://127.0.0.1:1", namespace="n").acquire("k", "1/day")
    except LimiterUnreachableError:
        return
    raise AssertionError("there is no Redis")


installed = {found.name: found for found in distributions() if found.name not in {"pip", "setuptools", "wheel"}}
size = sum(file.size or 0 for file in installed["push-throttle-limiter"].files or () if file.suffix != ".pyc") / 1000
has_redis = find_spec("redis") is not None
in_memory()
types()
if has_redis:
    in_redis()
assert set(installed) <= (WITH_REDIS if has_redis else ALONE), sorted(installed)
assert find_spec("notifier") is None
assert Path(str(installed["push-throttle-limiter"].locate_file("push_throttle_limiter/py.typed"))).is_file()
assert size <= MAX_KB, size
print(f"the limiter alone: {len(installed)} packages; its own files {size:.0f} kB")
