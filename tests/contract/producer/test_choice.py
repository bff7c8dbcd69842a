"""`acquire` and what users chose: what it grants and refuses, held against the calendar of the standard library."""

from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from redis import Redis

from notifier.limiter import Hold, Permit
from notifier.producer.permits import Asked, acquire
from notifier.rules.category import Category
from notifier.rules.hours import Hours, parse_hours
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window
from notifier.rules.preferences import Preferences
from notifier.scripts.loader import run
from tests.property.amount import examples

BERLIN: Final = ZoneInfo("Europe/Berlin")
NOON: Final = parse_hours("12:00-13:00")
POLICIES: Final = Policies(
    Policy((Window(100, "1h"),), quiet=NOON),
    {"few": Policy((Window(1, "1h"),), quiet=parse_hours("03:00-04:00"))},
    categories={
        "chat": Category("chat"),
        "big": Category("big", cost=2),
        "alarm": Category("alarm", bypass=True),
        "calm": Category("calm", ignores_quiet=True),
    },
    zone="Europe/Berlin",
    users_may=["few"],
)
CHANGES: Final = [datetime(2027, 3, 27, 12, tzinfo=UTC), datetime(2027, 10, 30, 12, tzinfo=UTC)]
HOURS: Final = ["22:00-07:00", "01:30-02:30", "sat-sun 00:00-24:00", "mon 09:00-10:00, fri-mon 20:00-21:15"]


def us_of(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)


