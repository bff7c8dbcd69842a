import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifier.rules.kinds.kind import Receipt
from notifier.rules.kinds.window import Window, parse_window
from notifier.units import LONGEST_US, UNITS

DAY = UNITS["d"]


def test_a_window_is_half_open() -> None:
    """What is a whole interval old has left it; a cost counts as many times, and later sends excuse no earlier ones."""
    window = Window(3, interval_us=1_000)
    assert list(window.broken([Receipt(0, 0, 3), Receipt(1_000, 1_000)])) == []
    assert list(window.broken([Receipt(0, 0, 3), Receipt(999, 2_000)])) == [f"4 within {window}"]
    assert list(window.broken([Receipt(0, 0, 4), Receipt(5_000, 5_000)])) == [f"4 within {window}"]


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("10/minute", Window(10, interval_us=UNITS["m"])),
        ("5/10s", Window(5, interval_us=10 * UNITS["s"])),
        ("200/day", Window(200, interval_us=DAY)),
        ("3/week", Window(3, interval_us=7 * DAY)),
        ("1/2h", Window(1, interval_us=2 * UNITS["h"])),
        ("1/s", Window(1, interval_us=UNITS["s"])),
        (" 7 / 1.5s ", Window(7, interval_us=1_500_000)),
        ("1/1ms", Window(1, interval_us=1_000)),
        ("1000000/366d", Window(1_000_000, interval_us=LONGEST_US)),
    ],
)
def test_a_rate_is_a_limit_and_an_interval(text: str, window: Window) -> None:
    """Both ways of writing an interval, a word and a duration, are read."""
    assert parse_window(text) == window


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "10/fortnight",
            "'10/fortnight': unknown unit 'fortnight'; use ms, s, m, h, d, w or second, minute, hour, day, week",
        ),
        ("0/day", "'0/day': the limit must be at least 1"),
        ("-3/day", "a limit cannot be negative; it must be at least 1"),
        ("10", "is not a rate; write a limit and an interval, such as 10/minute or 5/10s"),
        ("10/", "is not a rate"),
        ("ten/day", "is not a rate"),
        ("1.5/day", "is not a rate"),
        ("10/5", "the interval '5': a number without a unit; write 5ms or 5s"),
        ("10/0s", "the interval '0s' is outside what is allowed; give from 1ms to 366d"),
        ("10/0.5ms", "from 1ms to 366d"),
        ("10/53w", "from 1ms to 366d"),
        ("10/-1s", "unknown unit"),
        ("1000000000001/day", "the limit must be at most 1000000000000"),
        ("10/minute/day", "unknown unit"),
        ("", "is not a rate"),
    ],
)
def test_a_wrong_rate_is_refused_with_what_would_be_right(text: str, says: str) -> None:
    """What is not a rate is a ValueError of one line that says what would be."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is looked at
        parse_window(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.integers(1, 1_000_000), st.integers(1_000, LONGEST_US))
def test_every_window_survives_writing_and_reading(limit: int, interval_us: int) -> None:
    """parse_window(str(window)) == window for every window that may be configured."""
    window = Window(limit, interval_us=interval_us)
    assert parse_window(str(window)) == window
