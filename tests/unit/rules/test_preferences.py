"""A user's choice: what is written can be read again, or nothing is written."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.policy import Window
from notifier.rules.preferences import FOREVER, Mute, Preferences
from notifier.scripts.rule_table import decoded
from notifier.units import UNITS


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("windows", [CalendarWindow(2000, "day")]),
        ("windows", [Window(1, interval_us=400 * UNITS["d"])]),
        ("gap", timedelta(days=400)),
        ("gap", timedelta(seconds=-1)),
    ],
)
def test_what_could_not_be_read_again_is_refused(name: str, value: Any) -> None:
    """Else it would void the user's other choices, mutes too."""
    with pytest.raises(ValueError, match=rf"^{name}"):
        Preferences.of({name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("windows", [CalendarWindow(20, "day"), Window(1, timedelta(hours=1)), "2/week"]),
        ("gap", timedelta(seconds=1.5)),
        ("gap", "0s"),
    ],
)
def test_what_is_taken_is_read_as_it_was_written(name: str, value: Any) -> None:
    """As objects, or as text."""
    chosen = Preferences.of({name: value})
    assert decoded(chosen.encode()) == chosen


@pytest.mark.parametrize("text", ["[]", "5", "null", '"x"', "{", '{"zone": 5}', '{"odd": 1}', '{"mutes": [5]}', "\xff"])
def test_what_others_wrote_is_no_choice(text: str) -> None:
    """It cannot be read, and the user is one who has chosen nothing."""
    with pytest.raises(ValueError):  # noqa: PT011 - whatever it says
        Preferences.decode(text)
    assert decoded(text) == Preferences()


def test_a_mute_holds_until_its_end_or_for_ever() -> None:
    """Those of its categories alone, if it names some."""
    at = datetime(2026, 1, 1, tzinfo=UTC)
    us = round(at.timestamp() * 1e6)
    assert [Mute(at).holds("chat", now_us) for now_us in (us - 1, us)] == [True, False]
    assert Mute().holds("chat", round(FOREVER.timestamp() * 1e6) + 1)
    assert [Mute(categories=("news",)).holds(name, us) for name in ("chat", "news")] == [False, True]
