"""Warnings about a valid configuration that may be a mistake: rules that never bind, tiers that no user has."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from notifier.rules.kinds.gap import Gap
from notifier.rules.kinds.kind import RuleOfSends
from notifier.rules.policy import Policy
from notifier.settings.yaml_source import Path, Problem, Source
from notifier.units import LONGEST_US, format_duration

if TYPE_CHECKING:
    from notifier.settings.schema import CategorySettings, Settings

LONG_RUN_US: Final = 100 * LONGEST_US


def advise(settings: Settings, source: Source) -> list[Problem]:
    """Return warnings about these settings, each at its place in their source, in the order of the file."""
    cost = max((category.cost for category in settings.categories.values()), default=1)
    found = [*_of_policy(("user",), settings.user.policy(), cost), *_of_overrides(settings, cost), *_of_tiers(settings)]
    users = _user_policies(settings)
    for name, category in settings.categories.items():
        found += _of_category(("categories", name), category, users)
    placed = [Problem(source.values.get(path) or source.keys.get(path), path, message) for path, message in found]
    return sorted(placed, key=lambda problem: problem.mark or (0, 0))


Warnings = Iterator[tuple[Path, str]]


def implied(rule: RuleOfSends, others: Iterable[RuleOfSends], cost: int = 1) -> RuleOfSends | None:
    """Return another rule that is never less strict than this one, so that this one never binds; None if there is none.

    Rules are compared at once, over the horizon of this one, and in the long run. cost: the largest cost of a send. A
    gap limits sends whatever they cost, so each send that it admits counts as this cost.
    """
    spans_us = (1, rule.horizon_us, LONG_RUN_US)

    def is_stricter(other: RuleOfSends) -> bool:
        each = cost if isinstance(other, Gap) else 1
        return all(other.max_in(us) * each <= rule.max_in(us) for us in spans_us)

    return next(filter(is_stricter, others), None)


def _of_policy(path: Path, policy: Policy, cost: int) -> Warnings:
    places: list[Path] = [("windows", index) for index in range(len(policy.windows))]
    places = [("gap",)] * (policy.gap_us > 0) + places + [("burst",)] * (policy.burst is not None)
    for index, (place, rule) in enumerate(zip(places, policy.rules, strict=True)):
        later = [other for other in policy.rules[index + 1 :] if not implied(other, [rule], cost)]
        # Of two equal rules, only the second gets a warning.
        if stricter := implied(rule, [*policy.rules[:index], *later], cost):
            at = (*path, *place)
            yield at, f"{rule} can never bind: {stricter} admits no more; delete it, or make it stricter"


def _of_overrides(settings: Settings, cost: int) -> Warnings:
    everyone = settings.user.policy()
    for section, entries in (("tiers", settings.tiers), ("users", settings.users)):
        for name, entry in entries.items():
            if isinstance(entry, str) or (section == "users" and name in settings.places_in_files):
                continue
            policy = entry.policy(everyone)
            if policy == everyone:
                yield (section, name), "changes nothing: its rules are those of user"
                continue
            own = {type(entry).model_fields[name].alias or name for name in entry.model_fields_set}
            # A rule that the entry inherits from `user` has no place in the entry.
            yield from ((at, text) for at, text in _of_policy((section, name), policy, cost) if own & set(at))


def _of_tiers(settings: Settings) -> Warnings:
    entries = (*settings.users_may.tier, *settings.users.values())
    used = {entry for entry in entries if isinstance(entry, str)}
    for name in settings.tiers:
        if name not in used:
            yield ("tiers", name), "nobody has this tier: name it under users"


def _user_policies(settings: Settings) -> list[Policy]:
    """Return all policies that users may have: of `user`, of entries under `users`, and of tiers."""
    policies, users = settings.policies(), ("", *settings.users)
    return list({*map(policies.for_user, users), *policies.tiers.values()})


def _of_category(path: Path, category: CategorySettings, users: Sequence[Policy]) -> Warnings:
    policy = category.policy()
    if category.bypass:
        if not policy.is_empty:
            yield (*path, "bypass"), f"is never held back, so its rules ({policy}) only count"
        if category.when_blocked in {"digest", "drop"}:
            yield (*path, "when_blocked"), "never applies: a category with bypass is never held back"
        return
    if category.digest is not None and category.expires_us and category.digest.within_us >= category.expires_us:
        within, expires = format_duration(category.digest.within_us), format_duration(category.expires_us)
        yield (
            (*path, "digest", "within"),
            f"{within} is no shorter than expires, {expires}: what gathers expires first",
        )
    said = dict(_of_policy(path, policy, category.cost))
    yield from said.items()
    for index, window in enumerate(policy.windows):
        at = (*path, "windows", index)
        if at not in said and all(implied(window, user.rules, category.cost) for user in users):
            yield at, f"{window} can never bind: what any user may receive in all is no more"
    slowest = max((policy.gap_us, *(w.interval_us for w in policy.windows if w.limit == 1)))
    waits = category.when_blocked != "drop"
    if waits and category.expires_us and slowest >= category.expires_us:
        expires, wait = format_duration(category.expires_us), format_duration(slowest)
        yield (*path, "expires"), f"{expires} is over before the {wait} between two sends: a second one always expires"
