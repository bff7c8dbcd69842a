"""What holds for every kind of rule: `opens` against `broken` and `max_in`, which say what the rule means."""

from hypothesis import given
from hypothesis import strategies as st

from notifier.rules.evaluator import Sends
from notifier.rules.kinds.kind import Receipt, RuleOfSends
from notifier.rules.policy import Policy
from tests.property import kinds

S = 1_000_000
START = 1_700_000_000_000_000
EVERYTHING = Policy(gap_us=S)  # any policy at all: one without rules keeps no sends
waits = st.one_of(st.just(0), st.integers(0, 3 * S), st.integers(0, 9 * S))


def first_after(rule: RuleOfSends, sends: Sends, now_us: int, cost: int = 1) -> int:
    """When one more goes that is there now."""
    return max(now_us, rule.opens(sends, cost))


@given(kinds.rules(S), st.lists(st.tuples(waits, st.integers(1, 3)), min_size=1, max_size=30))
def test_the_first_moment_is_the_first(rule: RuleOfSends, script: list[tuple[int, int]]) -> None:
    """Sends as early as the rule allows never break it, and each of them a microsecond earlier would have."""
    sends, received, now = Sends(), list[Receipt](), START
    for n, (wait, asked) in enumerate(script):
        now, cost = now + wait, min(asked, rule.max_cost)
        at = first_after(rule, sends, now, cost)
        if at > now:
            assert list(rule.broken([*received, Receipt(at - 1, at - 1, cost)]))
        now = at
        received.append(Receipt(at, at, cost))
        sends.add(EVERYTHING, str(n), at, START, cost=cost)
    assert not list(rule.broken(received))


@given(kinds.rules(S), st.integers(1, 40))
def test_the_most_in_an_interval_is_reached(rule: RuleOfSends, seconds: int) -> None:
    """Sends as early as allowed are as many as `max_in` says, and no more."""
    sends, at, count = Sends(), START, 0
    while at < START + seconds * S:
        sends.add(EVERYTHING, str(count), at, START)
        count += 1
        at = first_after(rule, sends, at)
    assert count == rule.max_in(seconds * S)


@given(kinds.rules(S), st.lists(waits, max_size=30), st.integers(0, 5 * S))
def test_a_send_matters_no_longer_than_it_is_kept(rule: RuleOfSends, steps: list[int], later_us: int) -> None:
    """Once its horizon is over, a send holds nothing back, and nothing is used up."""
    sends, at = Sends(), START
    for n, step in enumerate(steps):
        at = first_after(rule, sends, at + step)
        sends.add(EVERYTHING, str(n), at, START)
    now = at + rule.horizon_us + later_us
    assert rule.opens(sends, 1) <= now
    assert not rule.used(sends, now)


@given(kinds.rules(S))
def test_a_rule_is_written_as_the_words_of_its_policy(rule: RuleOfSends) -> None:
    """What people read of a rule does not depend on what stands beside it; and Redis's table has a place for it."""
    table: dict[str, object] = {"gap": 0, "windows": []}
    before = dict(table, windows=[])
    rule.write(table)
    assert table != before
    assert str(rule)
