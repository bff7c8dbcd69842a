"""The kinds of rules of sends, drawn. What `others` draws, every property test of rules meets."""

from typing import Any

from hypothesis import strategies as st

from notifier.rules.kinds.burst import Burst
from notifier.rules.kinds.kind import RuleOfSends
from notifier.rules.policy import Policy, Window


def others(unit_us: int, min_limit: int = 1) -> st.SearchStrategy[dict[str, Any]]:
    """Fields of a policy: of each kind beside windows and gaps one, or none. min_limit: of all that have a limit."""
    limits = st.integers(min_limit, 6) | st.just(20)
    bursts = st.builds(Burst, limits, every_us=st.sampled_from([1, 2, 7, 9]).map(unit_us.__mul__))
    return st.fixed_dictionaries({}, optional={"burst": bursts})


def policies(
    windows: st.SearchStrategy[tuple[Window, ...]],
    gaps_us: st.SearchStrategy[int],
    others: st.SearchStrategy[dict[str, Any]],
) -> st.SearchStrategy[Policy]:
    """Policies of these parts."""
    return st.builds(lambda windows, gap_us, others: Policy(windows, gap_us, **others), windows, gaps_us, others)


def rules(unit_us: int) -> st.SearchStrategy[RuleOfSends]:
    """One rule of any kind."""
    window = st.builds(Window, st.integers(1, 6), interval_us=st.integers(1, 9).map(unit_us.__mul__))
    gaps_us = st.integers(1, 5).map(unit_us.__mul__)
    return policies(st.tuples(window), gaps_us, others(unit_us)).flatmap(lambda policy: st.sampled_from(policy.rules))
