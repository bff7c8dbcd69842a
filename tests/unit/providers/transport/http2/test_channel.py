"""Which connection a request that had no stream in its time speaks against."""

import asyncio
import ssl
from typing import Any

import pytest

from notifier.providers.contract import Outcome
from notifier.providers.transport.http2.channel import Channel

TIMEOUT_S = 0.05


class Silent:
    """A connection that takes nothing."""

    is_shut = True

    def __init__(self) -> None:
        self.since = 0.0

    def wake(self) -> None:
        """Take nothing."""

    def note_starved(self, since: float) -> None:
        """Note since when."""
        self.since = since


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_new_connection_is_not_to_blame_for_the_one_before(is_new: bool) -> None:
    """What waited for the old one, and is too late as soon as the new one is there, has not waited for the new one."""
    channel = Channel(host="localhost", port=1, tls=ssl.create_default_context(), timeout_s=TIMEOUT_S)
    loop, silent = asyncio.get_running_loop(), Silent()
    connection: Any = silent
    channel._connection, channel._opened_at = connection, loop.time()
    asked_at = loop.time()
    waits = asyncio.create_task(channel.request([], b"", send_by=asked_at + 60))
    if is_new:
        await asyncio.sleep(0)
        channel._opened_at = loop.time() + 60
    answer = await waits
    assert answer.outcome is Outcome.UNSENT  # type: ignore[union-attr]
    assert silent.since == channel._opened_at if is_new else asked_at <= silent.since < asked_at + TIMEOUT_S
