"""What each row of the hostile tables goes through: sends while the server is hostile, then it heals, then the end."""

import asyncio
import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from structlog.testing import capture_logs

from notifier.providers.contract import Answer, Dispatch, Outcome, Provider
from tests.hostile.servers import HostileServer

MESSAGES: Final = 8
PAUSE_S: Final = 0.3
RECOVERY_S: Final = 5.0
SLOW_MACHINE: Final = 3.0  # times, where seconds are counted: the tests share the machine
CLOSE_S: Final = 3.0
MAX_LINES: Final = 10
# Of the loop's own CPU, so that what else the machine does matters little. A flood that is handled as it comes takes it
# for seconds.
MAX_BUSY_S: Final = 1.0
# At any moment, with the servers' buffers, which are of this process too. An open connection has about 0.35 MB, nearly
# all of it the 256 kB that asyncio reads into; the next one gets them back.
MAX_GROWTH_BYTES: Final = 10_000_000
FOR_A_CONNECTION_BYTES: Final = 500_000
FINAL: Final = frozenset({Outcome.DELIVERED, Outcome.REJECTED, Outcome.DEAD_TOKEN})
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * PAGE_BYTES


@dataclass
class Story:
    """What came of it. first: the answers while the server was hostile. last: each message's last answer.

    busy_s: the most CPU that the loop has used between two turns of somebody else, who asks for one every 20 ms.
    complaints: what asyncio and the libraries say by themselves, such as of data that came after the client's goodbye.
    """

    first: list[Answer] = field(default_factory=list)
    last: list[Answer] = field(default_factory=list)
    lines: list[dict[str, Any]] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    grown_bytes: int = 0
    busy_s: float = 0.0
    recovery_s: float = 0.0
    close_s: float = 0.0

    @property
    def outcomes(self) -> set[str]:
        return {answer.outcome.value for answer in self.first}


class Complaints(logging.Handler):
    """Keeps what any library logs, and what the event loop would."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())

    def __enter__(self) -> Self:
        logging.getLogger().addHandler(self)
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.found.append(str(context)))
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger().removeHandler(self)


async def suffer(
    server: HostileServer,
    provider: Provider,
    dispatch: Callable[[int], Dispatch],
    *,
    flooded: bool = False,
    waves: int = 1,
    healed: Callable[[], None] = lambda: None,
) -> Story:
    """Send some at once to a hostile server, then heal it and send again what got no final answer.

    flooded: before it heals its floods are left by their client. waves: so many times, each of other messages and after
    a pause. healed: is called when the server has healed.
    """
    story = Story()
    loop = asyncio.get_running_loop()
    before = resident_bytes()

    async def watch() -> None:
        while True:
            began = time.thread_time()
            await asyncio.sleep(0.02)
            story.busy_s = max(story.busy_s, time.thread_time() - began)
            story.grown_bytes = max(story.grown_bytes, resident_bytes() - before)

    watching = asyncio.create_task(watch())
    with capture_logs() as lines, Complaints() as complaints:
        async with asyncio.timeout(20):  # each send has its answer, whatever the server does
            for wave in range(waves):
                if wave:
                    await asyncio.sleep(PAUSE_S)
                numbers = range(wave * MESSAGES, (wave + 1) * MESSAGES)
                story.first += await asyncio.gather(*(provider.send(dispatch(n)) for n in numbers))
            if flooded:
                await asyncio.to_thread(server.hung_up.wait, 20)
        server.heal()
        healed()
        healed_at = loop.time()
        async with asyncio.timeout(RECOVERY_S * SLOW_MACHINE):
            story.last = list(
                await asyncio.gather(
                    *(_until_final(provider, dispatch, n, answer) for n, answer in enumerate(story.first))
                )
            )
        story.recovery_s = loop.time() - healed_at
        closed_at = loop.time()
        async with asyncio.timeout(CLOSE_S * SLOW_MACHINE):
            await provider.close()
        story.close_s = loop.time() - closed_at
    watching.cancel()
    with suppress(asyncio.CancelledError):
        await watching
    story.complaints = complaints.found
    story.lines = [line for line in lines if line["log_level"] != "debug"]
    return story


async def _until_final(provider: Provider, dispatch: Callable[[int], Dispatch], n: int, answer: Answer) -> Answer:
    """Send as a worker does that does not wait for as long as it is asked to."""
    while answer.outcome not in FINAL:
        await asyncio.sleep(min((answer.retry_after_us or 0) / 1e6, 0.2))
        answer = await provider.send(dispatch(n))
    return answer


def judge(story: Story, server: HostileServer, id_of: Callable[[int], str]) -> None:
    """Nothing is lost, nothing is claimed, and it costs neither the memory nor the log."""
    for n, answer in enumerate(story.last):
        given = server.answered[id_of(n)]
        assert answer.status in given, f"message {n}: {answer}, and the server answered {given}"
        assert server.arrived[id_of(n)] >= 1
    assert story.complaints == []
    assert story.busy_s <= MAX_BUSY_S
    assert len(story.lines) <= MAX_LINES, story.lines[:20]
    more = max(server.connections - 2 * MESSAGES, 0)  # than one for each message, and another once it has healed
    assert story.grown_bytes <= MAX_GROWTH_BYTES + more * FOR_A_CONNECTION_BYTES, f"{story.grown_bytes:,} bytes"
