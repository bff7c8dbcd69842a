"""Our APNs provider."""

from __future__ import annotations

import asyncio
from pathlib import Path

from benchmarks.providers.ours import compete
from benchmarks.providers.task import KEY_ID, TEAM_ID, TOPIC, Task, device_token
from notifier.log import configure_logging
from notifier.notification import Device
from notifier.providers.apns.provider import ApnsProvider
from notifier.providers.apns.settings import ApnsSettings


async def main(task: Task, client: type[ApnsProvider] = ApnsProvider) -> None:
    """Send until the time is over."""
    sign_in = {"team_id": TEAM_ID, "key_id": KEY_ID, "topic": TOPIC}
    where = {"endpoint": f"https://127.0.0.1:{task.port}", "ca_file": task.ca_file}
    key = (Path(task.folder) / f"AuthKey_{KEY_ID}.p8").read_text(encoding="utf-8")
    provider = client(ApnsSettings.model_validate(sign_in | where), key_id=KEY_ID, key=key)
    await compete(task, provider, [Device("apns", device_token(number)) for number in range(10_000)])


if __name__ == "__main__":
    configure_logging("json", "warning")
    asyncio.run(main(Task.read()))
