"""The rules as the scripts take them: JSON, the categories' encoded once, the users' for each call."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final, NamedTuple

from notifier.rules.hours import WEEK_US
from notifier.rules.policies import Policies
from notifier.rules.policy import LANES, Category, PlatformLimits, Policy, Window
from notifier.rules.preferences import Preferences
from notifier.rules.zones import VERSION
from notifier.scripts.keys import redis_key

MAX_TEXTS: Final = 10_000  # of choices, kept in memory as they were read
ENCODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
BUCKETS: Final = 60  # of a project's interval; it may be stricter than exact by one, never looser


class RuleTable:
    """The rules for *pull* and *settle*; see `rule_table.lua` and `limits.lua` for what stands where.

    on_join: what comes finds in its backlog, as *pull* takes it. of_everyone: the table for the users
    without rules of their own.
    """

    def __init__(
        self,
        policies: Policies,
        lanes: Sequence[str] = LANES,
        *,
        lead_us: int | None = None,
        version: str = "",
        partitions: int = 1,
    ) -> None:
        """lead_us: in place of the policies' own, for a worker whose lease is another than the file now says.

        version: of the rules, where others may be taken up after them; see `leaders.follow`.
        partitions: of the fleet; each has its share of what all users have together.
        """
        self._share = partitions
        self._policies = policies
        categories = policies.categories.values()
        of_category = ",".join(f"{json.dumps(c.name)}:{policy_json(c.policy)}" for c in categories)
        rest: dict[str, Any] = {
            "bypass": {c.name: True for c in categories if c.bypass},
            "lanes": [*LANES, *(lane for lane in lanes if lane not in LANES)],
        }
        some: dict[str, Any] = {
            "version": version,
            "costs": {c.name: c.cost for c in categories if c.cost > 1},
            "overall": {c.name: self._of_all(c.overall) for c in categories if c.overall and not c.bypass},
            "apps": {c.name: c.app for c in categories if c.app},
            "ignores_quiet": {c.name: True for c in categories if c.ignores_quiet},
            "digests": {c.name: c.digest.within_us for c in categories if c.digest},
            "drops": {c.name: True for c in categories if c.when_blocked == "drop"},
        }
        rest |= {name: of for name, of in some.items() if of}
        lead = policies.lead_us if lead_us is None else lead_us
        clock = {"version": VERSION, "zone": policies.zone, "lead_us": lead}
        self.zones = redis_key("zones") if policies.uses_local_time else redis_key("zones", "users")
        if policies.uses_local_time:
            rest["clock"] = clock
        self._clock_of_users = {**clock, "of_users": True}
        self._limited = limited(policies)
        if own := own_rules_of(policies).version:
            rest["own"] = own
        self.chosen_version = rest["chosen"] = digest(_chosen_by(policies), clock, own)
        on_join = {c.name: _on_join(c) for c in categories}
        self.on_join = json.dumps(on_join, separators=(",", ":"))
        self._rest = f'"categories":{{{of_category}}},{self._limits(rest)}'
        self._of_text: dict[str, tuple[Policy, str]] = {}
        self._of_device: dict[tuple[str, Policy], str] = {}
        self.of_everyone, _ = self._encode([])

    @property
    def own_rules(self) -> str:
        """The version of the own rules, alike in all processes with the same; '' where nobody has any."""
        return own_rules_of(self._policies).version

    def own_fields(self) -> Iterator[tuple[str, str]]:
        """The fields and values of the hash that tells of users with rules of their own, see `own_rules.lua`."""
        own = own_rules_of(self._policies)
        yield from ((f"\n{number}", text) for number, text in enumerate(own.texts))
        yield from own.numbers.items()

    def chosen_field(self, user: str, text: str) -> tuple[str, str]:
        """A field of the hash that tells what choices come to, and its value, see `preferences.lua`.

        text: what the user chose, as it stands in Redis.
        """
        chosen, number = self._policies.chosen(user, decoded(text)), own_rules_of(self._policies).numbers.get(user, "")
        told: dict[str, Any] = json.loads(own_text(self._policies, chosen.policy))
        if chosen.policy.uses_local_time and not self._policies.uses_local_time:
            told["clock"] = self._clock_of_users
        if chosen.zone is not None:
            told["z"] = chosen.zone
        if chosen.mutes:
            told["m"] = [
                [mute.until_us, mute.what == "drop", *([] if mute.categories is None else [mute.categories])]
                for mute in chosen.mutes
            ]
        return f"{number}\n{text}", ENCODE(told)

    def _limits(self, rest: dict[str, Any]) -> str:
        limits = self._policies.limits
        if limits:
            rest["limited"] = True
        for name, of in limits.items():
            if not of.background.is_empty:
                rest.setdefault("background", {})[name] = json.loads(policy_json(of.background))
            if (burst := of.collapsible) is not None:
                rest.setdefault("collapsible", {})[name] = [burst.limit, burst.every_us]
            if (project := of.project) is not None:
                rest.setdefault("projects", {})[name] = [*self._of_all(project), bucket_us(project.interval_us)]
        return json.dumps(rest, separators=(",", ":"))[1:-1]

    def _of_all(self, window: Window) -> list[int]:
        return [share_of(window.limit, self._share), window.interval_us]

    def encode(self, users: Sequence[str]) -> tuple[str, list[int]]:
        """The table of everyone and these users, and for each the index of the policy in it. It knows no choices."""
        if not self._policies.users:
            return self.of_everyone, [0] * len(users)
        return self._encode(map(self._policies.for_user, users))

    def _encode(self, policies: Iterable[Policy]) -> tuple[str, list[int]]:
        found = list(policies)
        # By their ids, as to hash a policy takes longer than to ask for it.
        distinct = {id(policy): policy for policy in (self._policies.everyone, *found)}
        places = {of: n for n, of in enumerate(distinct)}
        indexes = [places[id(policy)] for policy in found]
        known = distinct.values()
        of_users = ",".join(map(policy_json, known))
        of_devices = ",".join(
            f'"{name}":[{",".join(self._devices(name, user) for user in known)}]' for name in self._limited
        )
        devices = f'"devices":{{{of_devices}}},' if of_devices else ""
        return f'{{"users":[{of_users}],{devices}{self._rest}}}', indexes

    def _devices(self, platform: str, user: Policy) -> str:
        text = self._of_device.get((platform, user))
        if text is None:
            text = self._of_device[platform, user] = devices_json(self._policies, platform, user)
        return text


class OwnRules(NamedTuple):
    """Which rules each user has who has others than everyone. texts: what they are, by their numbers."""

    version: str
    numbers: Mapping[str, str]
    texts: Sequence[str]


@lru_cache(maxsize=2)  # those in force, and those that follow
def own_rules_of(policies: Policies) -> OwnRules:
    """Find them; for tens of thousands of users that takes long enough to do it beside the event loop, once."""
    of_policy: dict[int, str] = {}  # by their ids, as to hash a policy takes longer than to ask for it
    numbers: dict[str, str] = {}
    for policy in policies.users.values():
        if id(policy) not in of_policy:
            of_policy[id(policy)] = numbers.setdefault(own_text(policies, policy), str(len(numbers)))
    users = {user: of_policy[id(policy)] for user, policy in policies.users.items()}
    return OwnRules(digest(*users, *users.values(), *numbers) if users else "", users, list(numbers))


def digest(*parts: object) -> str:
    """A name for these, alike in all processes."""
    told = "\0".join(map(str, parts)).encode(errors="surrogatepass")
    return hashlib.sha1(told, usedforsecurity=False).hexdigest()


def _chosen_by(policies: Policies) -> list[object]:
    """All that decides what a choice comes to."""
    combining, limits = policies.combining, limited(policies)
    may = combining.may
    return [
        sorted((name, repr(policy)) for name, policy in combining.tiers.items()),
        [sorted(may.tiers), may.windows, may.gap, may.quiet_hours, may.send_hours, may.zone, may.mute],
        sorted(combining.also_closed),
        combining.lead_us,
        repr(policies.everyone),
        own_text(policies, policies.everyone),
        [(name, policy_json(of.device)) for name, of in limits.items()],
    ]


def own_text(policies: Policies, policy: Policy) -> str:
    """What stands in Redis of a policy that is not everyone's, see `own_rules.lua`."""
    devices = ",".join(f'"{name}":{devices_json(policies, name, policy)}' for name in limited(policies))
    return f'{{"policy":{policy_json(policy)},"devices":{{{devices}}}}}'


