"""Our APNs provider, as a worker uses it: a dispatch in, an answer out."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.providers.task import BODY, KEY_ID, TEAM_ID, TITLE, TOPIC, Task, device_token, keep_in_flight
from notifier.log import configure_logging
from notifier.notification import Device, Notification
from notifier.providers.apns.provider import ApnsProvider
from notifier.providers.contract import Dispatch, Outcome


async def main(task: Task, client: type[ApnsProvider] = ApnsProvider) -> None:
    """Send until the time is over."""
    provider = client(
        team_id=TEAM_ID,
        key_id=KEY_ID,
        key=(Path(task.folder) / f"AuthKey_{KEY_ID}.p8").read_text(encoding="utf-8"),
        topic=TOPIC,
        endpoint=f"https://127.0.0.1:{task.port}",
        ca_file=Path(task.ca_file),
    )
    devices = [Device("apns", device_token(number)) for number in range(10_000)]
    notifications = [Notification(user="u", devices=[device], title=TITLE, body=BODY) for device in devices]
    loop = asyncio.get_running_loop()

    async def send(number: int) -> str:
        notification = notifications[number % len(notifications)]
        dispatch = Dispatch(f"job-{number}", notification.devices[0], notification, None, loop.time() + 25)
        answer = await provider.send(dispatch)
        return "" if answer.outcome is Outcome.DELIVERED else str(answer)

    await keep_in_flight(task, send)
    await provider.close()


if __name__ == "__main__":
    configure_logging("json", "warning")
    asyncio.run(main(Task.read()))
