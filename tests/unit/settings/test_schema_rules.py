"""Windows and bursts as they stand in YAML: what each form means, and one clear line for what is wrong."""

from dataclasses import replace

import pytest

from notifier.errors import InvalidNotificationError, SettingsError
from notifier.rules.category import check_fits
from notifier.rules.policy import Burst, Policy, Window
from notifier.settings import parse_settings

MINUTE, DAY = 60_000_000, 86_400_000_000


def user(rules: str) -> Policy:
    return parse_settings(f"user: {{{rules}}}").policies().for_user("ann")


def test_a_large_limit_is_counted_in_buckets_unless_somebody_says_otherwise() -> None:
    """Up to 1,000 is exact, and up to 10,000 on request; a precision holds as it is written."""
    assert user("windows: [1000/day]").windows == (Window(1000, interval_us=DAY),)
    assert user("windows: [1001/day]").windows == (Window(1001, interval_us=DAY, precision_us=15 * MINUTE),)
    assert user("windows: [{limit: 2000, interval: day}]").windows == (
        Window(2000, interval_us=DAY, precision_us=15 * MINUTE),
    )
    assert user("windows: [{limit: 9000, interval: 1d, precision: exact}]").windows == (Window(9000, interval_us=DAY),)
    assert user("windows: [{limit: 5, interval: 1d, precision: 5m}]").windows == (
        Window(5, interval_us=DAY, precision_us=5 * MINUTE),
    )


def test_the_windows_of_a_policy_share_their_buckets() -> None:
    """As fine as the finest asks for, but never more than 1,000 for the longest; exact windows have no part in it."""
    assert user("windows: [2000/day, 9000/week]").precision_us == 15 * MINUTE
    assert user("windows: [2000/hour, 20000/week]").precision_us == 7 * DAY // 1000
    assert user("windows: [10/minute, 2000/day]").precision_us == 15 * MINUTE
    assert user("windows: [10/minute, 100/day]").precision_us == 0


def test_what_the_providers_admit_is_exact() -> None:
    """Limits of devices are counted one by one, as their windows are short."""
    limits = parse_settings("providers: {fcm: {client: console, limits: {device: [5000/h]}}}").policies().limits
    assert limits["fcm"].device == Policy((Window(5000, interval_us=60 * MINUTE),))


