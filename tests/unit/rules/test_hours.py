"""Quiet hours and send hours as values: their forms, what they close, and what is refused."""

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifier.errors import SettingsError
from notifier.rules.hours import (
    DAY_US,
    EVERY_DAY,
    MINUTE_US,
    WEEK_US,
    Closed,
    Hours,
    closed_minutes,
    closed_times,
    longest_open_us,
    parse_hours,
    text_of,
)
from notifier.rules.policy import Policy
from notifier.rules.preferences import Preferences
from notifier.settings import parse_settings

H = 60 * MINUTE_US
WRITE = "write from when until when, such as 21:00-08:00"
NEVER = ": nothing would ever be sent; leave a part of the week"
WRITE_A_DAY = "write one of mon, tue, wed, thu, fri, sat, sun, or two, such as mon-fri"
OFFICE = {"mon-fri": "09:00-18:00", "sat": "10:00-14:00"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("21:00-08:00", "21:00-08:00"),
        (" 21:00 - 08:00 ", "21:00-08:00"),
        (["12:00-13:00", "21:00-24:00"], "12:00-13:00, 21:00-24:00"),
        (OFFICE, "mon-fri 09:00-18:00, sat 10:00-14:00"),
        ({"fri - sun": ["20:00-22:00", "23:00-01:00"]}, "fri-sun 20:00-22:00, fri-sun 23:00-01:00"),
        ("mon-sun 01:00-02:00, sat-mon 03:00-04:00", "01:00-02:00, sat-mon 03:00-04:00"),
        ("tue-mon 01:00-02:00", "01:00-02:00"),
        ((Hours(0, H, (2,)),), "wed 00:00-01:00"),
    ],
)
def test_each_form_is_read_and_shown_in_one(value: Any, text: str) -> None:
    """Text, a list, and text by day mean the same; what is shown can be given again."""
    assert text_of(parse_hours(value)) == text
    assert text_of(parse_hours(text)) == text


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("8-9", f"'8-9' are no quiet hours; {WRITE} or sat-sun 21:00-08:00"),
        ({"sat": "8-9"}, f"'8-9' are no quiet hours; {WRITE}"),
        ({"sat": "sun 08:00-09:00"}, f"'sun 08:00-09:00' are no quiet hours; {WRITE}"),
        ({"Sat": "08:00-09:00"}, f"'Sat' is no day; {WRITE_A_DAY}"),
        ({6: "08:00-09:00"}, f"'6' is no day; {WRITE_A_DAY}"),
        ("08:00-08:00", "'08:00-08:00': begins when it ends; a whole day is 00:00-24:00"),
        ("24:00-08:00", f"'24:00-08:00' are no quiet hours; {WRITE} or sat-sun 21:00-08:00"),
        ("00:00-24:00", f"'00:00-24:00'{NEVER}"),
        ("08:00-20:00, 20:00-08:00", f"'08:00-20:00, 20:00-08:00'{NEVER}"),
        ([], 'are none; give at least one, such as "21:00-08:00"'),
        (["08:00-09:00"] * 29, "are 29; at most 28 are allowed"),
        (5, 'must be text such as "21:00-08:00", a list of it, or text by day'),
        ({"mon": {"tue": "08:00-09:00"}}, 'must be text such as "21:00-08:00", a list of it, or text by day'),
        ([["08:00-09:00"]], "a list of hours contains text alone"),
    ],
)  # fmt: skip
def test_what_is_no_hours_is_refused(value: Any, why: str) -> None:
    """With what would be right."""
    with pytest.raises(ValueError, match=f"^{re.escape(why)}$"):
        parse_hours(value)


def minutes_of(quiet: Any, send: Any) -> int:
    return closed_minutes(parse_hours(quiet) if quiet else (), parse_hours(send, "send hours") if send else ())


def closed(quiet: Any = (), send: Any = ()) -> tuple[Closed, ...]:
    return closed_times(minutes_of(quiet, send))


