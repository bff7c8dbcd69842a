"""Laws 1 and 2 with workers that die at every named step between pull and settle; `make chaos` is the long form."""

from tests.faults.chaos import unleash
from tests.faults.mortal_worker import STEPS


def test_a_death_at_every_step_loses_nothing_and_bursts_nobody() -> None:
    """900 on three lanes, a death at each step and four at any moment: each delivered once, repeats only in flight."""
    outcome = unleash(count=900, users=15, kills=12)
    assert set(outcome.kills) == {*STEPS, "any moment"}
    outcome.assert_right()
