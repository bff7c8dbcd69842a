"""A user's choice: what is written can be read again, or nothing is written."""

from datetime import timedelta
from typing import Any

import pytest

from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.policy import Window
from notifier.rules.preferences import Preferences
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
