"""Our providers as contestants: used as a worker uses them, a dispatch in, an answer out."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from benchmarks.providers.task import BODY, TITLE, Task, keep_in_flight
from notifier.notification import Device, Notification
from notifier.providers.contract import Dispatch, Outcome, Provider


async def compete(task: Task, provider: Provider, devices: Sequence[Device]) -> None:
    """Send to these devices, one after the other and again, until the time is over."""
    notifications = [Notification(user="u", devices=[device], title=TITLE, body=BODY) for device in devices]
    loop = asyncio.get_running_loop()

    async def send(number: int) -> str:
        notification = notifications[number % len(notifications)]
        dispatch = Dispatch(f"job-{number}", notification.devices[0], notification, None, loop.time() + 25)
        answer = await provider.send(dispatch)
        return "" if answer.outcome is Outcome.DELIVERED else str(answer)

    await keep_in_flight(task, send)
    await provider.close()
