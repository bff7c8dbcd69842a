from notifier.rules.kinds.burst import Burst
from notifier.rules.kinds.kind import Receipt

S = 1_000_000


def test_a_burst_tells_by_how_much_it_was_exceeded() -> None:
    """A cost takes as many tokens; the bucket is full at first."""
    burst = Burst(5, every_us=S)
    assert list(burst.broken([Receipt(0, 0, 3), Receipt(1, 1, 2)])) == []
    assert list(burst.broken([Receipt(0, 0, 3), Receipt(1, 1, 3)])) == [f"{burst} exceeded by {S - 1} µs"]
