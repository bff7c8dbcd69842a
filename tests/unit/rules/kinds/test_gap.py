from notifier.rules.kinds.gap import Gap
from notifier.rules.kinds.kind import Receipt


def test_a_gap_is_from_the_last_device_to_the_first_of_the_next() -> None:
    """A send that reaches its devices one after the other is over with the last."""
    gap = Gap(100)
    assert list(gap.broken([Receipt(0, 40), Receipt(140, 140)])) == []
    assert list(gap.broken([Receipt(0, 40), Receipt(139, 500)])) == ["a gap of 99 µs where 100 µs is the least"]
    later = Receipt(0, 0), Receipt(99, 99), Receipt(500, 500)
    assert list(gap.broken(later)) == ["a gap of 99 µs where 100 µs is the least"]
