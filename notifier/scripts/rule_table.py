"""The rule table: the rules for the scripts, as JSON that is made once."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, Final, NamedTuple

from notifier.rules.category import LANES, Category, PlatformLimits
from notifier.rules.hours import WEEK_US
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy, Window
from notifier.rules.preferences import Preferences
from notifier.rules.zones import VERSION
from notifier.scripts.keys import redis_key

MAX_TEXTS: Final = 10_000  # decoded texts of preferences in memory
ENCODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
FORMAT: Final = 1  # of @own_rules and @chosen; raise it with each change of their values
BUCKETS: Final = 60  # in a project's interval; counting may be stricter than exact by one bucket, never looser


class RuleTable:
    """The rules for *pull* and *settle*; `rule_table.lua` and `limits.lua` describe the fields.

    text: the table.
    own_rules: the version of the users' own rules, the same in all processes with these rules; '' if there are none.
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
        """lead_us: in place of the policies' own, for a worker whose lease differs from that in the file.

        version: of rules that may change; see `leaders.follow`.
        partitions: how many the fleet has; each gets its share of limits for all users together.
        """
        self._policies, self._share, self._own = policies, partitions, own_rules_of(policies)
        self.own_rules = self._own.version
        self.zones = redis_key("zones") if policies.uses_local_time else redis_key("zones", "users")
        lead = policies.lead_us if lead_us is None else lead_us
        clock = {"version": VERSION, "zone": policies.zone, "lead_us": lead}
        self._clock_of_users = {**clock, "of_users": True}
        self.chosen_version = digest(_chosen_by(policies), clock, self.own_rules)
        categories = policies.categories.values()
        rest: dict[str, Any] = {
            "categories": {c.name: self._of_category(c) for c in categories},
            "lanes": [*LANES, *(lane for lane in lanes if lane not in LANES)],
            "chosen": self.chosen_version,
        }
        some: dict[str, Any] = {
            "version": version,
            "own": self.own_rules,
            "clock": clock if policies.uses_local_time else None,
            "bypasses": any(c.bypass for c in categories),
            **self._limits(),
        }
        rest |= {name: of for name, of in some.items() if of}
        devices = ",".join(f'"{name}":[{of}]' for name, of in _of_device(policies, policies.everyone).items())
        users = f'"users":[{policy_json(policies.everyone)}]' + (f',"devices":{{{devices}}}' if devices else "")
        self.text = f"{{{users},{json.dumps(rest, separators=(',', ':'))[1:-1]}}}"

    def own_fields(self) -> Iterator[tuple[str, str]]:
        """The fields and values of @own_rules, see `users_rules.lua`."""
        yield from ((str(number), text) for number, text in enumerate(self._own.texts))
        yield from ((f":{user}", number) for user, number in self._own.numbers.items())

    def chosen_field(self, user: str, text: str) -> tuple[str, str]:
        """A field of @chosen and its value, see `users_rules.lua`. text: the user's preferences, as Redis has them."""
        chosen, number = self._policies.chosen(user, decoded(text)), self._own.numbers.get(user, "")
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

    def _of_category(self, category: Category) -> dict[str, Any]:
        joins = category.counts and ("collapse" if category.when_blocked == "collapse" else "note")
        some = {
            "bypass": category.bypass,
            "cost": category.cost > 1 and category.cost,
            "app": category.app,
            "overall": category.overall and not category.bypass and self._of_all(category.overall),
            "ignores_quiet": category.ignores_quiet,
            "digest": category.digest and category.digest.within_us,
            "drops": category.when_blocked == "drop",
            "join": category.digest.after if category.digest else joins,
        }
        return {"policy": _policy_table(category.policy), **{name: of for name, of in some.items() if of}}

    def _limits(self) -> dict[str, Any]:
        limits = self._policies.limits.items()
        projects = ((name, of.project) for name, of in limits if of.project)
        return {
            "limited": bool(limits),
            "background": {n: json.loads(policy_json(of.background)) for n, of in limits if not of.background.is_empty},
            "collapsible": {n: [of.collapsible.limit, of.collapsible.every_us] for n, of in limits if of.collapsible},
            "projects": {name: [*self._of_all(of), bucket_us(of.interval_us)] for name, of in projects},
        }

    def _of_all(self, window: Window) -> list[int]:
        return [share_of(window.limit, self._share), window.interval_us]


