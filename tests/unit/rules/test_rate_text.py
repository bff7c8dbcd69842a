"""Rates in one line of text: what is read, and what is said of what cannot be."""

import pytest

from notifier.rules.rate_text import parse_rates


@pytest.mark.parametrize(
    "same",
    [
        ("5/minute", "5/m", "5/min", "5 per minute", "5/60s", "5/1 minute"),
        ("10/2 minutes", "10/2m", "10 per 2 min", "10 per 2 mins", "10/120s"),
        ("10/1.5h", "10/90m", "10/1.5 hr", "10 per 1.5 hours"),
        ("3/1hour", "3/hr", "3/3600sec"),
        ("10/week", "10/7d"),
        ("10/month", "10/calendar-month", "10 per month", "10/1month", "10/1 month"),
        ("burst 20 then 1/s", "burst 20 then 1/second", "burst 20 then 1/1000ms"),
        ("burst 20 then 1/minute", "burst 20 then 1/min", "burst 20 then 1/1m"),
        ("5/minute; 100/day; gap 200ms", "5/minute, 100/day, gap 0.2s"),
    ],
)
def test_forms_of_the_same(same: tuple[str, ...]) -> None:
    """All that the docs name are read, and mean the same."""
    assert len({parse_rates(text) for text in same}) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("5/minute 100/day", "'5/minute 100/day' is more than one rate; write a semicolon between two"),
        ("10/year", "unknown unit 'year'; use ms, s, .* day, week, month, calendar-day, calendar-week"),
        ("0/minute", "'0/minute': the limit must be at least 1$"),
        ("; ;", "holds no rate; write for example '5/minute"),
        ("gap 1s; gap 2s", "one gap and one burst at most"),
        ("burst 20", "is not a burst; write 'burst 20 then 1/3m'"),
        ("burst 20 then 1/month", "'1/month': unknown unit 'month'; use ms, s"),
        ("burst 1000000000 then 1/1d", "takes over 10,000 years to refill"),
    ],
)
def test_what_cannot_be_read(text: str, says: str) -> None:
    """The error shows the text and says what would be right."""
    with pytest.raises(ValueError, match=says):
        parse_rates(text)
