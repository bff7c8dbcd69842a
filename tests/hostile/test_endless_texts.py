"""Texts that others give, and that a careless pattern would look at for ever: each is judged at one pass."""

from collections.abc import Callable

import pytest

from notifier import Device, InvalidNotificationError, Notification
from notifier.log import mask_text
from notifier.rules.hours import parse_hours
from notifier.rules.kinds.window import parse_window
from notifier.rules.rate_text import parse_rates
from notifier.units import parse_duration

LONG = 1_000_000  # where the time goes with the square of it, that is an hour


@pytest.mark.parametrize(
    ("platform", "token"),
    [
        *[("apns", "channel:" + piece * LONG + end) for piece in ("A", "A=", "-") for end in ("!", "=!", "\n")],
        ("apns", "ab" * LONG + "!"),
        ("fcm", "a:" * LONG + "!"),
        ("hms", "a-" * LONG + "!"),
        ("expo", "ExpoPushToken[" + "a" * LONG),
    ],
)
def test_a_token_is_judged_at_one_pass(platform: str, token: str) -> None:
    """One producer's malformed token must stop neither the producer nor the workers that read it."""
    with pytest.raises(InvalidNotificationError):
        Notification(user="u", devices=[Device(platform, token)], title="x").validate()


@pytest.mark.parametrize(
    ("read", "text"),
    [
        (parse_rates, "5" + " " * LONG + "x"),
        (parse_rates, "5 per" + " " * LONG + "per"),
        (parse_rates, "burst" + " " * LONG + "5 then"),
        (parse_window, "1/" + " " * LONG + "\nx\ny"),
        (parse_window, "1" * LONG + "/m"),
        (parse_hours, "mon" + " " * LONG + "x"),
        (parse_hours, "mon " + "-" * LONG + "09:00"),
        (parse_duration, "1" + " " * LONG + "1"),
        (parse_duration, "1." * LONG),
    ],
)
def test_a_rule_is_judged_at_one_pass(read: Callable[[str], object], text: str) -> None:
    """Rates, hours and durations come from configurations, tables of users and whoever calls the HTTP API."""
    with pytest.raises(ValueError, match=r"write|use"):
        read(text)


@pytest.mark.parametrize("piece", ["title=", "title='\\", "bearer ", "://a:", "-----BEGIN ", "eyJa-", "f" * 63 + "-"])
def test_a_text_for_the_log_is_masked_at_one_pass(piece: str) -> None:
    """What a provider or a request says goes into the log, whatever it is made of."""
    assert len(mask_text(piece * (LONG // len(piece)))) <= LONG
