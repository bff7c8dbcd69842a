"""A worker whose provider is the wire itself: it notes the true time of each send, whatever the worker believes.

`python wire_worker.py --wire-log FILE [--clock-hours H] [--far-ms MS] [--name NAME]`. With --clock-hours everything
in the process that asks Python for the time is told one that is so many hours off, and from SIGUSR1 on as many the
other way. With --far-ms each send takes so long to reach the wire. A token of `KILLS` ends the process at once.
"""

import argparse
import asyncio
import datetime as dt
import importlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

KILLS = "dead" * 16


def shift_clock(hours: float) -> None:
    """Put the clocks that Python programs read so many hours off; the monotonic ones stay. SIGUSR1 turns it round."""
    if "workers" in sys.modules:
        raise RuntimeError("what has been imported keeps the true clocks; this process is to be started cold")
    true_time, true_ns = time.time, time.time_ns
    off = dt.timedelta(hours=hours)

    class Shifted(dt.datetime):
        @classmethod
        def now(cls, tz: dt.tzinfo | None = None) -> Any:
            return super().now(tz) + off

        @classmethod
        def utcnow(cls) -> Any:
            return super().now(dt.UTC).replace(tzinfo=None) + off

    def turn(*_: object) -> None:
        nonlocal off
        off = -off
        sys.stdout.write("clock_set\n")
        sys.stdout.flush()

    time.time = lambda: true_time() + off.total_seconds()
    time.time_ns = lambda: true_ns() + int(off.total_seconds() * 1e9)
    dt.datetime = Shifted  # type: ignore[misc]
    signal.signal(signal.SIGUSR1, turn)


def wire(path: Path, far_ms: float) -> Any:
    """A provider that appends to the wire log, which is so far away."""
    contract = importlib.import_module("notifier.providers.contract")
    log_module = importlib.import_module("notifier.simulators.wire")
    log = log_module.WireLog(path)

    class Wire:
        platform = "apns"

        async def send(self, dispatch: Any) -> Any:
            token, data = dispatch.device.token, dict(dispatch.notification.data)
            await asyncio.sleep(far_ms / 1000)
            # Asked of the system, past what `shift_clock` has replaced.
            at_us = time.clock_gettime_ns(time.CLOCK_REALTIME) // 1000
            log.record(log_module.Arrival(at_us, "apns", token, 200, "", dispatch.job_id, data=data))
            if token == KILLS:
                os._exit(9)
            return contract.Answer(contract.Outcome.DELIVERED, 200)

        def service(self, _device: Any) -> str:
            return "wire"

        async def probe(self, _device: Any) -> bool:
            return True

        async def close(self) -> None:
            log.close()

    return Wire()


def main() -> None:
    """Work until told to stop."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--wire-log", type=Path, required=True)
    parser.add_argument("--clock-hours", type=float)
    parser.add_argument("--far-ms", type=float, default=0)
    parser.add_argument("--name")
    arguments = parser.parse_args()
    if arguments.clock_hours is not None:
        shift_clock(arguments.clock_hours)  # so all else is imported after it, and sees the replaced clocks

    settings = importlib.import_module("notifier.settings").load_settings()
    importlib.import_module("notifier.log").configure_logging("json", "info")
    worker = importlib.import_module("workers").PushWorker(
        ["urgent", "default", "bulk"],
        name=arguments.name,
        connection=importlib.import_module("notifier.store.connection").connect(settings.redis),
        settings=settings,
        providers={"apns": wire(arguments.wire_log, arguments.far_ms)},
    )
    worker.work(logging_level="INFO")


if __name__ == "__main__":
    main()
