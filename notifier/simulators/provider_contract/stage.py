"""The stage of a test of the contract: a provider, its server, and devices of this test alone."""

from __future__ import annotations

import asyncio
import functools
import inspect
import io
import itertools
import json
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar, Final

from notifier.notification import Device, Notification
from notifier.providers.contract import Answer, Dispatch, Outcome, Provider
from notifier.simulators.wire import Arrival, Reply

TIMEOUT_S: Final = 60.0  # how long a test waits for what should come within milliseconds
SECOND_US: Final = 1_000_000
ANSWER_US: Final = 8 * SECOND_US  # the timeout of a provider where the test is not about it; a lease outlasts it
SILENT: Final = Reply(200, delay_ms=60_000)
PAGE: Final = Reply(502, "<html><body>Bad Gateway</body></html>")
numbers: Final = itertools.count(1)


class Line:
    """A test's own connection to the simulators' control. arrivals: since it was made, in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.arrivals: list[Arrival] = []
        self._writer = writer
        self._done: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._changed = asyncio.Condition()
        self._listening = asyncio.create_task(self._listen(reader))

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        while line := await reader.readline():
            said = json.loads(line)
            if "arrival" not in said:
                self._done.put_nowait(said)
                continue
            self.arrivals.append(Arrival(**said["arrival"]))
            async with self._changed:
                self._changed.notify_all()

    async def ask(self, whom: str, what: object) -> None:
        """Tell the simulators something, see their control; all that arrived before is in `arrivals` then."""
        self._writer.write(json.dumps({whom: what}).encode() + b"\n")
        async with asyncio.timeout(TIMEOUT_S):
            assert await self._done.get() == {"done": [whom]}

    async def reach(self, enough: Callable[[list[Arrival]], bool]) -> None:
        """Wait until what has arrived is enough."""
        async with asyncio.timeout(TIMEOUT_S), self._changed:
            await self._changed.wait_for(lambda: enough(self.arrivals))

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        await self._listening


class Subject:
    """The provider and its server, by name. platform: as in `Device.platform`."""

    platform: ClassVar[str]

    def device(self, number: int, endpoint: str) -> Device:
        """Another device for each number. endpoint: of the simulator."""
        raise NotImplementedError

    def scripted_as(self, device: Device) -> str:
        """The name by which the server knows a device."""
        return device.token

    def read_printed(self, text: str) -> list[Arrival]:
        """The arrivals where there is no server."""
        raise NotImplementedError


@dataclass
class Stage:
    """The stage of a test: a provider, its server, and devices of this test alone."""

    of: Subject
    provider: Provider
    endpoint: str
    server: Line | None
    printed: io.StringIO = field(default_factory=io.StringIO)
    devices: list[Device] = field(default_factory=list)
    needs: Mapping[str, Any] = field(default_factory=dict)

    async def device(self, *replies: Reply) -> Device:
        """A new device, whose messages are answered so; the last reply repeats, without any they are accepted."""
        device = self.of.device(next(numbers), self.endpoint)
        self.devices.append(device)
        if replies:
            await self._ask("scripts", {self.of.scripted_as(device): [asdict(reply) for reply in replies]})
        return device

    async def send(self, device: Device | None = None, *, within_s: float = TIMEOUT_S, **options: Any) -> Answer:
        """Send to a device, a new one if none is given."""
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
        """A dispatch of a job of its own, unless its id is given."""
        notification = Notification(user="u", devices=[device], **({"title": "Hello", **self.needs} | fields))
        send_by = asyncio.get_running_loop().time() + within_s
        return Dispatch(job_id or f"job-{next(numbers)}", device, notification, ttl_us, send_by)

    async def insist(self, device: Device, **options: Any) -> Answer:
        """Send as a worker does: what was not sent, again once the wait that was asked for is over."""
        async with asyncio.timeout(TIMEOUT_S):
            while (answer := await self.send(device, **options)).outcome is Outcome.UNSENT:  # noqa: ASYNC110 - it is a time
                await asyncio.sleep((answer.retry_after_us or 0) / 1_000_000)
        return answer

    async def arrivals(self, device: Device | None = None) -> list[Arrival]:
        """Return what has arrived so far at this test's devices, or at one, in order."""
        if self.server is None:
            return self.of.read_printed(self.printed.getvalue())
        await self._ask("scripts", {})
        wanted = {self.of.scripted_as(d) for d in ([device] if device else self.devices)}
        return [arrival for arrival in self.server.arrivals if arrival.token in wanted]

    async def reach(self, count: int) -> None:
        """Wait until so many messages have arrived at this test's devices."""
        assert self.server is not None

        def enough(arrived: list[Arrival]) -> bool:
            wanted = {self.of.scripted_as(device) for device in self.devices}
            return sum(arrival.token in wanted for arrival in arrived) >= count

        await self.server.reach(enough)

    async def tell(self, **what: Any) -> None:
        """Tell the server what notifier/simulators/control.py takes; settings stay until told otherwise."""
        await self._ask(self.of.platform, what)

    async def _ask(self, whom: str, what: object) -> None:
        assert self.server is not None, f"{self.of.platform} has no server to be told {what}"
        await self.server.ask(whom, what)


async def answer_to(stage: Stage, reply: Reply) -> Answer:
    """The answer to a send that the server answers so; the next one is delivered."""
    answer = await stage.send(await stage.device(reply))
    assert (await stage.send()).outcome is Outcome.DELIVERED
    return answer


def on_stage(**options: Any) -> Callable[[Callable[..., Coroutine[object, object, None]]], Callable[..., None]]:
    """Make a test of a method that takes a stage: each run has a new one. options: of the class's `stage`."""

    def make(law: Callable[..., Coroutine[object, object, None]]) -> Callable[..., None]:
        @functools.wraps(law)
        def test(self: Any, *args: Any, **kwargs: Any) -> None:
            async def run() -> None:
                async with self.stage(**options) as stage:
                    await law(self, stage, *args, **kwargs)

            asyncio.run(run())

        signature = inspect.signature(law)
        rest = [each for name, each in signature.parameters.items() if name != "s"]  # which pytest is to give
        vars(test)["__signature__"] = signature.replace(parameters=rest)
        return test

    return make
