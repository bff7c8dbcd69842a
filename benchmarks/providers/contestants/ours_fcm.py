"""Our FCM provider, as a worker uses it: a dispatch in, an answer out."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from benchmarks.providers.task import BODY, TITLE, Task, device_token, keep_in_flight
from notifier.log import configure_logging
from notifier.notification import Device, Notification
from notifier.providers.contract import Dispatch, Outcome
from notifier.providers.fcm.provider import FcmProvider


async def main(task: Task) -> None:
    """Send until the time is over."""
    account = json.loads((Path(task.folder) / "service-account.json").read_text(encoding="utf-8"))
    endpoint = f"https://127.0.0.1:{task.port}"
    provider = FcmProvider(
        service_account=account | {"token_uri": f"{endpoint}/token"}, endpoint=endpoint, ca_file=Path(task.ca_file)
    )
    devices = [Device("fcm", device_token(number)) for number in range(10_000)]
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
