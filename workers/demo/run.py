"""The demo itself: starts everything, sends the notifications at their pace, waits for their ends, and measures."""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any, Final

from redis import Redis

from notifier import Notification, Notifier
from notifier.errors import NotifierError
from notifier.notification.job import TERMINAL
from notifier.rules.category import LANES
from notifier.scripts.keys import redis_key, rq_key
from notifier.simulators.wire import WireLog
from notifier.store.connection import connect
from workers.demo.report import report
from workers.demo.screen import Screen, print_report
from workers.demo.stage import Stage, stage
from workers.demo.traffic import notifications

MAX_TEMP_CHARACTERS: Final = 60  # the folder holds a Unix socket, whose path may have about 100
LONGEST_S = 60.0
POLL_S = 0.2
DEAD = {"apns": {"status": 410, "reason": "Unregistered"}, "fcm": {"status": 404, "reason": "UNREGISTERED"}}


def play(arguments: argparse.Namespace) -> int:
    """Run the demo; return its exit status."""
    try:
        found = _run(arguments)
    except (NotifierError, OSError) as error:
        sys.stderr.write(f"demo: {error}\n")
        return 1
    if arguments.json:
        sys.stdout.write(json.dumps(found) + "\n")
    else:
        print_report(found, arguments.rates)
    return 0 if found["laws_held"] else 1


def _run(arguments: argparse.Namespace) -> dict[str, Any]:
    rows = notifications()
    tokens = [device for row in rows for device in row["devices"]]
    scripts = {d["token"]: [DEAD[d["platform"]]] for d in tokens if d["token"].startswith("dead")}
    with contextlib.ExitStack() as stack:
        folder = _folder(stack)
        set_up = stack.enter_context(stage(folder, arguments.rates, scripts, arguments.workers))
        redis = stack.enter_context(contextlib.closing(connect(set_up.settings.redis)))
        screen = stack.enter_context(Screen(len(rows), set_up.redis, quiet=arguments.json))
        screen.explain(*_plan(rows))
        begun = time.monotonic()
        accepted_us = _enqueue(set_up, rows, begun, lambda: screen.show(*_progress(redis)))
        while True:
            stats, waiting = _progress(redis)
            seconds = time.monotonic() - begun
            screen.show(stats, waiting)
            if sum(stats.get(word, 0) for word in TERMINAL) >= len(rows) or seconds > LONGEST_S:
                break
            time.sleep(POLL_S)
        arrivals = WireLog.read(set_up.wire_log)
        return report(rows, accepted_us, arrivals, stats, waiting, set_up.settings.policies(), seconds)


def _folder(stack: contextlib.ExitStack) -> Path:
    """Make a temporary folder. Its removal is registered first, as Ctrl-C may come in between."""
    above = tempfile.gettempdir() if len(tempfile.gettempdir()) <= MAX_TEMP_CHARACTERS else "/tmp"  # noqa: S108 - a folder in it
    folder = Path(above, f"push-throttle-demo-{token_hex(8)}")
    stack.callback(shutil.rmtree, folder, ignore_errors=True)
    folder.mkdir(0o700)
    return folder


def _plan(rows: list[dict[str, Any]]) -> tuple[int, int]:
    """Return how many notifications go to dead devices only, and how many have an expiry."""
    dead = sum(all(device["token"].startswith("dead") for device in row["devices"]) for row in rows)
    return dead, sum("expires_in" in row for row in rows)


def _enqueue(set_up: Stage, rows: list[dict[str, Any]], begun: float, tick: Callable[[], None]) -> list[int]:
    """Send each row at its time, as producers would; return when each was accepted, in µs."""
    accepted_us: list[int] = []
    with Notifier.from_config(set_up.config, {"NOTIFIER_REDIS_URL": set_up.settings.redis.url}) as notifier:
        for batch in _paced(rows, begun, tick):
            notifier.send_many(_notification(n, row) for n, row in enumerate(batch, len(accepted_us)))
            accepted_us += [time.time_ns() // 1000] * len(batch)
    return accepted_us


def _paced(rows: list[dict[str, Any]], begun: float, tick: Callable[[], None]) -> Iterator[list[dict[str, Any]]]:
    sent = 0
    while sent < len(rows):
        elapsed = time.monotonic() - begun
        due = next((n for n in range(sent, len(rows)) if rows[n]["at"] > elapsed), len(rows))
        if due > sent:
            yield rows[sent:due]
            sent = due
        tick()
        time.sleep(POLL_S / 4)


def _notification(number: int, row: dict[str, Any]) -> Notification:
    fields = {name: value for name, value in row.items() if name != "at"}
    return Notification.from_kwargs({**fields, "data": {"n": str(number)}})


def _progress(redis: Redis) -> tuple[dict[str, int], int]:
    """Return the totals so far, and how many notifications are queued, waiting or in flight."""
    with redis.pipeline(transaction=False) as pipe:
        pipe.hgetall(redis_key("stats"))
        for lane in LANES:
            pipe.llen(rq_key("queue", lane))
            pipe.zcard(rq_key("scheduled", lane))
            pipe.zcard(rq_key("wip", lane))
        stats, *counts = pipe.execute()
    return {key.decode(): int(value) for key, value in stats.items()}, sum(counts)
