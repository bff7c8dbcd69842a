"""What the benchmarks share: figures and their bars, medians, a Redis of their own."""

from __future__ import annotations

import contextlib
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from redis import Redis

from notifier.testing.embedded import EmbeddedRedis


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
