"""What a web server's limits do in a run: several keys at once, calls that are cancelled, three hundred threads.

The law is one that nobody's timing can break: each permit was given between the beginning of its call and the return.
If a window's limit and one more were given in a time shorter than the window, counted from the first beginning to the
last return, then the window was exceeded.
"""

import asyncio
import contextlib
import itertools
import random
import threading
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final, Self

from notifier.errors import LimiterUnreachableError
from notifier.limiter import AsyncLimiter, Hold, Limiter
from tests.nemesis.history import History, wall_us
from tests.nemesis.judge import HARMLESS, Violation

THREADS: Final = 300
CLIENTS: Final = 8
SHARED: Final = (25, 2)  # a limit, and its seconds: of all clients together
OWN: Final = (6, 2)
CROWD: Final = (50, 3600)
WAITERS: Final = 40
WAITED: Final = (25, 3600)
BURST: Final = "burst 4 then 1/500ms"
BURST_ROOM: Final = (4 + 10 * 2, 10)  # in ten seconds no more than that
LAPSE_US: Final = 4_000_000  # so long after a trouble of Redis a call may still say so: it tries again once a second
NAMESPACE: Final = "nemesis"
TIMEOUT: Final = "10s"  # on a busy machine these threads themselves stand still for a second and more
RULES: Final = {"shared:all": SHARED, "client:0": OWN, "hungry:burst": BURST_ROOM, "crowd:0": CROWD}
CANCELLED: Final = "web: wait, cancelled"


@dataclass(frozen=True, slots=True)
class Given:
    """A permit: by which call."""

    began_us: int
    ended_us: int


