"""A rule that cannot be meant is refused where it is written, and the error says what would be right."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.policy import Burst, Policy, Window

MINUTE = 60_000_000


def wrong(value: object) -> Any:
    """What a caller gives whose program is not checked for types."""
    return value


@pytest.mark.parametrize(
    ("rule", "error", "why"),
    [
        (lambda: Window(5, 60), TypeError, r"not 60: a bare number has no unit; write Window\(5, '1m'\)"),
        (lambda: Window(5, 60_000_000), TypeError, "has no unit"),
        (lambda: Window(5, 60.0), TypeError, "has no unit"),
        (lambda: Window(5), TypeError, r"give one interval, as text or as a timedelta: Window\(5, '1m'\)"),
        (lambda: Window(5, "1m", interval_us=MINUTE), TypeError, "give one interval"),
        (lambda: Window(5, interval_us=60), ValueError, "at least 1ms, is 60 µs"),
        (lambda: Window(5, timedelta(microseconds=999)), ValueError, "at least 1ms"),
        (lambda: Window(5, "0.5ms"), ValueError, "at least 1ms"),
        (lambda: Window(5, "60"), ValueError, "write 60ms or 60s"),
        (lambda: Window(5, interval_us=True), TypeError, "whole number"),
        (lambda: Window("5", "1m"), TypeError, "a limit is a whole number, not '5'"),
        (lambda: Window(True, "1m"), TypeError, "a limit is a whole number"),
        (lambda: Window(0, "1m"), ValueError, "from 1 to 1000000000000, is 0"),
        (lambda: Burst(20, 180), TypeError, r"write Burst\(20, '1m'\)"),
        (lambda: Burst(20, every_us=0), ValueError, "at least"),
        (lambda: Policy(windows=("5/minute",)), TypeError, r"holds Window, not '5/minute': write Window\(5, '1m'\)"),
        (lambda: Policy(windows="5/minute"), TypeError, "a tuple of Window, not str"),
        (lambda: Policy(windows=[Window(5, "1m")]), TypeError, "a tuple of Window, not list"),
        (lambda: Policy(gap_us="200ms"), TypeError, "gap_us is a whole number of microseconds"),
        (lambda: Policy(gap_us=-1), TypeError, "gap_us is a whole number of microseconds from 0, not -1"),
        (lambda: CalendarWindow(5, wrong("year")), ValueError, "one of day, week, month, not 'year'"),
        (lambda: CalendarWindow(wrong("5"), "day"), TypeError, "a limit is a whole number, not '5'"),
        (lambda: CalendarWindow(wrong(1.5), "day"), TypeError, "a limit is a whole number, not 1.5"),
        (lambda: CalendarWindow(0, "day"), ValueError, "from 1 to"),
        (lambda: Policy(burst=20), TypeError, r"write Burst\(20, '3m'\)"),
    ],
)
def test_what_cannot_be_meant_is_refused(rule: Callable[[], Any], error: type[Exception], why: str) -> None:
    """A number without a unit, a text in place of a rule, a limit of none."""
    with pytest.raises(error, match=why):
        rule()


def test_an_interval_has_three_forms() -> None:
    """Text, a timedelta, and microseconds by name."""
    assert Window(5, "1m") == Window(5, timedelta(minutes=1)) == Window(5, interval_us=MINUTE)
    assert Burst(5, "1m") == Burst(5, timedelta(minutes=1)) == Burst(5, every_us=MINUTE)
