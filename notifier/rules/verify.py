"""The laws, measured at the wire: the sends that the simulators received, compared with the rules in force."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from notifier.rules.evaluator import Sends, opens
from notifier.rules.kinds.gap import smallest_gap
from notifier.rules.kinds.kind import Receipt
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy

ACCEPTED = 200


@dataclass(frozen=True, slots=True)
class Send:
    """One notification as it arrived at the providers: `first_us` and `last_us` over its devices, wall clock.

    ready_us: when it could have gone without limits.
    """

    name: str
    user: str
    category: str
    first_us: int
    last_us: int
    ready_us: int = 0


@dataclass(frozen=True, slots=True)
class Tightness:
    """How near a user's sends came to the rules of a policy: the largest counts and the smallest gap.

    largest: for each window, the largest total cost within it. broken: the broken rules, for people; empty if the law
    held.
    """

    user: str
    scope: str
    policy: Policy
    sends: int
    largest: tuple[int, ...]
    smallest_gap_us: int | None
    broken: tuple[str, ...]


def tightness(sends: Iterable[Send], policies: Policies) -> list[Tightness]:
    """For each user, and for each user and category with rules, how near the sends came to them."""
    groups: dict[tuple[str, str], list[Send]] = defaultdict(list)
    for send in sends:
        groups[send.user, "user"].append(send)
        groups[send.user, send.category].append(send)
    found = []
    for (user, scope), group in groups.items():
        policy = policies.for_user(user) if scope == "user" else policies.category(scope).policy
        # No rule holds a send that bypasses, so it cannot break a rule.
        held = [send for send in group if not policies.category(send.category).bypass]
        if policy.is_empty or not held:
            continue
        receipts = sorted(Receipt(send.first_us, send.last_us, policies.category(send.category).cost) for send in held)
        largest = tuple(window.largest_count(receipts) for window in policy.windows)
        broken = tuple(f"{user} ({scope}): {how}" for rule in policy.rules for how in rule.broken(receipts))
        found.append(Tightness(user, scope, policy, len(held), largest, smallest_gap(receipts), broken))
    return found


def lateness_us(sends: Iterable[Send], policies: Policies) -> list[int]:
    """For each send, how long it came after the first moment that the rules allowed, by the user's earlier sends."""
    before: defaultdict[tuple[str, str], Sends] = defaultdict(Sends)
    late = []
    for send in sorted(sends, key=lambda send: send.first_us):
        rules = policies.rules(send.user, send.category)
        of_user, own = before[send.user, ""], before[send.user, send.category]
        if not rules.category.bypass:
            late.append(send.first_us - max(send.ready_us, opens(rules, of_user, own, send.first_us)[0]))
        for policy, scope in ((rules.user, of_user), (rules.category.policy, own)):
            scope.add(policy, send.name, send.first_us, send.first_us, cost=rules.category.cost)
    return late


def percentile(values: Sequence[int], share: float) -> int:
    """The value below which this share of the values lies; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0


def out_of_order(names: Mapping[tuple[str, str], Sequence[str]], sends: Iterable[Send]) -> int:
    """How many sends of a user and category arrived before one that was accepted earlier.

    names: for each (user, category) the names of its notifications in the order of acceptance.
    """
    rank = {name: index for ordered in names.values() for index, name in enumerate(ordered)}
    newest: dict[tuple[str, str], int] = {}
    wrong = 0
    for send in sorted(sends, key=lambda send: send.first_us):
        key = (send.user, send.category)
        if rank[send.name] < newest.get(key, -1):
            wrong += 1
        newest[key] = max(newest.get(key, -1), rank[send.name])
    return wrong
