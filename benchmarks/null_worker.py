"""Workers that send nothing, as processes: ours with a null provider, and RQ's SimpleWorker with a no-op.

`python -m benchmarks.null_worker push|simple <url of Redis> [file of rates]`
"""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path
from typing import Final

import structlog
from redis import Redis
from rq import SimpleWorker
from rq.serializers import JSONSerializer

from notifier.log import configure_logging
from notifier.notification import Device
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.settings import parse_settings
from workers import PushWorker

# Every kind of rule is in force, and none of them holds anything back: what is measured is the asking.
RATES: Final = """
user: {windows: [10/minute, 200/day], gap: 1ms}
providers: {fcm: {client: console}}
categories: {default: {lane: default, windows: [100/hour]}, urgent: {lane: urgent}, bulk: {lane: bulk}}
"""


class NullProvider:
    """Takes everything, does nothing; prints when those left that carry a number, in µs since the epoch."""

    platform = "fcm"

    async def send(self, dispatch: Dispatch) -> Answer:
        """Answer DELIVERED."""
        if number := dispatch.notification.data.get("n"):
            print(number, time.time_ns() // 1000, flush=True)
        await asyncio.sleep(0)  # as every provider does that asks somebody else: so the sends of a batch overlap
        return Answer(Outcome.DELIVERED, 200)

    def service(self, _device: Device) -> str:
        """Nowhere."""
        return "nowhere"

    async def probe(self, _device: Device) -> bool:
        """Say yes."""
        return True

    async def close(self) -> None:
        """Nothing is open."""


def noop(**_: object) -> None:
    """The job of the peer."""


def main(kind: str, url: str, rates: str = "") -> None:
    """Work until told to stop. rates: a file with other rules than `RATES`."""
    redis = Redis.from_url(url, protocol=2)
    configure_logging("json", "warning")
    structlog.get_logger()
    if kind == "push":
        settings = parse_settings(Path(rates).read_text(encoding="utf-8") if rates else RATES)
        providers = {"fcm": NullProvider()}
        worker = PushWorker(["urgent", "default", "bulk"], connection=redis, settings=settings, providers=providers)
        worker.work(logging_level="WARNING")
    else:
        SimpleWorker(["default"], connection=redis, serializer=JSONSerializer).work(logging_level="WARNING")


if __name__ == "__main__":
    main(*sys.argv[1:4])
