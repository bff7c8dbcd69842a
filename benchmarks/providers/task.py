"""What a contestant is told and what it says. Standard library alone: some run in environments of their own."""

from __future__ import annotations

import asyncio
import json
import resource
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass

TITLE = "Your order"
BODY = "b" * 200
TOPIC = "com.example.app"
TEAM_ID, KEY_ID = "SIMTEAM001", "SIMULATED1"  # the simulators', so that a contestant may race on them as well


@dataclass(frozen=True, slots=True)
class Task:
    """Send to `port` of 127.0.0.1, so many in flight, for so many seconds after a warm-up.

    ca_file: the authority to trust. folder: holds the provider key and the service account.
    """

    port: int
    ca_file: str
    folder: str
    in_flight: int
    seconds: float
    warm_up_s: float = 0.5

    @classmethod
    def read(cls) -> Task:
        """The task in this program's first argument."""
        return cls(**json.loads(sys.argv[1]))

    def write(self) -> str:
        """The argument that `read` reads."""
        return json.dumps(asdict(self))


def device_token(number: int) -> str:
    """An iPhone's token, one of 10,000: a batch of apns2 keys its results by them."""
    return f"{number % 10_000:064x}"


class Meter:
    """Counts sends between `begin` and `end`, and the processor's time this process took for them."""

    def __init__(self) -> None:
        self.done = 0

    def begin(self) -> None:
        """Start to count."""
        self._from = self.done
        self._cpu = _cpu_s()
        self._at = time.perf_counter()

    def end(self) -> None:
        """Say what there was to say, as one line."""
        seconds = time.perf_counter() - self._at
        cpu_s = _cpu_s() - self._cpu
        sent = self.done - self._from
        print(json.dumps({"rate": sent / seconds, "cpu_us": 1e6 * cpu_s / max(sent, 1), "busy": cpu_s / seconds}))


async def keep_in_flight(task: Task, send: Callable[[int], Awaitable[str]]) -> None:
    """Have so many sends under way at any time, and print what came of it.

    send: given a number that grows by one for each; returns the refusal, which ends the run, or nothing.
    """
    meter = Meter()
    numbers = iter(range(sys.maxsize))

    async def go_on() -> None:
        while True:
            if refusal := await send(next(numbers)):
                raise RuntimeError(f"a send was refused: {refusal}")
            meter.done += 1

    loops = [asyncio.create_task(go_on()) for _ in range(task.in_flight)]
    clock = asyncio.create_task(_clock(task, meter))
    ended, _ = await asyncio.wait([clock, *loops], return_when=asyncio.FIRST_COMPLETED)
    for each in loops:
        each.cancel()
    await asyncio.gather(*loops, return_exceptions=True)
    for each in ended:
        each.result()


async def _clock(task: Task, meter: Meter) -> None:
    await asyncio.sleep(task.warm_up_s)
    meter.begin()
    await asyncio.sleep(task.seconds)
    meter.end()


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