def at_of(us: int) -> datetime:
    return datetime.fromtimestamp(us // 1_000_000, UTC)


@dataclass
class Asking:
    """One who asks, by the clock of the test. chosen: what each user did."""

    redis: Redis
    now: datetime = CHANGES[0]
    chosen: dict[str, Preferences] = field(default_factory=dict)

    def choose(self, user: str, **given: Any) -> Preferences:
        self.chosen[user] = Preferences.of(given)
        return self.chosen[user]

    def acquire(self, user: str, category: str = "chat") -> Permit | Hold:
        asked = Asked.of(POLICIES, user, category, self.chosen.get(user, Preferences()), us_of(self.now))
        return run(self.redis, acquire(asked, str(us_of(self.now))))


@pytest.fixture
def asking(redis: Redis) -> Asking:
    return Asking(redis)


def test_a_mute_refuses_until_it_ends(asking: Asking) -> None:
    """Of its categories or of all, whether it holds or drops; what has bypass goes."""
    ends = asking.now + timedelta(hours=5)
    asking.choose("ann", mutes=[{"until": ends.isoformat(), "categories": ["chat"], "what": "drop"}])
    asking.choose("bob", mutes=[{"until": ends.isoformat()}])
    assert asking.acquire("ann") == Hold(5 * 3_600_000_000, "user muted")
    assert asking.acquire("bob", "default") == Hold(5 * 3_600_000_000, "user muted")
    assert isinstance(asking.acquire("ann", "default"), Permit)
    assert isinstance(asking.acquire("bob", "alarm"), Permit)
    asking.now = ends
    assert isinstance(asking.acquire("ann"), Permit)
    assert isinstance(asking.acquire("bob"), Permit)


def test_a_mute_without_end_decides_also_where_it_would_end_in_quiet_hours(asking: Asking) -> None:
    """New Year 2199 in UTC, which is one in the morning in Berlin: those hours hold nothing that would go before."""
    preferences = asking.choose("ann", mutes=[{}], quiet_hours="22:00-08:00")
    held = asking.acquire("ann")
    assert isinstance(held, Hold)
    assert (held.rule, us_of(asking.now) + held.time_left_us) == ("user muted", preferences.mutes[0].until_us)


def test_a_tier_windows_and_a_gap_hold(asking: Asking) -> None:
    """They are the user's rules then, and the hours of the chosen tier."""
    asking.choose("ann", tier="few")
    asking.choose("bob", windows=["2/1m"], gap="10s")
    asking.now = datetime(2027, 3, 26, 12, 30, tzinfo=UTC)  # 13:30 in Berlin
    assert all(isinstance(asking.acquire(user), Permit) for user in ("ann", "bob"))
    assert asking.acquire("ann") == Hold(3_600_000_000, "user 1/1h")
    assert asking.acquire("bob") == Hold(10_000_000, "user gap 10s")
    asking.now = datetime(2027, 3, 27, 2, 30, tzinfo=UTC)
    assert asking.acquire("ann") == Hold(1_800_000_000, "user quiet until 04:00 Europe/Berlin")


def test_the_configured_hours_hold_by_the_users_zone(asking: Asking) -> None:
    """By the zone that the user chose, else by that of the configuration; a category that ignores them goes."""
    asking.choose("bob", zone="Etc/UTC")
    asking.now = datetime(2027, 3, 26, 11, 30, tzinfo=UTC)  # 12:30 in Berlin
    assert asking.acquire("ann") == Hold(1_800_000_000, "user quiet until 13:00 Europe/Berlin")
    assert isinstance(asking.acquire("ann", "calm"), Permit)
    assert isinstance(asking.acquire("ann", "alarm"), Permit)
    assert isinstance(asking.acquire("bob"), Permit)
    asking.now += timedelta(hours=1)
    assert isinstance(asking.acquire("ann"), Permit)
    assert asking.acquire("bob") == Hold(1_800_000_000, "user quiet until 13:00 Etc/UTC")


def test_what_is_full_until_it_is_quiet_goes_afterwards(asking: Asking) -> None:
    """Law 3: the time left is as long as all that holds together, and names what lets go last."""
    asking.choose("ann", windows=["1/2h"], quiet_hours="23:00-07:00")
    asking.now = datetime(2027, 3, 25, 20, 30, tzinfo=UTC)  # 21:30 in Berlin
    assert isinstance(asking.acquire("ann"), Permit)
    assert asking.acquire("ann") == Hold(9 * 3_600_000_000 + 1_800_000_000, "user quiet until 07:00 Europe/Berlin")
    asking.choose("bob", windows=["1/12h"], quiet_hours="23:00-07:00")
    assert isinstance(asking.acquire("bob"), Permit)
    asking.now += timedelta(hours=2)
    assert asking.acquire("bob") == Hold(10 * 3_600_000_000, "user 1/12h")


def test_hours_that_end_while_one_asks_hold_until_it_is_asked_again(redis: Redis, asking: Asking) -> None:
    """Nothing was taken, so nothing is given."""
    asking.now = datetime(2027, 3, 26, 11, 59, tzinfo=UTC)  # 12:59 in Berlin
    asked = Asked.of(POLICIES, "ann", "chat", Preferences(), us_of(asking.now))
    asking.now += timedelta(minutes=2)
    assert run(redis, acquire(asked, str(us_of(asking.now)))) == Hold(1, "user quiet until 13:00 Europe/Berlin")
    assert isinstance(asking.acquire("ann"), Permit)


def test_a_day_that_ends_while_one_asks_lets_nothing_past(redis: Redis, asking: Asking) -> None:
    """Law 1: what is asked by the day before, late, is held until it is asked again."""
    asking.choose("ann", windows=["1/calendar-day"])
    asking.now = datetime(2027, 3, 25, 22, 59, tzinfo=UTC)  # 23:59 in Berlin
    asked = Asked.of(POLICIES, "ann", "chat", asking.chosen["ann"], us_of(asking.now))
    asking.now += timedelta(minutes=2)
    assert isinstance(asking.acquire("ann"), Permit)
    late = run(redis, acquire(asked, str(us_of(asking.now))))
    assert isinstance(late, Hold)
    assert late.time_left_us == 1
    assert asking.acquire("ann") == Hold(
        24 * 3_600_000_000 - 60_000_000, "user 1/calendar-day until 00:00 Europe/Berlin"
    )


moments = st.builds(
    lambda change, minutes: change + timedelta(minutes=minutes), st.sampled_from(CHANGES), st.integers(0, 3 * 24 * 60)
)
chosen = st.fixed_dictionaries(
    {},
    optional={
        "quiet_hours": st.sampled_from(HOURS),
        "windows": st.sampled_from([["2/calendar-day"], ["3/calendar-week", "50/1h"], ["1/calendar-month"]]),
        "zone": st.sampled_from(["Europe/Berlin", "Etc/UTC"]),
        "mutes": st.builds(lambda at: [{"until": at.isoformat()}], moments),
    },
)


def is_quiet(preferences: Preferences, at: datetime) -> bool:
    """Whether the user's own hours, or the configured ones, close this moment, read off the calendar."""
    wall = at.astimezone(ZoneInfo(preferences.zone) if preferences.zone else BERLIN)

    def within(hours: tuple[Hours, ...]) -> bool:
        minute = 1 << (wall.weekday() * 24 + wall.hour) * 60 + wall.minute
        return any(each.minutes & minute for each in hours)

    return within(NOON) or within(preferences.quiet_hours or ())


def days_of(preferences: Preferences, at: datetime) -> dict[str, Any]:
    """The day, week and month of a moment."""
    day: date = at.astimezone(ZoneInfo(preferences.zone) if preferences.zone else BERLIN).date()
    return {"day": day, "week": day.isocalendar()[:2], "month": (day.year, day.month)}


@settings(max_examples=examples(240))
@given(given=chosen, steps=st.lists(st.tuples(st.integers(1, 40 * 60), st.sampled_from(["chat", "big", "calm"]))))
def test_what_is_granted_keeps_to_all_rules_by_the_clock(
    redis: Redis, given: dict[str, Any], steps: list[tuple[int, str]]
) -> None:
    """No permit while it is quiet, muted or a calendar window is full, over changes of the clocks; a Hold that names
    the user's hours or mute ends at the first moment at which these let go.
    """
    assume(not POLICIES.is_void("ann", Preferences.of(given)))
    redis.flushdb()
    asking = Asking(redis)
    preferences = asking.choose("ann", **given)
    used = Counter[tuple[Any, ...]]()
    for minutes, category in steps:
        asking.now += timedelta(minutes=minutes)
        answer = asking.acquire("ann", category)
        mute = max((each.until for each in preferences.mutes), default=asking.now)
        if isinstance(answer, Permit):
            assert mute <= asking.now
            assert category == "calm" or not is_quiet(preferences, asking.now)
            for window in (each for each in preferences.windows or () if hasattr(each, "unit")):
                of = (window, days_of(preferences, asking.now)[window.unit])
                used[of] += answer.cost
                assert used[of] <= max(window.limit, answer.cost)
        elif answer.rule == "user muted":
            assert asking.now + answer.time_left == mute
        elif answer.rule.startswith("user quiet"):
            opens = asking.now + answer.time_left
            assert not is_quiet(preferences, opens)
            assert is_quiet(preferences, opens - timedelta(minutes=1))
