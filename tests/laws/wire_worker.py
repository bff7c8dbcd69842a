"""A worker whose provider is the wire itself: it notes the true time of each send, whatever the worker believes.

`python wire_worker.py --wire-log FILE [--clock-hours H] [--name NAME]`. With --clock-hours everything in the process
that asks Python for the time is told one that is so many hours off. A token of `KILLS` ends the process at once.
"""

from __future__ import annotations

import argparse
import datetime
import os
import time
from pathlib import Path

KILLS = "dead" * 16


def shift_clock(hours: float) -> None:
    """Put the clocks that Python programs read so many hours off; the monotonic ones stay."""
    seconds, true_time, true_ns = hours * 3600, time.time, time.time_ns
    delta = datetime.timedelta(hours=hours)

    class Shifted(datetime.datetime):
        @classmethod
        def now(cls, tz=None):
            return super().now(tz) + delta

        @classmethod
        def utcnow(cls):
            return super().now(datetime.UTC).replace(tzinfo=None) + delta

    time.time = lambda: true_time() + seconds
    time.time_ns = lambda: true_ns() + int(seconds * 1e9)
    datetime.datetime = Shifted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--wire-log", type=Path, required=True)
    parser.add_argument("--clock-hours", type=float, default=0)
    parser.add_argument("--name")
    arguments = parser.parse_args()
    if arguments.clock_hours:
        shift_clock(arguments.clock_hours)  # before anything else is imported

    from notifier.connection import connect
    from notifier.log import configure_logging
    from notifier.providers.contract import Answer, Outcome
    from notifier.settings import load_settings
    from notifier.simulators.wire import Arrival, WireLog
    from workers import PushWorker

    log = WireLog(arguments.wire_log)

    class Wire:
        platform = "apns"

        async def send(self, dispatch):
            token = dispatch.device.token
            at_us = time.clock_gettime_ns(time.CLOCK_REALTIME) // 1000
            log.record(Arrival(at_us, "apns", token, 200, "", dispatch.job_id, data=dict(dispatch.notification.data)))
            if token == KILLS:
                os._exit(9)
            return Answer(Outcome.DELIVERED, 200)

        async def close(self):
            log.close()

    settings = load_settings()
    configure_logging("json", "info")
    worker = PushWorker(
        ["urgent", "default", "bulk"],
        name=arguments.name,
        connection=connect(settings),
        settings=settings,
        providers={"apns": Wire()},
    )
    worker.work(logging_level="INFO")


if __name__ == "__main__":
    main()
