"""Our Web Push provider: each message encrypted for its browser, by a key made for it alone."""

from __future__ import annotations

import asyncio

from benchmarks.providers.ours import compete
from benchmarks.providers.task import Task
from notifier.log import configure_logging
from notifier.notification import Device
from notifier.providers.webpush.provider import WebPushProvider
from notifier.providers.webpush.settings import WebPushSettings
from notifier.simulators.webpush_browser import subscription
from tests.harness.vapid import make_key

BROWSERS = 1_000


async def main(task: Task) -> None:
    """Send until the time is over."""
    hosts = [f"127.0.0.1:{task.port}"]
    keys = {"subject": "mailto:benchmark@example.com", "hosts": hosts, "ca_file": task.ca_file}
    provider = WebPushProvider(WebPushSettings.model_validate(keys), make_key(), max_connections=task.in_flight)
    origin = f"https://127.0.0.1:{task.port}"
    devices = [Device("webpush", subscription(origin, f"browser-{number}")) for number in range(BROWSERS)]
    await compete(task, provider, devices)


if __name__ == "__main__":
    configure_logging("json", "warning")
    asyncio.run(main(Task.read()))
