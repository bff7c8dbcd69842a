"""What Redis keeps: for a user with ten recent sends, for a notification that waits, and for one that was delivered."""

from __future__ import annotations

from redis import Redis

from benchmarks.harness import Figure, at_most, own_redis
from benchmarks.null_worker import RATES
from benchmarks.workload import notifications
from notifier import Device, Notification, Notifier
from notifier.rules.kinds.window import Window
from notifier.rules.policy import Policy
from notifier.settings import parse_settings
from tests.harness.asking import InRedis
from tests.harness.fleet import notification, start_fleet
from tests.harness.processes import await_that, child, total

PERMITS_SO_FAR = 10**9  # they are numbers, and take the more room the larger they are
TEN = Policy((Window(10, interval_us=60_000_000),))


def used(redis: Redis) -> int:
    """Bytes that Redis's data take."""
    return int(redis.info("memory")["used_memory_dataset"])


def measure(*, quick: bool) -> list[Figure]:
    """Bytes, each over many users or notifications."""
    users, waiting = (200, 1_000) if quick else (2_000, 10_000)
    with own_redis() as (_, redis):
        limiter = InRedis(redis)
        limiter.peek("warm", TEN)
        for user in range(users):
            for _ in range(10):
                limiter.acquire(f"u{user}", TEN)
        key = "notifier:sent:{u1}"
        ten_sends = int(redis.memory_usage(key) or 0)

        redis.flushall()
        notifier = Notifier(redis, parse_settings(RATES))
        empty = used(redis)
        notifier.send_many(notifications(waiting))
        queued = (used(redis) - empty) / waiting
    idle, record, delivered = _after(users)
    return [
        Figure("ten recent sends of a user", ten_sends, "bytes", at_most(400), "a plain Lua zset: 272 to 296"),
        Figure("an idle user with ten recent sends, all keys but the history", idle, "bytes", at_most(400)),
        Figure("a queued notification, body of 200 bytes", queued, "bytes", None, "a job of RQ's: 700"),
        Figure("a waiting notification, body of 200 bytes", _in_backlog(waiting), "bytes", at_most(1_600)),
        Figure("the same, as docs/how-to/deploy.md sets Redis", _in_backlog(waiting, 1024), "bytes", at_most(1_200)),
        Figure("a delivered notification", delivered, "bytes", at_most(150), "for keep_delivered"),
        Figure("a delivered notification, in the history", record, "bytes", None, "for history.keep"),
    ]


def _in_backlog(waiting: int, compact_bytes: int | None = None) -> float:
    """compact_bytes: the longest value with which Redis keeps a hash in its compact form, else as it is shipped."""
    rates = {"user": {"windows": ["1/day"]}}
    with start_fleet(rates, workers=0) as fleet, fleet.notifier() as notifier:
        if compact_bytes is not None:
            fleet.redis.config_set("hash-max-ziplist-value", compact_bytes)
        empty = used(fleet.redis)
        users = max(1, waiting // 10)
        notifier.send_many(notification(f"u{n % users}", n, body="b" * 200) for n in range(waiting + users))
        fleet.start_worker()
        fleet.await_ended(users)
        await_that(lambda: not fleet.redis.exists("rq:queue:default", "notifier:leases"), "all to wait in backlogs")
        return (used(fleet.redis) - empty) / waiting


def _after(users: int) -> tuple[float, float, float]:
    """Bytes of a user to whom ten were sent, without the history; of each there; and of each as delivered."""
    count = 10 * users
    with own_redis() as (server, redis):
        redis.set("notifier:seq", PERMITS_SO_FAR)
        notifier, device = Notifier(redis, parse_settings(RATES)), Device("fcm", "x" * 40)
        notifier.send_many(Notification(f"u{n % users}", [device], title="hi", category="bulk") for n in range(count))
        with child(["-m", "benchmarks.null_worker", "push", server.url]):
            await_that(lambda: total(redis, "delivered") == count, "all to be delivered")
        size = {
            key: int(redis.memory_usage(key, samples=0) or 0)
            for key in redis.scan_iter("notifier:*{u1}*", count=10_000)
        }
        history = sum(size.pop(key) for key in list(size) if key.startswith(b"notifier:history:"))
        delivered = int(redis.memory_usage("notifier:delivered", samples=0) or 0) / count
        return sum(size.values()), history / 10, delivered
