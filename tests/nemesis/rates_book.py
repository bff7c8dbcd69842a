"""The rates that a run changes between, and which of them were in force when."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from notifier.rules.policies import Policies
from notifier.rules.policy import Policy

CHAT: Final = {"lane": "urgent", "windows": ["3/2s"]}
DEFAULT: Final = {"lane": "default"}
MARKETING: Final = {"lane": "bulk", "windows": ["2/2s"], "gap": "200ms", "on_unknown": "give_up"}
NEWS: Final = {"lane": "bulk", "when_blocked": "collapse"}
DEAR: Final = {"lane": "default", "cost": 2}
CATEGORIES: Final = {"chat": CHAT, "default": DEFAULT, "marketing": MARKETING, "news": NEWS, "dear": DEAR}
USER: Final = {"windows": ["6/2s", "18/8s"], "gap": "60ms"}

# Each is complete. `slow` users have a gap of their own, in all of them.
RATES: Final[Mapping[str, Mapping[str, Any]]] = {
    "base": {"user": USER, "categories": CATEGORIES},
    "tight": {"user": {"windows": ["3/2s", "10/8s"], "gap": "250ms"}, "categories": CATEGORIES},
    "wide": {
        "user": {"windows": ["20/2s", "70/8s"], "gap": "5ms"},
        "categories": {**CATEGORIES, "chat": {**CHAT, "windows": ["9/2s"]}},
    },
    "no gap": {"user": {"windows": ["6/2s", "18/8s"]}, "categories": {**CATEGORIES, "chat": {"lane": "urgent"}}},
    "gap alone": {"user": {"gap": "120ms"}, "categories": CATEGORIES},
    "other lanes": {
        "user": USER,
        "categories": {**CATEGORIES, "default": {"lane": "bulk"}, "marketing": {**MARKETING, "lane": "default"}},
    },
    "fewer categories": {"user": USER, "categories": {"default": DEFAULT, "chat": CHAT, "news": NEWS, "dear": DEAR}},
}
SLOW_USERS: Final = {"u1": {"gap": "400ms"}, "u2": {"windows": ["2/2s", "8/8s"], "gap": "0s"}}
# Each has more to get than one kind of rule lets through, all the time; what does not go expires. By user the category.
HUNGRY: Final = {f"h{n}": "dear" if n in {3, 6, 7} else "default" for n in range(9)}
HUNGRY_USERS: Final = {
    "h0": {"windows": [], "gap": "0s", "burst": {"capacity": 3, "refill": "1/1s"}},
    "h1": {"windows": [{"limit": 6, "interval": "4s", "precision": "500ms"}], "gap": "0s"},
    "h2": {"windows": ["12/calendar-day"], "gap": "0s"},
    "h3": {"windows": ["5/2s"], "gap": "0s"},
    "h4": {"windows": [], "gap": "700ms"},
    "h5": {"windows": ["9/3s"], "gap": "0s"},
    "h6": {"windows": [], "gap": "0s", "burst": {"capacity": 6, "refill": "2/1s"}},
    "h7": {"windows": [{"limit": 8, "interval": "4s", "precision": "500ms"}], "gap": "0s"},
    "h8": {"windows": ["4/2s", "400/calendar-day"], "gap": "150ms", "burst": {"capacity": 3, "refill": "1/600ms"}},
}
DAY_US: Final = 86_400_000_000


def sections(name: str) -> dict[str, Any]:
    """The rates of this name as they stand in a file."""
    return {**RATES[name], "users": SLOW_USERS | HUNGRY_USERS}


def reach_us(policy: Policy) -> int:
    """How far back the rules look."""
    burst_us = policy.burst.limit * policy.burst.every_us if policy.burst else 0
    day_us = DAY_US if policy.calendar else 0
    return max((policy.gap_us, burst_us, day_us, *(window.interval_us for window in policy.windows)))


@dataclass(frozen=True)
class Rules:
    """What one version of the rates says, and between which moments some worker went, or may have gone, by it."""

    name: str
    policies: Policies
    spans: tuple[tuple[int, int], ...]

    def in_force(self, since_us: int, until_us: int) -> bool:
        """Whether some worker may have gone by it in between."""
        return any(begin <= until_us and end >= since_us for begin, end in self.spans)

    def scopes(self, user: str, category: str) -> tuple[tuple[str, Policy], ...]:
        """The rules for a send of this user and category: those of the user, and those of the category."""
        whose = "the user's", self.policies.for_user(user)
        return whose, (f"{category}'s", self.policies.category(category).policy)

    def bypasses(self, category: str) -> bool:
        """Whether nothing holds this category."""
        return self.policies.category(category).bypass

    @cached_property
    def _memory(self) -> dict[tuple[str, str], int]:
        return {}

    def memory_us(self, user: str, category: str | None) -> int:
        """How long a send is remembered by these rules: for the user, or for the user's category."""
        key = user, category or ""
        if key not in self._memory:
            policy = self.policies.for_user(user) if category is None else self.policies.category(category).policy
            self._memory[key] = reach_us(policy)
        return self._memory[key]


def remembered(rules: Iterable[Rules], whose: tuple[str, str | None], since_us: int, at_us: int, age_us: int) -> bool:
    """Whether a send of this age still counts. whose: the user, and the category if it is that category's rules.

    Each send is kept for as long as the rules look back that are in force from then on: rules that begin to look
    further back begin with what is still known.
    """
    spans = [one.memory_us(*whose) for one in rules if one.in_force(since_us, at_us)]
    return age_us < min(spans, default=0)
