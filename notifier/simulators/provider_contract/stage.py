"""The stage of a test of the contract: a provider, its server, and devices of this test alone."""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final

from notifier.notification import Device, Notification
from notifier.providers.contract import Answer, Dispatch, Outcome, Provider
from notifier.simulators.control import Control
from notifier.simulators.wire import Arrival, Reply, WireLog

TIMEOUT_S: Final = 60.0  # how long a test waits for events that should come within milliseconds
SECOND_US: Final = 1_000_000
ANSWER_US: Final = 8 * SECOND_US  # the provider's timeout, if the test is not about it; a lease lasts longer
SILENT: Final = Reply(200, delay_ms=60_000)
PAGE: Final = Reply(502, "<html><body>Bad Gateway</body></html>")
TURNS: Final = 10  # of the event loop, until the provider has noticed a change of its connections
numbers: Final = itertools.count(1)


class Subject:
    """The provider and its server. platform: of its devices. needs: the fields that a message needs beside a title."""

    platform: ClassVar[str]
    needs: ClassVar[Mapping[str, Any]] = {}

    def device(self, number: int, endpoint: str) -> Device:
        """Return another device for each number. endpoint: the simulator's."""
        raise NotImplementedError

    def scripted_as(self, device: Device) -> str:
        """Return the name by which the server knows a device."""
        return device.token


@dataclass
class Stage:
    """The stage of a test: a provider, its server, and devices of this test alone.

    log: of the arrivals. control: of the server, if there is one.
    """

    of: Subject
    provider: Provider
    log: WireLog
    endpoint: str = ""
    control: Control | None = None
    devices: list[Device] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._came = asyncio.Event()
        self.log.watch(lambda _: self._came.set())

    async def device(self, *replies: Reply) -> Device:
        """Make a device whose messages get these replies; the last one repeats. Without replies all are accepted."""
        device = self.of.device(next(numbers), self.endpoint)
        self.devices.append(device)
        if replies:
            await self._tell("scripts", {self.of.scripted_as(device): [asdict(reply) for reply in replies]})
        return device

    async def send(self, device: Device | None = None, *, within_s: float = TIMEOUT_S, **options: Any) -> Answer:
        """Send to this device, or to a new one."""
        return await self.provider.send(self.dispatch(device or await self.device(), within_s=within_s, **options))

    def dispatch(
        self,
        device: Device,
        *,
        job_id: str = "",
        ttl_us: int | None = None,
        within_s: float = TIMEOUT_S,
        **fields: Any,
    ) -> Dispatch:
        """Make a dispatch, of a new job unless `job_id` names one."""
        notification = Notification(user="u", devices=[device], **({"title": "Hello", **self.of.needs} | fields))
        send_by = asyncio.get_running_loop().time() + within_s
        return Dispatch(job_id or f"job-{next(numbers)}", device, notification, ttl_us, send_by)

    async def insist(self, device: Device, **options: Any) -> Answer:
        """Send as a worker does: after each UNSENT, wait as long as the answer asks, and send again."""
        async with asyncio.timeout(TIMEOUT_S):
            while (answer := await self.send(device, **options)).outcome is Outcome.UNSENT:  # noqa: ASYNC110 - it is a time
                await asyncio.sleep((answer.retry_after_us or 0) / 1_000_000)
        return answer

    async def arrivals(self, device: Device | None = None) -> list[Arrival]:
        """Return the arrivals so far at this test's devices, or at one, in order."""
        wanted = {self.of.scripted_as(d) for d in ([device] if device else self.devices)}
        return [arrival for arrival in self.log.arrivals if arrival.token in wanted]

    async def reach(self, count: int) -> None:
        """Wait until `count` messages have arrived at this test's devices."""
        async with asyncio.timeout(TIMEOUT_S):
            while len(await self.arrivals()) < count:
                self._came.clear()
                await self._came.wait()

    async def tell(self, **what: Any) -> None:
        """Give the server an order of notifier/simulators/control.py; a setting stays until the next order for it."""
        await self._tell(self.of.platform, what)
        for _ in range(TURNS):
            await asyncio.sleep(0)

    async def _tell(self, whom: str, what: object) -> None:
        assert self.control is not None, f"{self.of.platform} has no server to be told {what}"
        await self.control.tell({whom: what})


async def answer_to(stage: Stage, reply: Reply) -> Answer:
    """Return the provider's answer to a send that gets this reply; the next send is delivered."""
    answer = await stage.send(await stage.device(reply))
    assert (await stage.send()).outcome is Outcome.DELIVERED
    return answer


def on_stage(**options: Any) -> Callable[[Callable[..., Coroutine[object, object, None]]], Callable[..., None]]:
    """Turn a method that takes a stage into a test; each run has a new stage. options: of the class's `stage`."""

    def make(law: Callable[..., Coroutine[object, object, None]]) -> Callable[..., None]:
        @functools.wraps(law)
        def test(self: Any, *args: Any, **kwargs: Any) -> None:
            async def run() -> None:
                async with self.stage(**options) as stage:
                    await law(self, stage, *args, **kwargs)

            asyncio.run(run())

        signature = inspect.signature(law)
        rest = [each for name, each in signature.parameters.items() if name != "s"]  # the ones that pytest supplies
        vars(test)["__signature__"] = signature.replace(parameters=rest)
        return test

    return make
