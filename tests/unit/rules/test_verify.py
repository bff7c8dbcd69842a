"""What judges the laws at the wire: it sees what breaks them, wherever in a run that is."""

import pytest

from notifier.rules.category import Category
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window
from notifier.rules.verify import Send, out_of_order, percentile, tightness

S = 1_000_000
RULES = Policies(
    Policy((Window(2, interval_us=10 * S),), gap_us=S),
    categories={
        "chat": Category("chat", policy=Policy((Window(1, interval_us=5 * S),))),
        "dear": Category("dear", cost=2),
        "alarm": Category("alarm", bypass=True, policy=Policy(gap_us=60 * S)),
    },
)


def sent(*at: tuple[float, str], user: str = "ann") -> list[Send]:
    """Sends at these seconds, each of a category, to one device."""
    return [Send(f"{n}", user, category, int(s * S), int(s * S)) for n, (s, category) in enumerate(at)]


@pytest.mark.parametrize(
    ("sends", "broken"),
    [
        ([(0, "default"), (1, "default"), (10, "default"), (11, "dear"), (30, "dear")], ["3 within 2/10s"]),
        ([(0, "default"), (0.5, "default"), (60, "default")], ["a gap of 500000 µs where 1000000 µs is the least"]),
        ([(0, "chat"), (4, "chat"), (60, "chat")], ["2 within 1/5s"]),
        ([(0, "chat"), (4, "default"), (60, "chat")], []),
        ([(0, "default"), (0, "alarm"), (1, "alarm"), (2, "default")], []),
    ],
)
def test_each_broken_rule_is_told(sends: list[tuple[float, str]], broken: list[str]) -> None:
    """The user's over all categories, a category's over its own; what bypasses breaks none and counts for none."""
    found = tightness(reversed(sent(*sends)), RULES)
    assert [how.partition(": ")[2] for entry in found for how in entry.broken] == broken
    assert all(entry.sends for entry in found)


def test_what_others_were_sent_counts_for_nobody_else() -> None:
    """Each user is judged alone."""
    found = tightness([*sent((0, "default"), (1, "default")), *sent((0.5, "default"), user="bob")], RULES)
    assert [(each.user, each.sends, each.largest, each.smallest_gap_us) for each in found] == [
        ("ann", 2, (2,), S),
        ("bob", 1, (1,), None),
    ]


def test_what_was_overtaken_is_counted() -> None:
    """Each that comes after one that was accepted later, of its user and category."""
    of = {("ann", "chat"): ["0", "1", "2"], ("bob", "chat"): ["3", "4"]}
    wire = enumerate(["1", "0", "2", "4", "3"])
    sends = [Send(name, "ann" if name < "3" else "bob", "chat", at, at) for at, name in reversed([*wire])]
    assert out_of_order(of, sends) == 2
    assert out_of_order(of, [send for send in sends if send.name in {"1", "2", "4"}]) == 0
    last = [Send(name, "ann", "chat", at, at) for at, name in enumerate(["2", "0", "1"])]
    assert out_of_order(of, last) == 2, "each that the last one overtook"


def test_a_share_of_the_values_lies_below() -> None:
    """In whatever order they come; of none it is 0."""
    assert [percentile([5, 1, 4, 2, 3], share) for share in (0.0, 0.5, 0.99, 1.0)] == [1, 3, 5, 5]
    assert percentile([], 0.5) == 0
