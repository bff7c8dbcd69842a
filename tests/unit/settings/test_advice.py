"""Warnings about a configuration that is right and cannot be meant."""

from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from notifier.rules.kinds.gap import Gap
from notifier.rules.kinds.kind import Receipt, RuleOfSends
from notifier.rules.policy import Burst, Policy, Window
from notifier.settings import parse_settings
from notifier.settings.advice import advise, implied
from notifier.settings.yaml_source import read_yaml

S = 1_000_000

# What is said, by the YAML that it is said of: (line, path, a part of the message).
CASES = {
    "user: {windows: [10/minute, 1000/minute]}": (1, "user.windows.1", "10/1m admits no more"),
    "user: {windows: [10/minute, 20/minute, 200/day]}": (1, "user.windows.1", "10/1m admits no more"),
    "user: {windows: [5/10s], gap: 1m}": (1, "user.windows.0", "gap 1m admits no more"),
    "user: {windows: [100/minute], gap: 1s}": (1, "user.windows.0", "gap 1s admits no more"),
    "user: {windows: [1/day], gap: 4h}": (1, "user.gap", "1/1d admits no more"),
    "user: {gap: 1s}\ntiers:\n  slow: {gap: 5s}": (3, "tiers.slow", "nobody has this tier"),
    "user: {gap: 1s}\nusers:\n  a: {gap: 1s}": (3, "users.a", "changes nothing"),
    "categories:\n  x: {lane: bulk, bypass: true, gap: 1s}": (2, "categories.x.bypass", "only count"),
    "categories:\n  x: {lane: bulk, bypass: true, when_blocked: drop}": (
        2,
        "categories.x.when_blocked",
        "never held back",
    ),
    "user: {windows: [10/minute]}\ncategories:\n  x: {lane: bulk, windows: [20/minute]}": (
        3,
        "categories.x.windows.0",
        "what any user may receive in all is no more",
    ),
    "user: {windows: [1/minute], gap: 1m}": (1, "user.windows.0", "gap 1m admits no more"),
    "user: {gap: 1m, burst: {capacity: 3, refill: 2/minute}}": (1, "user.burst", "gap 1m admits no more"),
    "user: {windows: [3/hour], burst: {capacity: 5, refill: 1/m}}": (1, "user.burst", "3/1h admits no more"),
    "user: {windows: [70/hour], burst: {capacity: 5, refill: 1/m}}": (1, "user.windows.0", "burst 5 then 1/1m admits"),
    "categories:\n  x: {lane: bulk, gap: 2h, expires: 1h}": (2, "categories.x.expires", "a second one always expires"),
    "categories:\n"
    "  x: {lane: bulk, gap: 1m, expires: 1h, when_blocked: digest, digest: {after: 3, within: 1h, title: t}}": (
        2,
        "categories.x.digest.within",
        "1h is no shorter than expires, 1h",
    ),
}


@pytest.mark.parametrize("text", CASES)
def test_what_cannot_be_meant_is_said_once_at_its_place(text: str) -> None:
    """Each such setting has one warning, with the line and the key it stands at."""
    line, path, words = CASES[text]
    (problem,) = advise(parse_settings(text), read_yaml(text))
    assert problem.mark is not None
    assert (problem.mark.line, ".".join(map(str, problem.path))) == (line, path)
    assert words in problem.message


def test_a_looser_user_keeps_a_category_useful() -> None:
    """A category's window is not called useless while one user, by a tier or a rule of their own, could exceed it."""
    text = """
    user: {windows: [10/minute]}
    users: {vip: {windows: []}}
    categories:
      x: {lane: bulk, windows: [20/minute]}
      y: {lane: bulk, when_blocked: digest, digest: {after: 3, within: 2h, title: t}}
      z: {lane: bulk, when_blocked: digest, expires: 3h, digest: {after: 3, within: 2h, title: t}}
    """
    assert advise(parse_settings(text), read_yaml(text)) == []


def test_a_gap_does_not_count_what_a_send_costs() -> None:
    """Six a minute, each as five: a window of ten holds them back."""
    text = "user: {gap: 10s, windows: [10/minute]}\ncategories: {x: {lane: bulk, cost: 5}}"
    assert advise(parse_settings(text), read_yaml(text)) == []


@pytest.mark.parametrize(
    "text",
    [
        "tiers: {vip: {windows: []}}\nusers_may: {tier: [vip]}",
        "tiers: {vip: {windows: []}}\nusers_from: users.jsonl",
        "users_from: own.jsonl",
    ],
)
def test_a_rule_that_some_user_needs_is_not_called_useless(tmp_path: Path, text: str) -> None:
    """One who has it by a file of users, or who may choose it."""
    rates = "user: {windows: [10/minute, 9/10s], gap: 1s}\ncategories: {x: {lane: bulk, windows: [20/minute]}}"
    text = f"{rates}\n{text}"
    (tmp_path / "users.jsonl").write_text('{"user": "a", "tier": "vip"}', encoding="utf-8")
    own = '{"user": "a", "windows": [], "gap": "0s"}\n{"user": "b"}'  # a file may have entries that change nothing
    (tmp_path / "own.jsonl").write_text(own, encoding="utf-8")
    assert advise(parse_settings(text, name=str(tmp_path / "n.yaml")), read_yaml(text)) == []


seconds = st.integers(1, 12).map(lambda n: n * S)
windows = st.builds(Window, st.integers(1, 6), interval_us=seconds)
rules = windows | st.builds(Gap, seconds) | st.builds(Burst, st.integers(1, 6), every_us=seconds)


@given(rule=rules, others=st.lists(rules, max_size=3), sends=st.lists(st.integers(0, 60)))
def test_what_is_called_implied_never_binds(rule: RuleOfSends, others: list[RuleOfSends], sends: list[int]) -> None:
    """No sends that keep the other rules break a rule that was said never to bind."""
    assume(implied(rule, others))
    kept: list[Receipt] = []
    for at in sorted(n * S for n in sends):
        more = [*kept, Receipt(at, at)]
        kept = kept if any(list(other.broken(more)) for other in others) else more
    assert not list(rule.broken(kept))


def test_advice_does_not_change_with_the_order_of_equal_windows() -> None:
    """Of two windows that say the same, the second is the one to delete."""
    text = "user: {windows: [5/minute, 5/1m]}"
    (problem,) = advise(parse_settings(text), read_yaml(text))
    assert problem.path == ("user", "windows", 1)
    assert Policy((Window(5, interval_us=60 * S),)).horizon_us == 60 * S
