"""Short runs of `make nemesis` with fixed seeds: everything real, much goes wrong, the laws hold at the wire."""

import pytest

from tests.nemesis.nemesis import run

SECONDS = 15.0


@pytest.mark.parametrize("seed", [2])
def test_the_laws_hold_whatever_goes_wrong(seed: int) -> None:
    """Windows, gaps, order, ends and audit, for every user, in a quarter of a minute of trouble."""
    verdict = run(seed, SECONDS)

    assert not verdict.violations, verdict.stories()
    assert len(verdict.facts.accepted) > 10 * SECONDS / 2, "there was traffic"
    assert verdict.deeds.total() > SECONDS / 2, "and trouble"
