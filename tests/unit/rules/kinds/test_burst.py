from notifier.rules.kinds.burst import Burst
from notifier.rules.kinds.kind import Receipt

S = 1_000_000


def test_a_burst_tells_by_how_much_it_was_exceeded() -> None:
    """A cost takes as many tokens; the bucket is full at first, and never more than full."""
    burst = Burst(5, every_us=S)
    assert list(burst.broken([Receipt(0, 0, 3), Receipt(1, 1, 2)])) == []
    assert list(burst.broken([Receipt(0, 0, 3), Receipt(1, 1, 3)])) == [f"{burst} exceeded by {S - 1} µs"]
    late = 99 * S
    assert list(burst.broken([Receipt(0, 0, 7), Receipt(late, late)])) == [f"{burst} exceeded by {2 * S} µs"]
    assert list(burst.broken([Receipt(0, 0, 1), Receipt(late, late, 6)])) == [f"{burst} exceeded by {S} µs"]