class OwnRules(NamedTuple):
    """The users with rules of their own. numbers: user -> number of these rules. texts: the rules, by their numbers."""

    version: str
    numbers: Mapping[str, str]
    texts: Sequence[str]


@lru_cache(maxsize=2)  # the policies in force, and the next ones
def own_rules_of(policies: Policies) -> OwnRules:
    """Find users with own rules. For tens of thousands of users, call it first in a thread: it blocks for long."""
    of_policy: dict[int, str] = {}  # by `id`, as hashing a policy takes longer
    # By the policy's repr, too: preferences combine with more than `own_text` has.
    numbers: dict[tuple[str, str], str] = {}
    for policy in policies.users.values():
        if id(policy) not in of_policy:
            both = own_text(policies, policy), repr(policy)
            of_policy[id(policy)] = numbers.setdefault(both, str(len(numbers)))
    users = {user: of_policy[id(policy)] for user, policy in policies.users.items()}
    version = digest(*users, *users.values(), *chain.from_iterable(numbers)) if users else ""
    return OwnRules(version, users, [text for text, _ in numbers])


@lru_cache(maxsize=MAX_TEXTS)
def decoded(text: str) -> Preferences:
    """Read preferences from Redis. A text that cannot be read counts as none; an audit finds it."""
    try:
        return Preferences.decode(text)
    except (ValueError, TypeError):
        return Preferences()


def digest(*parts: object) -> str:
    """A name for these parts, the same in all processes."""
    told = "\0".join(map(str, (FORMAT, *parts))).encode(errors="surrogatepass")
    return hashlib.sha1(told, usedforsecurity=False).hexdigest()


def _chosen_by(policies: Policies) -> list[object]:
    """Everything besides the preferences that decides which rules result from them."""
    return [
        sorted((name, repr(policy)) for name, policy in policies.may_choose.items()),
        sorted(policies.also_closed),
        policies.lead_us,
        repr(policies.everyone),
        own_text(policies, policies.everyone),
        [(name, policy_json(of.device)) for name, of in _limited(policies).items()],
        any(category.bypass for category in policies.categories.values()),
        policies.uses_local_time,
    ]


def own_text(policies: Policies, policy: Policy) -> str:
    """Encode a policy that is not everyone's, as in @own_rules, see `users_rules.lua`."""
    devices = ",".join(f'"{name}":{of}' for name, of in _of_device(policies, policy).items())
    return f'{{"policy":{policy_json(policy)},"devices":{{{devices}}}}}'


def _limited(policies: Policies) -> dict[str, PlatformLimits]:
    return {name: limits for name, limits in policies.limits.items() if not limits.device.is_empty}


def _of_device(policies: Policies, user: Policy) -> dict[str, str]:
    """The limits of a device whose user has this policy, by platform; see `limits.lua`."""
    found = {}
    for name, limits in _limited(policies).items():
        held, bypassing = limits.of_device(user)
        if held.is_empty and not any(c.bypass for c in policies.categories.values()):
            found[name] = "false"
        else:
            found[name] = f"[{'false' if held.is_empty else policy_json(held)},{policy_json(bypassing)}]"
    return found


def share_of(limit: int, partitions: int) -> int:
    """A partition's share of a limit for all users together."""
    return max(1, limit // partitions)


def bucket_us(interval_us: int) -> int:
    """The width of a bucket of a project's interval, in microseconds."""
    return -(-interval_us // BUCKETS)


@lru_cache(maxsize=1024)
def policy_json(policy: Policy) -> str:
    """A policy as JSON for the scripts, see `rules.lua`."""
    return ENCODE(_policy_table(policy))


def _policy_table(policy: Policy) -> dict[str, Any]:
    if policy.is_empty:
        return {}
    table: dict[str, Any] = {"gap": 0, "windows": [], "horizon": policy.horizon_us}
    for rule in policy.rules:
        rule.write(table)
    if policy.precision_us:
        table |= {"exact_us": policy.exact_us, "bucket_us": policy.precision_us}
    if policy.calendar:
        table["calendar"] = [[window.limit, window.unit] for window in policy.calendar]
    if closed := policy.closed:
        week = [WEEK_US]
        table["quiet"] = [[c.from_us, c.to_us, *(week if c.every_us == WEEK_US else ())] for c in closed]
    return table
