"""Write the metrics for Prometheus. docs/reference/metrics.md has the table of the names."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import Any, Final

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from notifier.errors import RedisUnusableError
from notifier.notification.job import TERMINAL
from notifier.operations.route_view import find_uses
from notifier.operations.stats import Now, read_now
from notifier.queue.circuits import paused_words
from notifier.queue.minutes import BOUNDS_S, BUCKETS, KEPT_MINUTES, Histogram, Numbers, find_fields
from notifier.queue.waits import with_limits
from notifier.rules.policy import Window
from notifier.store.connection import OUT_OF_MEMORY
from notifier.store.partitions import Partitions
from notifier.store.pipelining import ask_all

# Minutes. The first reading looks so far ahead for minutes counted before Redis's clock was set back.
AHEAD: Final = 12 * 60
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
EVENTS = dict.fromkeys(("accepted", "refused", *TERMINAL), 0)
# The gauges of the present state: by name, the help text and the labels.
GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "notifier_redis_up": ("whether Redis answers and takes what is written, in all partitions", ()),
    "notifier_partition_up": ("whether the node of a partition answers", ("partition",)),
    "notifier_partition_workers": ("workers that have looked for work in a partition lately", ("partition",)),
    "notifier_partition_due": ("in a partition: queued, and users whose wake-up has passed", ("partition",)),
    "notifier_queued": ("accepted, and not looked at by a worker yet", ("lane",)),
    "notifier_waiting": ("waiting in backlogs or for a time of their own, by what holds them", ("why",)),
    "notifier_scheduled": ("waiting for their user's limits, or for a time of their own", ("lane",)),
    "notifier_due_users": ("users whose wake-up has passed", ("lane",)),
    "notifier_oldest_due_seconds": ("for how long the first of the due users is due", ("lane",)),
    "notifier_later": ("waiting for a time of their own: send_at, or a retry", ()),
    "notifier_in_flight": ("being sent", ()),
    "notifier_oldest_queued_seconds": ("for how long the first of the queue has been accepted", ("lane",)),
    "notifier_route_state": (
        "1 for each route: working, slow, stopped or unknown; and why",
        ("route", "state", "kind"),
    ),
    "notifier_paused": ("1 for each thing that a person has paused; one for all users", ("what",)),
    "notifier_suspended": ("1 while rq suspend keeps all workers from looking for work", ("partition",)),
    "notifier_project_used_ratio": ("how much of its project's limit is used, 0 to 1", ("route",)),
    "notifier_workers": ("workers that Redis knows", ()),
    "notifier_workers_healthy": ("workers that have looked for work lately", ()),
    "notifier_redis_memory_bytes": ("memory that Redis uses; the fullest node of several", ()),
    "notifier_redis_memory_max_bytes": ("maxmemory of this Redis; 0 where it has none", ()),
}


class Metrics(Collector):
    """Adds the growth of the minutes' numbers to the counters, and reads the present state, at each scrape.

    Counters begin at 0 when the process starts, as Prometheus expects. A minute is read until it has ended.
    """

    def __init__(
        self,
        redis: Any,
        routes: Sequence[str],
        projects: Mapping[str, Window],
        limits: Callable[[], Container[str]],
    ) -> None:
        """routes: the configured ones. projects: the limits of projects, by route. limits: returns the limits that the
        configuration in force has for more than one user.
        """
        self._routes = routes
        self._partitions = Partitions.around(redis)
        self._projects = projects
        self._limits = limits
        self._totals = Numbers()
        # By partition: the newest minute at the last reading, and the fields of that minute and of later ones.
        self._seen: dict[int, tuple[int, dict[int, dict[str, int]]]] = {}
        self._scraping = threading.Lock()

    def text(self) -> bytes:
        """One scrape at a time, because each counts on from the last."""
        with self._scraping:
            return generate_latest(self)

    def collect(self) -> Iterator[Metric]:
        gauges = {name: GaugeMetricFamily(name, says, labels=of) for name, (says, of) in GAUGES.items()}
        events = CounterMetricFamily(
            "notifier_events",
            "counted since ever, by what happened: accepted, refused, an outcome",
            labels=["event"],
        )
        try:
            now = read_now(self._partitions)
            self._count_on()
            uses = list(ask_all(self._partitions, lambda: find_uses(self._projects)).all)
            limits = self._limits()
        except RedisUnusableError:
            gauges["notifier_redis_up"].add_metric([], 0)
            for at in self._partitions:
                gauges["notifier_partition_up"].add_metric([str(at.number)], 0)
        else:
            gauges["notifier_redis_up"].add_metric([], not now.away and now.refuses in {"", OUT_OF_MEMORY})
            _add_now(gauges, now, self._routes, limits)
            for by, of in self._projects.items():
                gauges["notifier_project_used_ratio"].add_metric([by], sum(used[by] for used in uses) / of.limit)
            # A total that falls looks like a restart; a counter that does not begin at 0 hides its first increase.
            for word, n in ({} if now.away else EVENTS | now.totals).items():
                events.add_metric([word], n)
        yield from gauges.values()
        yield events
        yield from self._of_minutes()

    def _count_on(self) -> None:
        readings = [last for last, _ in self._seen.values()]

        def choose(newest: int) -> range:
            first, last = min([newest, *readings]), max([newest + AHEAD * (not readings), *readings])
            return range(max(first, newest - KEPT_MINUTES), min(last, newest + KEPT_MINUTES) + 1)

        for number, (newest, found) in ask_all(self._partitions, lambda: find_fields(choose)).found.items():
            last, seen = self._seen.get(number, (math.inf, {}))  # at the first reading nothing is new
            for minute, fields in found.items():
                # If Redis's clock was set back, minutes before `last` were counted earlier.
                old = seen.get(minute, {} if minute >= last else fields)
                # If a number has fallen, Redis has lost data and counts from 0: the whole number is new.
                grown = {field: n - old.get(field, 0) for field, n in fields.items()}
                self._totals.add({field: fields[field] if n < 0 else n for field, n in grown.items()})
            self._seen[number] = newest, {minute: of for minute, of in (seen | found).items() if minute >= newest}

    def _of_minutes(self) -> Iterator[Metric]:
        accepted = CounterMetricFamily("notifier_accepted", "notifications accepted", labels=["category"])
        for category, n in self._totals.accepted.items():
            accepted.add_metric([category], n)
        yield accepted
        says = "notifications that ended, and attempts that are to be repeated (retried, returned)"
        ended = CounterMetricFamily("notifier_notifications", says, labels=["outcome", "category", "route"])
        for labels, n in self._totals.ended.items():
            ended.add_metric(labels, n)
        yield ended
        says = "notifications set aside, because several workers died while they sent them"
        yield CounterMetricFamily("notifier_poison", says, value=self._totals.events["poison"])
        says = "from when a user was due until the notification was handed to its provider"
        yield _histogram("notifier_lateness_seconds", says, "category", self._totals.late)
        says = "how long providers took to answer"
        yield _histogram("notifier_provider_latency_seconds", says, "route", self._totals.answers)


def _by_why(now: Now, limits: Container[str]) -> Counter[str]:
    """Count waiting notifications by reason. Paused users share one label, and so do the limits of single users."""
    found: Counter[str] = Counter()
    for each in with_limits(now.waits, limits):
        found["the pause of a user" if each.what.startswith("the pause of user:") else each.what] += each.waiting
    return found


def _add_now(gauges: Mapping[str, GaugeMetricFamily], now: Now, routes: Sequence[str], limits: Container[str]) -> None:
    for name, lane in now.lanes.items():
        gauges["notifier_queued"].add_metric([name], lane.queued)
        gauges["notifier_scheduled"].add_metric([name], lane.waiting)
        gauges["notifier_due_users"].add_metric([name], lane.due_users)
        gauges["notifier_oldest_due_seconds"].add_metric([name], lane.oldest_due_s)
        gauges["notifier_oldest_queued_seconds"].add_metric([name], lane.oldest_queued_s)
    gauges["notifier_later"].add_metric([], now.later)
    gauges["notifier_in_flight"].add_metric([], now.in_flight)
    held = {each.route: (each.state, each.kind) for each in sorted(now.routes, key=lambda each: each.state)}
    for route in {**dict.fromkeys(routes), **held}:
        gauges["notifier_route_state"].add_metric(
            [route, *held.get(route, ("working" if now.works else "unknown", ""))], 1
        )
    paused = [paused_words(pause.route) for pause in now.pauses]
    for what in {"a user" if each.startswith("user:") else each for each in paused}:
        gauges["notifier_paused"].add_metric([what], 1)
    for why, n in _by_why(now, limits).items():
        gauges["notifier_waiting"].add_metric([why], n)
    for number, workers in now.served.items():
        gauges["notifier_suspended"].add_metric([str(number)], number in now.suspended)
        gauges["notifier_partition_workers"].add_metric([str(number)], workers)
    for number, due in now.untaken.items():
        gauges["notifier_partition_due"].add_metric([str(number)], due)
    for number in (*now.served, *now.away):
        gauges["notifier_partition_up"].add_metric([str(number)], number in now.served)
    gauges["notifier_workers"].add_metric([], len(now.workers))
    gauges["notifier_workers_healthy"].add_metric([], sum(worker.is_healthy() for worker in now.workers))
    gauges["notifier_redis_memory_bytes"].add_metric([], now.memory[0])
    gauges["notifier_redis_memory_max_bytes"].add_metric([], now.memory[1])


def _histogram(name: str, says: str, label: str, found: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, says, labels=[label])
    for value, histogram in found.items():
        total, buckets = 0, []
        for n in range(BUCKETS):
            total += histogram.counts[n]
            buckets.append(("+Inf" if n == BUCKETS - 1 else repr(BOUNDS_S[n]), total))
        family.add_metric([value], buckets, sum_value=histogram.sum_s)
    return family
