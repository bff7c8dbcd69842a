"""A replay: what is small enough to compute by hand."""

from __future__ import annotations

import pytest

from notifier.forecast.replay import Replay
from notifier.forecast.trace import Event
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window

S = 1_000_000


@pytest.mark.parametrize(
    ("policy", "sent"),
    [
        (Policy(gap_us=S), [0, 1_050_000, 2_100_000]),
        (Policy((Window(1, interval_us=10 * S),)), [0, 10_050_000, 20_100_000]),
    ],
)
def test_a_send_that_takes_time_holds_up_the_next(policy: Policy, sent: list[int]) -> None:
    """Gaps and windows are counted from where a send was settled."""
    assert Replay(Policies(policy), "ann", [Event(0)] * 3, latency_us=50_000).run().sent == sent
