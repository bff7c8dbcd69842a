"""What is told of the rules that hold a notification back."""

import pytest

from notifier.operations.explain import Explanation, Use, places_by_rule
from notifier.rules.quiet_hours import Scope

FILE = "rates.yaml"


@pytest.mark.parametrize(
    ("rules", "told"),
    [
        ((("user", "quiet 12:00-13:00", 5), ("category", "send mon-fri 09:00-18:00", 9)), f"{FILE}:5, {FILE}:9"),
        ((("user", "quiet 12:00-13:00", 5), ("user", "quiet 22:00-07:00", 5)), f"{FILE}:5"),
    ],
)
def test_of_several_quiet_hours_each_line_is_told(rules: tuple[tuple[Scope, str, int], ...], told: str) -> None:
    """A history says of all of them 'quiet hours', so the line of any may be the one that somebody looks for."""
    uses = [Use(scope, rule, None, None, None, f"{FILE}:{line}") for scope, rule, line in rules]
    found = Explanation("ann", "news", "bulk", bypass=False, uses=uses, next_at=None, decided_by=None, waiting={})
    assert places_by_rule(found) == {"quiet hours": told}