def test_what_is_closed_is_one_list() -> None:
    """Hours that are alike on all days are of a day, others of a week, each once, over its end; nothing is nothing."""
    assert closed() == ()
    assert closed("21:00-08:00") == (Closed(21 * H, 8 * H),)
    assert closed("", "08:00-21:00") == (Closed(21 * H, 8 * H),)
    assert closed(["22:00-24:00", "00:00-07:00", "06:00-08:00"]) == (Closed(22 * H, 8 * H),)
    assert closed("", "00:00-24:00") == ()
    assert closed("12:00-13:00, 18:00-24:00") == (Closed(12 * H, 13 * H), Closed(18 * H, 0))
    assert closed("00:00-06:00, 12:00-13:00") == (Closed(0, 6 * H), Closed(12 * H, 13 * H))
    assert closed("sun 22:00-02:00") == (Closed(6 * DAY_US + 22 * H, 2 * H, WEEK_US),)
    assert closed("", OFFICE) == (
        *(Closed(day * DAY_US + 18 * H, (day + 1) * DAY_US + 9 * H, WEEK_US) for day in range(4)),
        Closed(4 * DAY_US + 18 * H, 5 * DAY_US + 10 * H, WEEK_US),
        Closed(5 * DAY_US + 14 * H, 9 * H, WEEK_US),
    )
    # Both hold: the lunch is left out of what the send hours contain.
    assert closed("mon 12:00-13:00", "mon 10:00-18:00") == (
        Closed(12 * H, 13 * H, WEEK_US),
        Closed(18 * H, 10 * H, WEEK_US),
    )


days = st.sampled_from([EVERY_DAY, (0,), (5, 6), (6, 0, 1), (0, 1, 2, 3, 4)])
minutes = st.integers(0, 1439).map(lambda n: n * MINUTE_US)
hours = st.builds(Hours, minutes, minutes | st.just(DAY_US), days).filter(lambda h: h.from_us != h.to_us)


@given(st.lists(hours, max_size=3).map(tuple), st.lists(hours, max_size=2).map(tuple), st.data())
def test_a_minute_is_closed_as_the_words_say(
    quiet: tuple[Hours, ...], send: tuple[Hours, ...], data: st.DataObject
) -> None:
    """In any minute of a week: quiet in one of the quiet hours, or outside of all send hours, where there are any."""

    def contains(each: Hours, at: int) -> bool:
        begins = [day * DAY_US + each.from_us for day in each.days]
        lasts = each.to_us - each.from_us + (0 if each.from_us < each.to_us else DAY_US)
        return any(begin <= moment < begin + lasts for begin in begins for moment in (at, at + WEEK_US))

    at = data.draw(st.integers(0, 7 * 1440 - 1)) * MINUTE_US
    bits = closed_minutes(quiet, send)
    says = any(contains(each, at) for each in quiet) or (bool(send) and not any(contains(each, at) for each in send))
    assert bits >> at // MINUTE_US & 1 == says
    times = closed_times(bits) if longest_open_us(bits) else (Closed(0, 0),)
    inside = [(at - c.from_us) % c.every_us < (c.to_us - c.from_us) % c.every_us for c in times]
    assert sum(inside) == says or not longest_open_us(bits)


