"""Quiet hours with a real worker: whose clock decides, what passes, and what is done of zones that Redis lost."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest

from notifier import InvalidNotificationError, Preferences
from notifier.operations.explain import Inspection
from notifier.rules.category import Category
from notifier.rules.policies import Policies
from notifier.rules.policy import Window
from notifier.rules.zones import VERSION, zone_at
from notifier.scripts.keys import user_key
from notifier.settings import load_settings, parse_settings
from notifier.store.connection import time_us
from notifier.units import moment
from tests.harness.at_work import AtWork, world_of
from tests.harness.support import ends, eventually, note, queue

NOW = datetime.now(UTC)
BEGAN, ENDS = NOW - timedelta(hours=2), (NOW + timedelta(hours=2)).replace(second=0, microsecond=0)
HERE, ELSEWHERE = "Etc/UTC", "Etc/GMT+8"
CATEGORIES = {
    "default": {"lane": "default"},
    "alarm": {"lane": "urgent", "quiet_hours": "ignore"},
    "security": {"lane": "urgent", "bypass": True},
    "dear": {"lane": "bulk", "cost": 2},
    "rare": {"lane": "bulk", "cost": 2, "windows": ["3/calendar-month"], "quiet_hours": "ignore"},
    "own": {"lane": "bulk", "quiet_hours": f"{BEGAN:%H:%M}-{ENDS:%H:%M}"},
}


# It is night in one zone and day in another.
RULES = {
    "zone": HERE,
    "user": {"quiet_hours": f"{BEGAN:%H:%M}-{ENDS:%H:%M}"},
    "users": {"owl": {"quiet_hours": "none"}},
    "categories": CATEGORIES,
}
world = world_of(AtWork, RULES)


def waits(world: AtWork, job_id: str) -> None:
    """It is held until the night ends, and RQ is told so."""

    def until_morning() -> bool:
        status = world.producer.status(job_id)
        assert status.state in {"queued", "waiting"}
        return status.expected_at == ENDS

    eventually(until_morning, f"the wait of {job_id} until {ENDS}")


def test_the_clock_of_the_notifications_zone_decides(world: AtWork) -> None:
    """By night it is held until the night's end, and delivered where it is day; nobody had told Redis of zones."""
    held = world.producer.send(note("ann"))
    same = world.producer.send(note("bea", zone=HERE))
    gone = world.producer.send(note("cal", zone=ELSEWHERE))
    ends(world.producer, gone, "delivered")
    waits(world, held)
    waits(world, same)


def test_what_may_pass_the_night(world: AtWork) -> None:
    """A category that ignores the user's quiet hours, one that bypasses, and a user who has none; else not."""
    for user, category in (("dan", "alarm"), ("eve", "security"), ("owl", "default")):
        ends(world.producer, world.producer.send(note(user, category=category)), "delivered")
    waits(world, world.producer.send(note("owl", category="own")))


def test_what_counts_as_two_by_the_clock(world: AtWork) -> None:
    """It is held by night as all others, and in a calendar window takes the room of two."""
    waits(world, world.producer.send(note("ivy", category="dear")))
    first, second = (world.producer.send(note("joe", category="rare")) for _ in range(2))
    ends(world.producer, first, "delivered")

    def until_next_month() -> bool:
        status = world.producer.status(second)
        return (status.state, status.held_by) == ("waiting", "rare 3/calendar-month until 00:00 Etc/UTC")

    eventually(until_next_month, "the second to wait for the next month")


def test_zones_that_redis_lost_are_told_again(world: AtWork) -> None:
    """Without the zones nothing is sent that may not be, and no line is stuck."""
    held = world.producer.send(note("fay"))
    waits(world, held)
    world.redis.delete("notifier:zones")
    gone, more = (world.producer.send(note(user, zone=zone)) for user, zone in (("gus", ELSEWHERE), ("hue", HERE)))
    ends(world.producer, gone, "delivered")
    waits(world, more)
    waits(world, held)
    assert world.redis.hlen("notifier:zones") == 2


