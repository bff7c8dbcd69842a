import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifier.rules.kinds.window import parse_window
from notifier.units import LONGEST_US, UNITS, format_duration, parse_duration

DAY = UNITS["d"]


@pytest.mark.parametrize(
    ("text", "us"),
    [
        ("1500ms", 1_500_000),
        ("1.5s", 1_500_000),
        ("10m", 600_000_000),
        ("1h", 3_600_000_000),
        ("2d", 2 * DAY),
        ("1w", 7 * DAY),
        ("0s", 0),
        (" 5 s ", 5_000_000),
        ("0.0000001s", 1),
        ("1.0001ms", 1_001),
        ("366d", LONGEST_US),
    ],
)
def test_a_duration_is_microseconds_rounded_up(text: str, us: int) -> None:
    """A duration is read exactly, and what is finer than a microsecond is rounded up, never down."""
    assert parse_duration(text) == us


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("5", "'5': a number without a unit; write 5ms or 5s, or use ms, s, m, h, d or w"),
        ("5 fortnights", "unknown unit 'fortnights'; use ms, s, m, h, d or w"),
        ("-5s", "'-5s': a duration cannot be negative; the least is 0s"),
        ("", "is not a duration; write a number and a unit"),
        ("s", "is not a duration"),
        ("1e3s", "is not a duration"),
        ("1h30m", "is not a duration"),
        ("٣s", "is not a duration"),
        ("nan", "is not a duration"),
        ("1.s", "is not a duration"),
        pytest.param("9" * 5_000 + "s", "is not a duration", id="5000 digits"),
        pytest.param("9" + "s" * 5_000, "unknown unit 'ssssssss", id="5000 letters"),
        ("367d", "'367d' is outside what is allowed; give from 0s to 366d"),
        ("5S", "unknown unit 'S'"),
        ("5s\n5s", "is not a duration"),
    ],
)
def test_a_wrong_duration_is_refused_with_what_would_be_right(text: str, says: str) -> None:
    """What is not a duration is a ValueError of one short line that says what would be."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is looked at
        parse_duration(text)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_duration_keeps_to_its_bounds() -> None:
    """A caller's least and most are held, and both ends are allowed."""
    assert parse_duration("1s", least_us=1_000_000, max_us=1_000_000) == 1_000_000
    with pytest.raises(ValueError, match="give from 1s to 2s"):
        parse_duration("999ms", least_us=1_000_000, max_us=2_000_000)
    with pytest.raises(ValueError, match="give from 1s to 2s"):
        parse_duration("2001ms", least_us=1_000_000, max_us=2_000_000)


@given(st.integers(0, LONGEST_US))
def test_every_duration_survives_writing_and_reading(us: int) -> None:
    """parse_duration(format_duration(us)) == us for every duration that may be configured."""
    assert parse_duration(format_duration(us)) == us


@given(st.integers(0, 10**6), st.sampled_from(sorted(UNITS)))
def test_writing_is_short_and_does_not_lose_the_unit(number: int, unit: str) -> None:
    """A whole number of a unit is written without a fraction."""
    assert "." not in format_duration(number * UNITS[unit])


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0s"),
        (1, "0.001ms"),
        (1_500_000, "1500ms"),
        (90_000_000, "90s"),
        (7 * DAY, "7d"),
        (3_600_000_000, "1h"),
    ],
)
def test_durations_are_written_as_people_write_them(us: int, text: str) -> None:
    """A duration is written in the largest unit that keeps it whole."""
    assert format_duration(us) == text


def test_a_negative_duration_cannot_be_written() -> None:
    """Time left is never negative; who asks for it has a mistake."""
    with pytest.raises(ValueError, match="cannot be negative"):
        format_duration(-1)


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever stands in a file, the only error is a ValueError of one line."""
    for parse in (parse_duration, parse_window):
        try:
            parse(text)
        except ValueError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017 - most texts are refused
