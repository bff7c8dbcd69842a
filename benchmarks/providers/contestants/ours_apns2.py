"""Our APNs provider with requests that apns2 builds, as a worker with `client: apns2` uses it."""

from __future__ import annotations

import asyncio

from benchmarks.providers.contestants.ours_apns import main
from benchmarks.providers.task import Task
from notifier.log import configure_logging
from notifier.providers.apns.pyapns2.provider import Apns2Provider

if __name__ == "__main__":
    configure_logging("json", "warning")
    asyncio.run(main(Task.read(), Apns2Provider))
