"""Drive a limiter from several processes at once, and judge by what was recorded what it admitted."""

import multiprocessing
import secrets
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from notifier.limiter import Hold, Limiter, Policy
from notifier.rules.rate_text import parse_rates

# An admission, in µs: it took place no earlier than the first and no later than the second.
Span: TypeAlias = tuple[int, int]
Ask: TypeAlias = Callable[[str], Span | None]


class Driven(Protocol):
    """A limiter on a Redis, for keys of one namespace and one rate."""

    def ask(self, key: str) -> Span | None:
        """Ask for a key: when it was admitted, or None where it was refused."""
        ...

    def forget(self, keys: Iterable[str]) -> None:
        """Leave nothing behind."""
        ...


class Ours:
    """Our limiter; its permits say when they count, by Redis's clock."""

    def __init__(self, url: str, policy: Policy, namespace: str) -> None:
        self.limiter = Limiter.from_url(url, namespace=namespace)
        self._policy = policy

    def ask(self, key: str) -> Span | None:
        """See `Driven.ask`."""
        answer = self.limiter.acquire(key, self._policy)
        return None if isinstance(answer, Hold) else (answer.at_us, answer.at_us)

    def forget(self, keys: Iterable[str]) -> None:
        """See `Driven.forget`."""
        for key in keys:
            self.limiter.reset(key)


@dataclass(frozen=True, slots=True)
class Load:
    """A load. concurrency: callers at once, spread over `processes`. iterations: calls of all of them together.

    limiter: makes what is driven of a URL, the rules and a namespace; each process makes its own.
    """

    url: str
    rates: str
    concurrency: int
    iterations: int
    keys: int
    processes: int
    limiter: Callable[[str, Policy, str], Driven] = Ours
    namespace: str = field(default_factory=lambda: f"load-{secrets.token_hex(4)}")


@dataclass(frozen=True, slots=True)
class Report:
    """Report the load.

    over_admitted: admissions beyond the limit of an interval, of any key and window. under_admitted: refusals although
    every window had room. most: the most that one key was admitted in the interval of a window.
    """

    calls: int
    admitted: int
    refused: int
    over_admitted: int
    under_admitted: int
    most: int
    seconds: float
    p50_ms: float
    p99_ms: float


def drive(load: Load) -> Report:
    """Run the load, whose rates are windows."""
    policy = parse_rates(load.rates)
    with ProcessPoolExecutor(load.processes, multiprocessing.get_context("spawn")) as pool:
        results = list(pool.map(_caller, [load] * load.processes, range(load.processes)))
    _asker(load).forget(f"key{n}" for n in range(load.keys))
    admitted: dict[str, list[Span]] = {}
    refused: dict[str, list[Span]] = {}
    for result in results:
        for key, span in result.admitted:
            admitted.setdefault(key, []).append(span)
        for key, span in result.refused:
            refused.setdefault(key, []).append(span)
    latencies = sorted(each for result in results for each in result.latencies)
    counts = [over(spans, window.limit, window.interval_us) for spans in admitted.values() for window in policy.windows]
    return Report(
        calls=len(latencies),
        admitted=(total := sum(map(len, admitted.values()))),
        refused=len(latencies) - total,
        over_admitted=sum(found for found, _ in counts),
        under_admitted=sum(under(policy, admitted.get(key, ()), spans) for key, spans in refused.items()),
        most=max((most for _, most in counts), default=0),
        seconds=max(result.ended for result in results) - min(result.begun for result in results),
        p50_ms=latencies[len(latencies) // 2] * 1000,
        p99_ms=latencies[len(latencies) * 99 // 100] * 1000,
    )


def over(spans: Iterable[Span], limit: int, interval_us: int) -> tuple[int, int]:
    """How many admissions were too many, and the most within one interval; only what the spans prove.

    Those of an interval (t - interval, t] are too many from the (limit + 1)-th on.
    """
    ordered = sorted(spans)
    too_many = most = first = 0
    for n, (_, latest) in enumerate(ordered):
        while latest - ordered[first][0] >= interval_us:
            first += 1
        within = n - first + 1
        most = max(most, within)
        too_many += within > limit
    return too_many, most


def under(policy: Policy, admitted: Iterable[Span], refused: Iterable[Span]) -> int:
    """How many refusals were wrong: whenever within their span they took place, every window had room.

    Only of rules that are windows alone: a gap or a burst may have refused as well.
    """
    if policy.gap_us or policy.burst is not None:
        return 0
    spans = list(admitted)
    begun, ended = sorted(first for first, _ in spans), sorted(last for _, last in spans)
    wrong = 0
    for first, last in refused:
        at_most = (
            (bisect_right(begun, last) - bisect_right(ended, first - window.interval_us), window.limit)
            for window in policy.windows
        )
        wrong += all(count < limit for count, limit in at_most)
    return wrong


@dataclass(slots=True)
class _Result:
    """Count what one process has done."""

    begun: float = 0.0
    ended: float = 0.0
    admitted: list[tuple[str, Span]] = field(default_factory=list)
    refused: list[tuple[str, Span]] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    failed: Exception | None = None


def _asker(load: Load) -> Driven:
    return load.limiter(load.url, parse_rates(load.rates), load.namespace)


def _caller(load: Load, process: int) -> _Result:
    """In a child: the calls of its share of the callers, each in a thread of its own."""
    result = _Result()
    ask = _asker(load).ask
    mine = [n for n in range(load.concurrency) if n % load.processes == process]
    threads = [threading.Thread(target=_calls, args=(load, n, ask, result)) for n in mine]
    result.begun = time.time()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    result.ended = time.time()
    if result.failed is not None:
        raise result.failed
    return result


def _calls(load: Load, caller: int, ask: Ask, result: _Result) -> None:
    """In a thread: the calls of one caller."""
    try:
        for n in range(caller, load.iterations, load.concurrency):
            key = f"key{n % load.keys}"
            began_us, begun = time.time_ns() // 1000, time.perf_counter()
            span = ask(key)
            result.latencies.append(time.perf_counter() - begun)
            if span is not None:
                result.admitted.append((key, span))
            else:
                result.refused.append((key, (began_us, time.time_ns() // 1000)))
    except Exception as error:  # noqa: BLE001 - raised again where the threads are joined
        result.failed = error