def test_a_burst_is_capacity_and_refill() -> None:
    """A refill of several in an interval comes one by one; `none` takes away what `user` gives."""
    assert user("burst: {capacity: 20, refill: 1/3m}").burst == Burst(20, every_us=3 * MINUTE)
    assert user("burst: {capacity: 5, refill: 4/minute}").burst == Burst(5, every_us=MINUTE // 4)
    text = (
        "user: {burst: {capacity: 5, refill: 1/m}}\ntiers: {free: {burst: none}, same: {}}\nusers: {a: free, b: same}"
    )
    policies = parse_settings(text).policies()
    assert policies.for_user("a").is_empty
    assert policies.for_user("b").burst == policies.for_user("c").burst == Burst(5, every_us=MINUTE)


WRONG = {
    "windows: [{limit: 2000, interval: 1d, precision: 2d}]": "precision: '2d' is outside",
    "windows: [{limit: 2000, interval: 1d, precision: 1s}]": "precision: '1s' makes over 1000 buckets",
    "windows: [{limit: 2000, interval: 1d, precision: 3}]": "precision: '3': a number without a unit",
    "windows: [{limit: 20000, interval: 1d, precision: exact}]": "exact is for limits up to 10000",
    "windows: [{limit: 0, interval: 1d}]": ".limit: must be at least 1, is 0",
    "windows: [{limit: 5, interval: 0s}]": "the interval '0s' is outside what is allowed",
    "windows: [{limit: 5, interval: 36500d}]": "the interval '36500d' is outside",
    "windows: [{limit: 5, interval: fortnight}]": "unknown unit 'fortnight'",
    "windows: [{limit: many, interval: 1d}]": ".limit: must be a whole number without a unit, is 'many'",
    "windows: [{limit: 5, interval: [1d]}]": ".interval: must be text such as 1d, is a list",
    "windows: [{limit: 5, interval: 1d, intervall: 1d}]": ".intervall: unknown key; did you mean interval?",
    "windows: [{limit: 5, interval: 1d, per: 1d}]": ".per: unknown key; known are limit, interval, precision",
    "windows: [{limit: 5}]": ".interval: is missing",
    "windows: [{limit: 5, interval: 1d, precision: }]": ".precision: must be text such as 1d, is empty",
    "windows: [7]": "must be a rate such as 10/minute or 5/10s, is a number",
    "burst: 5": "must be a mapping such as {capacity: 20, refill: 1/3m}, is a number",
    "burst: {capacity: 0, refill: 1/m}": ".capacity: must be at least 1, is 0",
    "burst: {capacity: 5}": ".refill: is missing",
    "burst: {capacity: 101, refill: 1/m}": ".capacity: must be at most 100, is 101",
    "burst: {capacity: 5, refill: 3m}": ".refill: '3m' is not a rate",
    "burst: {capacity: 5, refill: 5000/s}": "is more than one in each ms",
    "burst: {capacity: 100, refill: 1/52w}": "takes over 366d to refill",
}


@pytest.mark.parametrize("rules", WRONG)
def test_what_is_wrong_is_said_at_its_place(rules: str) -> None:
    """One line: the file, where, which key, what would be right."""
    with pytest.raises(SettingsError) as refused:
        user(rules)
    (line,) = str(refused.value).splitlines()
    place = "user.windows[0]" if rules.startswith("windows") else "user.burst"
    words = WRONG[rules]
    assert (f"{place}{words}" if words.startswith(".") else f"{place}: ") in line
    assert words in line


def test_a_cost_that_never_fits_is_said() -> None:
    """By the file's own check, at the key; and where a user has other rules, when one is enqueued."""
    with pytest.raises(SettingsError) as refused:
        parse_settings("user: {windows: [10/minute]}\ncategories: {big: {lane: bulk, windows: [3/day], cost: 5}}")
    assert "2:56: categories.big.cost: never fits into the rules of categories.big; give at most 3" in str(
        refused.value
    )
    with pytest.raises(SettingsError, match=r"never fits into the rules of tiers\.slow; give at most 4"):
        parse_settings("tiers: {slow: {windows: [4/minute]}}\ncategories: {big: {lane: bulk, cost: 5}}")
    with pytest.raises(SettingsError, match=r"never fits into the rules of users\.ann; give at most 3"):
        parse_settings("users: {ann: {burst: {capacity: 3, refill: 1/m}}}\ncategories: {big: {lane: bulk, cost: 5}}")
    big = parse_settings("categories: {big: {lane: bulk, cost: 5}}").policies().category("big")
    check_fits(Policy((Window(5, interval_us=DAY),)), big)
    with pytest.raises(InvalidNotificationError, match="a cost of 5 never fits into 4/1d"):
        check_fits(Policy((Window(4, interval_us=DAY),)), big)
    with pytest.raises(InvalidNotificationError, match="a cost of 5 never fits into burst 3 then 1/1m"):
        check_fits(Policy(burst=Burst(3, every_us=MINUTE)), big)
    check_fits(Policy((Window(4, interval_us=DAY),)), replace(big, bypass=True))
    by_the_clock = (
        "user: {windows: [5/calendar-week], quiet_hours: '22:00-07:00'}\ncategories: {big: {lane: bulk, cost: 5}}"
    )
    own = parse_settings(by_the_clock).policies()
    check_fits(own.for_user("ann"), own.category("big"))
    with pytest.raises(InvalidNotificationError, match="a cost of 6 never fits into 5/calendar-week"):
        check_fits(own.for_user("ann"), replace(own.category("big"), cost=6))
