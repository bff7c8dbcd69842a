"""Slow providers: one worker before a server that takes so many messages a second, the others standing in its queue.

All are sent at once. Nothing may run into the timeout only because too much was sent, and the server is kept busy.
"""

from __future__ import annotations

from typing import Any, Final

from benchmarks.harness import Figure, at_least, at_most
from notifier import Device, Notification
from tests.harness.fleet import start_fleet
from tests.harness.processes import total

RATES: Final = (50, 300, 3_000)
TIMEOUT: Final = "5s"
NO_LIMITS: Final[dict[str, Any]] = {"device": [], "collapsible": None, "project": None}


def measure(*, quick: bool) -> list[Figure]:
    """Repeats, and the share of what the server bears, from the first arrival to the last."""
    count = 600 if quick else 3_000
    return [
        figure
        for platform in ("apns", "fcm")
        for rate in RATES
        for figure in before(platform, rate, min(count, 60 * rate))
    ]


def before(platform: str, rate: int, count: int) -> list[Figure]:
    """One server of one platform."""
    settings = {"apns": {"timeout": TIMEOUT}, "fcm": {"timeout": TIMEOUT, "limits": NO_LIMITS}}
    with start_fleet({}, workers=1, begin={platform: {"rate": rate}}, **settings) as fleet:
        with fleet.notifier() as notifier:
            notifier.send_many(_to(platform, n) for n in range(count))
        fleet.await_ended(count, 2 * count / rate + 60)
        arrivals = [arrival.at_us for arrival in fleet.arrivals()]
        seconds = (max(arrivals) - min(arrivals)) / 1e6
        name = f"{platform}, {rate:,} a second"
        return [
            Figure(f"{name}: repeats of {count:,}", total(fleet.redis, "retried"), "", at_most(0)),
            Figure(f"{name}: of what it bears", count / seconds / rate, "", at_least(0.9)),
        ]


def _to(platform: str, n: int) -> Notification:
    token = f"{n:064x}" if platform == "apns" else f"the-device-of-user-{n}"
    return Notification(user=f"u{n}", devices=[Device(platform, token)], title="hi", data={"n": str(n)})
