"""Laws 1, 3 and 9 where they are about time: what makes it short, in counts. `make bench` has the milliseconds."""

from redis import Redis

from notifier import Notifier
from notifier.queue import calls
from notifier.queue.calls import Pulled
from notifier.rules.category import LANES
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.settings import parse_settings
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.fleet import notification
from tests.harness.scenarios import acquire_together, bystanders, drain, wake_ups

DUE, AT_ONCE = 5_000, 50
SETTINGS = parse_settings(
    "categories: {urgent: {lane: urgent}, bulk: {lane: bulk}}\nproviders: {apns: {client: console}}\n"
)
RULES = RuleTable(SETTINGS.policies())


def test_sixteen_processes_share_one_users_limit(redis: Redis, redis_server: EmbeddedRedis) -> None:
    """Laws 1 and 5: 16 processes at 10 per 1 s with a gap of 50 ms: none over."""
    found = acquire_together(redis, redis_server.url, processes=16, seconds=3)

    assert found.most <= 10
    assert found.smallest_gap_us >= 50_000


def test_a_backlog_drains_in_order_at_one_dispatch_each() -> None:
    """Laws 3 and 4: 80 of one user at 10 per 1 s: one dispatch each, in order, and no herd that is refused."""
    found = drain(80)

    assert found.order == list(range(80))
    assert found.broken == []
    assert found.dispatches <= 1.05


def test_nobody_looks_at_anothers_backlog_for_a_bystander() -> None:
    """Law 9: behind 3,000 blocked of somebody else, serving others costs no look at what is blocked."""
    found = bystanders(50, 3_000)

    assert len(found.late_us) == 50
    # The backlog goes on meanwhile, at most one look in vain for each second of it and each of four workers.
    assert found.in_vain <= 4 * found.seconds + 15


def test_a_wake_up_opens_once_and_never_early() -> None:
    """Law 3: of four idle workers one looks when a wake-up opens, not before, and finds what may go."""
    found = wake_ups(20, waves=2)

    assert len(found.lateness_us) == 40
    assert found.broken == []
    assert min(found.lateness_us) >= 0
    assert found.dispatches <= 1.05


def pull(redis: Redis) -> Pulled:
    """The next look of a worker that serves all lanes."""
    worker = calls.Worker(name="w", lanes=LANES, lease_us=60_000_000)
    return run(redis, calls.pull(worker, calls.Room(AT_ONCE), RULES))


def test_an_urgent_one_passes_thousands_that_are_due(redis: Redis) -> None:
    """Law 9: with 5,000 due in the lowest lane the next look takes what is urgent; in a flood these keep a share."""
    notifier = Notifier(redis, SETTINGS)
    notifier.send_many(notification(f"bulk{n}", n, "bulk") for n in range(DUE))
    pull(redis)
    notifier.send(notification("urgent", DUE, "urgent"))
    assert "urgent" in {leased.user for leased in pull(redis).leased}

    notifier.send_many(notification(f"flood{n}", DUE + n, "urgent") for n in range(1_000))
    looks = [[leased.user for leased in pull(redis).leased] for _ in range(15)]
    shares = [sum(user.startswith("bulk") for user in look) / len(look) for look in looks]
    assert all(len(look) == AT_ONCE for look in looks)
    assert all(0.05 <= share <= 0.5 for share in shares), "a tenth is kept for them"