def test_zones_by_older_data_are_replaced(world: AtWork) -> None:
    """What an older tzdata said of a zone is not believed: the worker says it anew, by its own."""
    old = json.loads(zone_at(ELSEWHERE, time.time_ns() // 1000).encode()) | {"v": "1999a", "o": [0]}
    world.redis.hset("notifier:zones", ELSEWHERE, json.dumps(old))
    ends(world.producer, world.producer.send(note("jon", zone=ELSEWHERE)), "delivered")
    assert json.loads(world.redis.hget("notifier:zones", ELSEWHERE) or b"{}")["v"] == VERSION


def test_a_zone_that_does_not_exist(world: AtWork) -> None:
    """The producer is told; a job of another program fails with the field, or follows the default where none checks."""
    with pytest.raises(InvalidNotificationError, match=r"zone: 'Europe/Berln' is not a time zone .* Europe/Berlin\?"):
        world.producer.send(note("hal", zone="Europe/Berln"))
    kwargs = {"user": "hal", "devices": [{"platform": "apns", "token": "ab" * 32}], "title": "Hello"}
    wrong = queue(world.redis).enqueue("notifier.deliver", kwargs=kwargs | {"zone": "Mars/Base"})
    ends(world.producer, wrong.id, "failed")
    status = world.producer.status(wrong.id)
    assert "zone: 'Mars/Base' is not a time zone" in (status.reason or "")
    unread = queue(world.redis).enqueue(
        "notifier.deliver", kwargs=kwargs, meta={"user": "hal", "category": "default", "zone": "Mars/Base"}
    )
    waits(world, unread.id)
    eventually(lambda: "unknown_zone" in world.worker.log, "the warning")


def test_a_zone_that_one_host_does_not_know(world: AtWork) -> None:
    """It was chosen on a host of newer zones: here the configured one is followed, said once, and all else holds."""
    hours = f"{BEGAN:%H:%M}-{NOW:%H:%M}"  # within the night, which they do not prolong
    world.redis.hset("notifier:preferences", "zoe", json.dumps({"quiet_hours": hours, "zone": "Mars/Base"}))
    waits(world, world.producer.send(note("zoe")))
    eventually(lambda: "'Mars/Base' is not a time zone" in world.worker.log and "zoe" in world.worker.log, "the line")
    chosen = world.producer.users.set("zoe", gap="1s")
    assert (chosen.zone, str((chosen.quiet_hours or ())[0]), chosen.gap_us) == ("Mars/Base", hours, 1_000_000)
    assert len(Preferences.decode(world.redis.hget("notifier:preferences", "zoe") or b"").as_dict()) == 3
    world.producer.users.clear("zoe")


def test_explain_says_until_when_and_why(world: AtWork) -> None:
    """What decides is named with the reading of the clock and its zone."""
    settings = load_settings(world.config, {})
    found = Inspection(world.redis, settings.policies(), "ida").explain("default")
    assert found.next_at == ENDS
    assert found.decided_by == f"user quiet until {ENDS:%H:%M} {HERE}"
    assert Inspection(world.redis, settings.policies(), "ida").explain("alarm").next_at is None


def test_explain_says_the_same_of_the_rule_and_of_the_next(world: AtWork) -> None:
    """Shortly before quiet hours too: what were let go then may be received within them, so it is not."""
    begin = datetime.now(UTC) + timedelta(minutes=5)
    hours = f"{begin:%H:%M}-{begin + timedelta(hours=2):%H:%M}"
    policies = parse_settings(f"worker: {{lease: 10m}}\nzone: {HERE}\nuser: {{quiet_hours: '{hours}'}}").policies()
    found = Inspection(world.redis, policies, "ida").explain("default")
    (of_hours,) = [use.free_at for use in found.uses if use.rule == f"quiet {hours}"]
    ends_at = (begin + timedelta(hours=2)).replace(second=0, microsecond=0)
    assert of_hours == found.next_at == ends_at
    # What the pace of all users lets go again within them waits for their end too.
    world.redis.zadd("notifier:overall:paced", {"1": time_us(world.redis)})
    paced = Category("paced", overall=Window(1, interval_us=3_600_000_000))
    policies = Policies(policies.everyone, categories={"paced": paced}, lead_us=60_000_000)
    found = Inspection(world.redis, policies, "ida").explain("paced")
    assert (found.next_at, found.decided_by) == (ends_at, f"user quiet until {ends_at:%H:%M} {HERE}")


def test_explain_says_how_much_of_a_month_is_used(world: AtWork) -> None:
    """Each calendar window stands once, and says when it has room for the category's cost; so do quiet hours, where
    they hold. A gap that is over decides nothing.
    """
    hours = f"{BEGAN:%H:%M}-{ENDS:%H:%M}"
    rules = f"zone: {HERE}\nuser: {{windows: [3/calendar-month], gap: 1ms, quiet_hours: '{hours}'}}\n"
    rules += "categories: {alarm: {lane: urgent, quiet_hours: ignore, cost: 2}, default: {lane: default}}"
    policies, now_us = parse_settings(rules).policies(), time_us(world.redis)
    world.redis.zadd(user_key("sent", "kim"), {"one": now_us - 1_000})
    found = Inspection(world.redis, policies, "kim").explain("alarm")
    month, gap = (next(use for use in found.uses if use.rule.startswith(word)) for word in ("3/", "gap"))
    assert ([use.rule for use in found.uses], month.used, month.free_at, gap.free_at) == (
        ["gap 1ms", "3/calendar-month"], 1, None, None,
    )  # fmt: skip
    assert (found.next_at, found.decided_by) == (None, None)
    ahead = moment(now_us) + timedelta(days=1)  # one in flight, by its lease
    world.redis.zadd(user_key("sent", "kim"), {"two": int(ahead.timestamp() * 1e6)})
    month = Inspection(world.redis, policies, "kim").explain("alarm").uses[1]
    next_month = (ahead.replace(day=1, hour=0, minute=0, second=0, microsecond=0) + timedelta(days=32)).replace(day=1)
    assert (month.used, month.limit, month.free_at) == (2, 3, next_month)
    held = Inspection(world.redis, policies, "kim").explain("default").uses
    assert [use.rule for use in held] == ["gap 1ms", "3/calendar-month", f"quiet {hours}"]
    assert held[1].free_at is None