class Web:
    """Threads that behave like web servers until `stop`; then `violations` tells what did not hold."""

    def __init__(self, url: str, history: History, seed: int) -> None:
        self._url, self._history = url, history
        self._chance = random.Random(f"web {seed}")
        self._stop = threading.Event()
        works = (lambda: asyncio.run(self._serve()), self._ask_in_crowds)
        self._threads = [threading.Thread(target=self._run, args=[each]) for each in works]
        self._error: BaseException | None = None
        self._numbers = itertools.count()
        self._given: dict[tuple[str, int, int], list[Given]] = defaultdict(list)  # by key and window
        self._failed: list[tuple[int, int, str]] = []
        self._leaked: list[tuple[int, int, str]] = []
        self.met = Counter({_name(key, rule): 0 for key, rule in RULES.items()} | {CANCELLED: 0})

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Ask nothing more; what has begun is finished."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        if self._error is not None:
            raise self._error

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - told at the end of the run
            self._error = error

    def violations(self) -> Iterator[Violation]:
        """What was given too soon, what failed or stayed reserved though Redis was well."""
        for (key, limit, seconds), given in self._given.items():
            ordered = sorted(given, key=lambda one: one.ended_us)
            for last in range(limit, len(ordered)):
                some = ordered[last - limit : last + 1]
                took_us = some[-1].ended_us - min(one.began_us for one in some)
                if took_us < seconds * 1_000_000:
                    text = f"{limit + 1} by {key} within {took_us / 1e6:.3f} s, where {limit}/{seconds}s is the limit"
                    yield Violation("limits of the web", some[-1].ended_us, text)
        for began_us, ended_us, text in [*self._failed, *self._leaked]:
            if not self._redis_was_away(began_us, ended_us):
                yield Violation("limits of the web", ended_us, f"{text}, and Redis was well")

    def _redis_was_away(self, began_us: int, ended_us: int) -> bool:
        troubles = [each for each in self._history.troubles if each.target == "redis" and each.kind not in HARMLESS]
        return any(each.overlaps(began_us - LAPSE_US, ended_us) for each in troubles)

    def _note(self, key: str, rule: tuple[int, int], began_us: int, *, hold: bool) -> None:
        if hold:
            self.met[_name(key, rule)] += 1
        else:
            self._given[key, *rule].append(Given(began_us, wall_us()))

    def _fails(self, began_us: int, what: str, error: Exception) -> None:
        self._failed.append((began_us, wall_us(), f"{what}: {type(error).__name__}: {error}"))

    # Requests that count against several keys, and waits of which some are cancelled.

    async def _serve(self) -> None:
        async with AsyncLimiter.from_url(self._url, namespace=NAMESPACE, timeout=TIMEOUT) as limiter:
            tasks = [asyncio.create_task(self._client(limiter, n)) for n in range(CLIENTS)]
            tasks.append(asyncio.create_task(self._hungry(limiter)))
            while not self._stop.is_set():
                await self._cancel_some(limiter)
                await asyncio.sleep(self._chance.uniform(1, 3))
            await asyncio.gather(*tasks)

    async def _client(self, limiter: AsyncLimiter, number: int) -> None:
        """A client with more to ask than its own limit admits, beside others who share one."""
        own, chance = f"client:{number}", random.Random(f"{self._chance.random()} {number}")
        asked = [("shared:all", _rate(SHARED)), (own, _rate(OWN))]
        while not self._stop.is_set():
            began_us = wall_us()
            try:
                answer = await limiter.acquire_all(asked)
            except LimiterUnreachableError as error:
                self._fails(began_us, "acquire_all", error)
                await asyncio.sleep(0.2)
                continue
            if isinstance(answer, Hold):
                rule = SHARED if answer.key == "shared:all" else OWN
                self._note(answer.key, rule, began_us, hold=True)
            else:
                self._note("shared:all", SHARED, began_us, hold=False)
                self._note(own, OWN, began_us, hold=False)
            await asyncio.sleep(chance.expovariate(8))

    async def _hungry(self, limiter: AsyncLimiter) -> None:
        """One key that asks again as soon as it may; a burst refills at its pace and no quicker."""
        while not self._stop.is_set():
            began_us = wall_us()
            try:
                answer = await limiter.acquire("hungry:burst", BURST)
            except LimiterUnreachableError as error:
                self._fails(began_us, "acquire", error)
                await asyncio.sleep(0.2)
                continue
            self._note("hungry:burst", BURST_ROOM, began_us, hold=not answer)
            if not answer:
                await asyncio.sleep(answer.time_left_us / 1e6)

    async def _cancel_some(self, limiter: AsyncLimiter) -> None:
        """Of many that wait for a key of their own some are cancelled at any moment: each of those gives back."""
        key, began_us = f"waited:{next(self._numbers)}", wall_us()
        waits = [asyncio.create_task(limiter.wait(key, _rate(WAITED), timeout=0)) for _ in range(WAITERS)]
        for task in self._chance.sample(waits, WAITERS // 2):
            await asyncio.sleep(self._chance.choice((0, 0, 0.0003, 0.001)))
            task.cancel()
        ended = await asyncio.gather(*waits, return_exceptions=True)
        given = sum(not isinstance(each, BaseException) for each in ended)
        self.met[CANCELLED] += sum(isinstance(e, asyncio.CancelledError) for e in ended)
        for error in ended:
            if isinstance(error, LimiterUnreachableError):
                self._fails(began_us, "wait", error)
        with contextlib.suppress(LimiterUnreachableError):
            await self._is_free(limiter.peek, key, WAITED[0] - given, began_us)

    async def _is_free(self, peek: Callable[..., Awaitable[Any]], key: str, free: int, began_us: int) -> None:
        """Exactly so many are free: what was cancelled is neither kept nor given twice."""
        if free < 0:
            self._leaked.append((began_us, wall_us(), f"{WAITED[0] - free} by {key} of {WAITED[0]}"))
            return
        all_of_them = free == 0 or await peek(key, _rate(WAITED), cost=free)
        one_more = free < WAITED[0] and await peek(key, _rate(WAITED), cost=free + 1)
        if not all_of_them or one_more:
            word = "more than" if one_more else "fewer than"
            self._leaked.append((began_us, wall_us(), f"of {key} {word} {free} are free, after some were cancelled"))

    # Threads.

    def _ask_in_crowds(self) -> None:
        with (
            Limiter.from_url(self._url, namespace=NAMESPACE, timeout=TIMEOUT) as limiter,
            ThreadPoolExecutor(THREADS) as pool,
        ):
            while not self._stop.wait(self._chance.uniform(3, 8)):
                key, began_us, before = f"crowd:{next(self._numbers)}", wall_us(), len(self._failed)
                list(pool.map(lambda _, key=key: self._ask(limiter, key), range(THREADS)))  # type: ignore[misc]
                given = len(self._given[key, *CROWD])
                if given < CROWD[0] and len(self._failed) == before:
                    self._leaked.append((began_us, wall_us(), f"{given} of {CROWD[0]} by {key} in {THREADS} threads"))

    def _ask(self, limiter: Limiter, key: str) -> None:
        began_us = wall_us()
        try:
            answer = limiter.acquire(key, _rate(CROWD))
        except LimiterUnreachableError as error:
            self._fails(began_us, f"acquire in one of {THREADS} threads", error)
        else:
            self._note(key, CROWD, began_us, hold=not answer)


def _name(key: str, rule: tuple[int, int]) -> str:
    return f"web: {key.partition(':')[0]} {_rate(rule)}"


def _rate(rule: tuple[int, int]) -> str:
    return f"{rule[0]}/{rule[1]}s"