@lru_cache(maxsize=MAX_TEXTS)
def decoded(text: str) -> Preferences:
    """Read a text of Redis; what cannot be read says nothing, and an audit finds it."""
    try:
        return Preferences.decode(text)
    except (ValueError, TypeError):
        return Preferences()


def limited(policies: Policies) -> dict[str, PlatformLimits]:
    """Find the platforms that limit what a device gets."""
    return {name: limits for name, limits in policies.limits.items() if not limits.device.is_empty}


def devices_json(policies: Policies, platform: str, user: Policy) -> str:
    """Encode the limits of a device whose user has this policy, see `limits.lua`."""
    held, bypassing = policies.limits[platform].of_device(user)
    if held.is_empty and not any(c.bypass for c in policies.categories.values()):
        return "false"
    return f"[{'false' if held.is_empty else policy_json(held)},{policy_json(bypassing)}]"


def _on_join(category: Category) -> str | int | bool:
    if category.digest:
        return category.digest.after
    return category.counts and ("collapse" if category.when_blocked == "collapse" else "note")


def share_of(limit: int, partitions: int) -> int:
    """Return a partition's share of what all users have together."""
    return max(1, limit // partitions)


def bucket_us(interval_us: int) -> int:
    """How wide a bucket of a project's interval is, in microseconds."""
    return -(-interval_us // BUCKETS)


@lru_cache(maxsize=1024)
def policy_json(policy: Policy) -> str:
    """A policy as the scripts read it, see `rules.lua`."""
    if policy.is_empty:
        return "{}"
    windows = [number for window in policy.windows for number in (window.limit, window.interval_us)]
    table: dict[str, Any] = {"gap": policy.gap_us, "windows": windows, "horizon": policy.horizon_us}
    if policy.precision_us:
        table |= {"exact_us": policy.exact_us, "bucket_us": policy.precision_us}
    if policy.burst is not None:
        table["burst"] = [policy.burst.limit, policy.burst.every_us]
    if policy.calendar:
        table["calendar"] = [[window.limit, window.unit] for window in policy.calendar]
    if closed := policy.closed:
        week = [WEEK_US]
        table["quiet"] = [[c.from_us, c.to_us, *(week if c.every_us == WEEK_US else ())] for c in closed]
    return ENCODE(table)