@pytest.mark.parametrize(
    ("quiet", "send", "longest_us"),
    [
        ((), (), WEEK_US),
        ("21:00-08:00", (), 13 * H),
        ("mon 00:00-12:00", (), WEEK_US - 12 * H),
        ((), OFFICE, 9 * H),
        ("09:00-12:00", OFFICE, 6 * H),
        ((), "sun 23:00-24:00, mon 00:00-01:30", H * 5 // 2),
        ("08:00-20:00", "09:00-10:00", 0),
    ],
)
def test_the_longest_time_that_is_open(quiet: Any, send: Any, longest_us: int) -> None:
    """In a row, over the end of the week too."""
    assert longest_open_us(minutes_of(quiet, send)) == longest_us


def test_a_policy_without_an_open_minute_is_refused() -> None:
    """Nothing would ever go, and nobody would be told."""
    with pytest.raises(ValueError, match="no minute of a week"):
        Policy(quiet=parse_hours("08:00-20:00"), send=parse_hours("09:00-10:00"))


def test_preferences_keep_their_hours_as_text() -> None:
    """What stands in Redis is read back as it was; a mapping by day too."""
    chosen = Preferences.of({"quiet_hours": OFFICE})
    assert chosen.as_dict() == {"quiet_hours": "mon-fri 09:00-18:00, sat 10:00-14:00"}
    assert Preferences.decode(chosen.encode()) == chosen


RULES = """
user: {send_hours: {mon-fri: "09:00-18:00", sat: "10:00-14:00"}, quiet_hours: "12:00-13:00"}
tiers: {late: {send_hours: "18:00-22:00"}, always: {send_hours: none, quiet_hours: none}}
users: {a: late, b: always, c: {quiet_hours: none}}
categories:
  default: {lane: default}
  alarm: {lane: urgent, quiet_hours: ignore}
  shop: {lane: bulk, send_hours: "10:00-20:00"}
"""


def test_send_hours_are_resolved_like_other_rules() -> None:
    """Each of the two is the tier's or the user's own, else everyone's; a category's hold beside them."""
    policies = parse_settings(RULES).policies()
    office, noon = parse_hours(OFFICE, "send hours"), parse_hours("12:00-13:00")
    assert policies.everyone == Policy(quiet=noon, send=office)
    assert policies.for_user("a") == Policy(quiet=noon, send=parse_hours("18:00-22:00"))
    assert policies.for_user("b").is_empty
    assert policies.for_user("c") == Policy(send=office)
    assert policies.category("shop").policy == Policy(send=parse_hours("10:00-20:00"))
    assert policies.category("alarm").ignores_quiet
    assert str(policies.everyone) == "quiet 12:00-13:00, send mon-fri 09:00-18:00, sat 10:00-14:00"
    mine = Preferences.of({"quiet_hours": "13:00-14:00"})
    assert policies.chosen("42", mine).policy.quiet == (*noon, *parse_hours("13:00-14:00"))
    void = Preferences.of({"quiet_hours": "08:00-19:00"})  # they leave no time of the office's hours
    assert policies.chosen("42", void).policy.quiet == noon


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            'user: {send_hours: {mon: "09:00-12:00"}, quiet_hours: "08:00-13:00"}',
            "1:55: user.quiet_hours: 08:00-13:00 and send_hours mon 09:00-12:00 leaves no time to send",
        ),
        (
            'user: {quiet_hours: "08:00-13:00"}\ntiers: {t: {send_hours: "sat 09:00-12:00"}}',
            "2:25: tiers.t.send_hours: 08:00-13:00 and send_hours sat 09:00-12:00 leaves no time to send",
        ),
        (
            'user: {send_hours: "mon-fri 09:00-18:00"}\ncategories: {c: {lane: bulk, send_hours: "sat 10:00-12:00"}}',
            "1:20: user.send_hours: send_hours mon-fri 09:00-18:00, beside the hours of categories.c, leaves no",
        ),
        (
            'users: {a: {send_hours: "mon 09:00-18:00"}}\ncategories: {c: {lane: bulk, quiet_hours: "09:00-18:00"}}',
            "1:25: users.a.send_hours: send_hours mon 09:00-18:00, beside the hours of categories.c, leaves no time",
        ),
        (
            'categories: {c: {lane: bulk, quiet_hours: "09:00-18:00", send_hours: "10:00-17:00"}}',
            "1:43: categories.c.quiet_hours: 09:00-18:00 and send_hours 10:00-17:00 leaves no time to send; leave more",
        ),
        ('user: {send_hours: {mon: "9-12"}}', "are no send hours; write from when until when, such as 09:00-18:00"),
        ('user: {send_hours: {some: "09:00-12:00"}}', "1:20: user.send_hours: 'some' is no day; write one of mon, tue"),
    ],
)  # fmt: skip
def test_a_week_without_time_is_refused(text: str, says: str) -> None:
    """With the line and the key, and both hours that leave none."""
    with pytest.raises(SettingsError) as caught:
        parse_settings(text)
    assert says in str(caught.value)


def test_hours_that_never_hold_together_are_no_mistake() -> None:
    """A category that ignores the users' hours may have its own outside of them; one that bypasses has none."""
    policies = parse_settings("""
user: {send_hours: "mon-fri 09:00-18:00"}
categories:
  weekend: {lane: bulk, quiet_hours: ignore, send_hours: "sat 10:00-12:00"}
  alarm: {lane: urgent, bypass: true, send_hours: "sat 10:00-12:00"}
""").policies()
    assert not policies.is_void("ann", Preferences.of({"quiet_hours": "sat 09:00-13:00"}))
