"""What each feature costs Redis, for a message that uses it: the engine with a null provider, one feature at a time.

What is compared with is the plain message of `benchmarks.engine` in the same round, under the same rules.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from redis import Redis

from benchmarks.harness import Figure, median, own_redis
from benchmarks.null_worker import RATES
from benchmarks.workload import QUEUE, STAGED, deliver_staged, notifications
from notifier import Device, Notification, Notifier
from notifier.settings import parse_settings

Change = Callable[[Notification], Notification]


@dataclass(frozen=True, slots=True)
class Feature:
    """Rules that are added to those of everyone, and what is done to each notification."""

    rates: str = ""
    change: Change = lambda notification: notification


def _of(**fields: object) -> Change:
    return lambda notification: replace(notification, **fields)  # type: ignore[arg-type]


FEATURES: Final[dict[str, Feature]] = {
    "an expiry": Feature(change=_of(expires_in=600)),
    "a high priority": Feature(change=_of(priority="high")),
    "a category that bypasses": Feature("  pass: {bypass: true}", _of(category="pass")),
    "a category that counts as two": Feature("  pass: {cost: 2}", _of(category="pass")),
    "a window in buckets": Feature("  pass: {windows: [5000/day]}", _of(category="pass")),
    "a token bucket": Feature("  pass: {burst: {capacity: 10, refill: 1/1s}}", _of(category="pass")),
    "a zone, without rules by the clock": Feature(change=_of(zone="Europe/Berlin")),
    "quiet hours": Feature('  pass: {quiet_hours: "00:00-00:01"}', _of(category="pass")),
    "a calendar window": Feature("  pass: {windows: [1000/calendar-day]}", _of(category="pass")),
    "a collapse id": Feature(change=_of(collapse_id="score")),
    "rules of the user's own": Feature('users: {"u*": {}}'),
}


def measure(*, quick: bool) -> list[Figure]:
    """µs of Redis's CPU a message, as a ratio to the plain one of the same round; medians."""
    rounds, count = (1, 2_000) if quick else (5, 5_000)
    plain: list[float] = []
    ratios: dict[str, list[float]] = {name: [] for name in FEATURES}
    with own_redis() as (server, redis):
        for _ in range(rounds):
            plain.append(redis_us(redis, server.url, Feature(), count))
            for name, feature in FEATURES.items():
                ratios[name].append(redis_us(redis, server.url, feature, count) / plain[-1])
    figures = [Figure("a plain message: Redis CPU", median(plain), "µs")]
    return figures + [Figure(f"with {name}", median(found), "x") for name, found in ratios.items()]


def redis_us(redis: Redis, url: str, feature: Feature, count: int) -> float:
    """µs of Redis's CPU for each of so many."""
    redis.flushall()
    rates = rates_with(feature, count)
    Notifier(redis, parse_settings(rates)).send_many(
        feature.change(_to_its_user(each)) for each in notifications(count)
    )
    redis.rename(QUEUE, STAGED)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "notifier.yaml")
        file.write_text(rates, encoding="utf-8")
        return deliver_staged(redis, url, count, 1, str(file)).redis_us


def _to_its_user(notification: Notification) -> Notification:
    """Each user has a device: Google's limit of one is not what is measured."""
    return replace(notification, devices=[Device("fcm", f"the-device-of-{notification.user}")])


def rates_with(feature: Feature, count: int) -> str:
    """The rules of everyone, and the feature's: a category in the lane that all go by, or users."""
    if feature.rates.startswith("users:"):
        each = "".join(f"  u{n}: {{gap: 1ms}}\n" for n in range(count))
        return f"{RATES}users:\n{each}"
    if not feature.rates:
        return RATES
    name, _, rules = feature.rates.strip().partition(": {")
    return RATES.replace("categories: {", f"categories: {{{name}: {{lane: default, {rules}, ")
