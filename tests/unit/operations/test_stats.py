"""The numbers of a minute, as the command and the page show them."""

from notifier.operations.stats import COUNTS, Stats, counts_of
from notifier.queue.minutes import Numbers
from tests.unit.operations.test_problems import now


def test_what_is_tried_again_has_not_ended() -> None:
    """It is counted beside what ended, of which delivered and cancelled have columns of their own."""
    numbers = Numbers()
    numbers.accepted["chat"] = 9
    words = {"delivered": 4, "cancelled": 3, "rejected": 2, "expired": 1, "retried": 5, "returned": 6}
    numbers.ended.update({(word, "chat", "fcm"): n for word, n in words.items()})
    (minute,) = Stats(now(), {30_000_000: numbers}).by_minute()
    assert minute["ended"] == {"cancelled": 3, "delivered": 4, "expired": 1, "rejected": 2}
    assert dict(zip(COUNTS, counts_of(minute), strict=True)) == {
        "accepted": 9,
        "delivered": 4,
        "cancelled": 3,
        "other ends": 3,
        "retried": 5,
    }
    assert minute["returned"] == 6
