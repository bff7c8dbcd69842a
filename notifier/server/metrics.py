"""What Prometheus reads. docs/reference/metrics.md has the table of the names; a test holds the two equal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from notifier.dispatch.minutes import BUCKETS, KEPT_MINUTES, Histogram, Numbers, bound_s, minute_now, read_fields
from notifier.errors import RedisUnusableError
from notifier.operations.route_view import project_use
from notifier.operations.stats import Now, read_now
from notifier.rules.policy import Window

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# (name, help, labels) of each gauge of one Redis; every one has the label shard, '' where there is one Redis.
GAUGES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "notifier_redis_up": ("whether Redis answers", ()),
    "notifier_queued": ("accepted, and not looked at by a worker yet", ("lane",)),
    "notifier_waiting": ("waiting for their user's limits, or for a time of their own", ("lane",)),
    "notifier_due_users": ("users whose wake-up has passed", ("lane",)),
    "notifier_oldest_due_seconds": ("for how long the first of the due users is due", ("lane",)),
    "notifier_later": ("waiting for a time of their own: send_at, or a retry", ()),
    "notifier_in_flight": ("being sent", ()),
    "notifier_route_closed": ("1 for each route by which not all goes now", ("route", "state")),
    "notifier_project_used_ratio": ("how much of its project's limit is used, 0 to 1", ("route",)),
    "notifier_workers": ("workers that Redis knows", ()),
    "notifier_workers_healthy": ("workers that have looked for work lately", ()),
    "notifier_redis_memory_bytes": ("memory that Redis uses", ()),
    "notifier_redis_memory_max_bytes": ("maxmemory of Redis; 0 where it has none", ()),
}


class Metrics(Collector):
    """Counts on from the numbers of the minutes, and reads what is now, at each scrape.

    Counters begin at 0 when the process starts, as Prometheus expects. A minute is read until it has ended.
    """

    def __init__(self, clients: Mapping[str, Any], projects: Mapping[str, Window]) -> None:
        """projects: the limits of those that have one, by route."""
        self._clients = clients
        self._projects = projects
        self._totals = Numbers()
        self._seen: dict[str, tuple[int, dict[str, int]]] = {}  # of each shard the minute read last, and its fields
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def describe(self) -> Iterator[Metric]:
        """Nothing, so that to register does not ask Redis."""
        return iter(())

    def text(self) -> bytes:
        """One scrape."""
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """All families."""
        gauges = {name: GaugeMetricFamily(name, says, labels=[*of, "shard"]) for name, (says, of) in GAUGES.items()}
        events = CounterMetricFamily(
            "notifier_events",
            "counted since ever, by what happened: accepted, refused, an outcome",
            labels=["event", "shard"],
        )
        for name, redis in self._clients.items():
            try:
                now = read_now(redis)
                self._count_on(name, redis)
                used = {by: project_use(redis, by, limited) / limited.limit for by, limited in self._projects.items()}
            except RedisUnusableError:
                gauges["notifier_redis_up"].add_metric([name], 0)
                continue
            gauges["notifier_redis_up"].add_metric([name], 1)
            _of_one_redis(gauges, name, now)
            for by, ratio in used.items():
                gauges["notifier_project_used_ratio"].add_metric([by, name], ratio)
            for word, n in now.totals.items():
                events.add_metric([word, name], n)
        yield from gauges.values()
        yield events
        yield from self._of_minutes()

    def _count_on(self, name: str, redis: Any) -> None:
        newest = minute_now(redis)
        if name not in self._seen:  # it begins at 0: what was before is not its own
            self._seen[name] = newest, read_fields(redis, [newest]).get(newest, {})
            return
        last, before = self._seen[name]
        found = read_fields(redis, range(max(last, newest - KEPT_MINUTES), newest + 1))
        for minute, fields in found.items():
            old = before if minute == last else {}
            self._totals.add({field: n - old.get(field, 0) for field, n in fields.items()})
        if newest >= last:
            self._seen[name] = newest, found.get(newest, {})

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


def _of_one_redis(gauges: Mapping[str, GaugeMetricFamily], shard: str, now: Now) -> None:
    for name, lane in now.lanes.items():
        gauges["notifier_queued"].add_metric([name, shard], lane.queued)
        gauges["notifier_waiting"].add_metric([name, shard], lane.waiting)
        gauges["notifier_due_users"].add_metric([name, shard], lane.due_users)
        gauges["notifier_oldest_due_seconds"].add_metric([name, shard], lane.oldest_due_s)
    gauges["notifier_later"].add_metric([shard], now.later)
    gauges["notifier_in_flight"].add_metric([shard], now.in_flight)
    for route, state in {(held.route, held.state) for held in now.routes}:
        gauges["notifier_route_closed"].add_metric([route, state, shard], 1)
    gauges["notifier_workers"].add_metric([shard], len(now.workers))
    gauges["notifier_workers_healthy"].add_metric([shard], sum(worker.is_healthy() for worker in now.workers))
    gauges["notifier_redis_memory_bytes"].add_metric([shard], now.memory[0])
    gauges["notifier_redis_memory_max_bytes"].add_metric([shard], now.memory[1])


def _histogram(name: str, says: str, label: str, found: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, says, labels=[label])
    for value, histogram in found.items():
        total, buckets = 0, []
        for n in range(BUCKETS):
            total += histogram.counts[n]
            buckets.append(("+Inf" if n == BUCKETS - 1 else repr(bound_s(n)), total))
        family.add_metric([value], buckets, sum_value=histogram.sum_s)
    return family
