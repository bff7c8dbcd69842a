"""What the benchmarks share: figures and their bars, medians, a Redis of their own, child processes."""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

from redis import Redis

from notifier.testing.child import end
from notifier.testing.embedded import EmbeddedRedis

ROOT: Final = Path(__file__).resolve().parent.parent
END_S: Final = 15.0
POLL_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Bar:
    """What was asked for: `least` or `most` of a figure, in the figure's own unit."""

    kind: Literal["least", "most"]
    limit: float

    def met(self, value: float) -> bool:
        """Whether the value is on the right side."""
        return value >= self.limit if self.kind == "least" else value <= self.limit

    def __str__(self) -> str:
        return f"{'>=' if self.kind == 'least' else '<='} {self.limit:g}"


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. bar: None where nothing was asked for. note: how it came about."""

    name: str
    value: float
    unit: str = ""
    bar: Bar | None = None
    note: str = ""

    @property
    def met(self) -> bool:
        """Whether the bar was met; a figure without one always is."""
        return self.bar is None or self.bar.met(self.value)


def at_least(limit: float) -> Bar:
    """A bar that larger is better for."""
    return Bar("least", limit)


def at_most(limit: float) -> Bar:
    """A bar that smaller is better for."""
    return Bar("most", limit)


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


@contextlib.contextmanager
def own_redis() -> Iterator[tuple[EmbeddedRedis, Redis]]:
    """An empty Redis of this benchmark's own, never the configured one, and a client for it."""
    with EmbeddedRedis() as server, contextlib.closing(Redis.from_url(server.url, protocol=2)) as client:
        yield server, client


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child: this repository importable, none of the caller's configuration."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NOTIFIER_")}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH", "")]))
    return {**kept, "PYTHONPATH": path, **(extra or {})}


# How a child is started. The tests put in its place what forks one that has done its imports.
launch: Callable[..., subprocess.Popen[bytes]] = partial(subprocess.Popen, start_new_session=True)


@contextlib.contextmanager
def child(arguments: Sequence[str], **kwargs: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python <arguments>`; ended by SIGTERM, and by SIGKILL if that does not help, on leaving."""
    kwargs.setdefault("env", environment())
    with launch([sys.executable, *arguments], **kwargs) as process:
        try:
            yield process
        finally:
            end(process, END_S)


def await_that(condition: Callable[[], bool], what: str, within_s: float = 60.0, poll_s: float = POLL_S) -> float:
    """Return the seconds until the condition held; raise TimeoutError naming `what` where it does not."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > within_s:
            raise TimeoutError(f"{what}: not within {within_s:.0f} s")
        time.sleep(poll_s)
    return time.monotonic() - begun


def await_workers(redis: Redis, count: int, within_s: float = 60.0) -> None:
    """Return when as many workers have registered."""
    await_that(lambda: redis.scard("rq:workers") >= count, f"{count} workers", within_s)


def total(redis: Redis, *words: str) -> int:
    """The sum of these totals in notifier:stats."""
    return sum(int(value or 0) for value in redis.hmget("notifier:stats", list(words)))
