"""Our FCM provider."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from benchmarks.providers.ours import compete
from benchmarks.providers.task import Task, device_token
from notifier.log import configure_logging
from notifier.notification import Device
from notifier.providers.fcm.provider import FcmProvider
from notifier.providers.fcm.settings import FcmSettings


async def main(task: Task) -> None:
    """Send until the time is over."""
    account = json.loads((Path(task.folder) / "service-account.json").read_text(encoding="utf-8"))
    endpoint = f"https://127.0.0.1:{task.port}"
    settings = FcmSettings.model_validate({"endpoint": endpoint, "ca_file": task.ca_file})
    provider = FcmProvider(settings, account | {"token_uri": f"{endpoint}/token"})
    await compete(task, provider, [Device("fcm", device_token(number)) for number in range(10_000)])


if __name__ == "__main__":
    configure_logging("json", "warning")
    asyncio.run(main(Task.read()))
