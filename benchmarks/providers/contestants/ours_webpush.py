"""Our Web Push provider, as a worker uses it: each message encrypted for its browser, by a key made for it alone."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.providers.task import BODY, TITLE, Task, keep_in_flight
from notifier.log import configure_logging
from notifier.notification import Device, Notification
from notifier.providers.contract import Dispatch, Outcome
from notifier.providers.webpush.keys import make_key
from notifier.providers.webpush.provider import WebPushProvider
from notifier.simulators.webpush_browser import subscription

BROWSERS = 1_000


async def main(task: Task) -> None:
    """Send until the time is over."""
    provider = WebPushProvider(
        key=make_key(),
        subject="mailto:benchmark@example.com",
        hosts=[f"127.0.0.1:{task.port}"],
        ca_file=Path(task.ca_file),
        max_connections=task.in_flight,
    )
    origin = f"https://127.0.0.1:{task.port}"
    devices = [Device("webpush", subscription(origin, f"browser-{number}")) for number in range(BROWSERS)]
    notifications = [Notification(user="u", devices=[device], title=TITLE, body=BODY) for device in devices]
    loop = asyncio.get_running_loop()

    async def send(number: int) -> str:
        notification = notifications[number % BROWSERS]
        dispatch = Dispatch(f"job-{number}", notification.devices[0], notification, None, loop.time() + 25)
        answer = await provider.send(dispatch)
        return "" if answer.outcome is Outcome.DELIVERED else str(answer)

    await keep_in_flight(task, send)
    await provider.close()


if __name__ == "__main__":
    configure_logging("json", "warning")
    asyncio.run(main(Task.read()))
