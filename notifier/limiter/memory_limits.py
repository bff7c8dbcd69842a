"""The providers' own limits in this process alone: the twin of `_limits.lua`."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from notifier.limiter.memory import Sends
from notifier.limiter.rule_table import bucket_us

if TYPE_CHECKING:
    from collections.abc import Iterable

    from notifier.limiter.memory_jobs import Entry
    from notifier.policies import Policies
    from notifier.policy import Category, Policy


@dataclass(frozen=True, slots=True)
class Target:
    """A device as the scripts know it."""

    platform: str
    kind: str
    device: str
    route: str


def targets_of(entry: Entry, category: Category) -> list[Target]:
    """The devices that have not answered for good."""
    kinds, _, devices = entry.targets.partition("|")
    own, *of = kinds.split(" ")
    app = category.app if own == "-" else own
    done = json.loads(entry.answered) if entry.answered else {}
    found = []
    for n, (kind, device) in enumerate(zip(of, devices.split(), strict=True)):
        platform, _, letter = kind.partition(":")
        if str(n) not in done:
            found.append(Target(platform, letter, device, f"{platform}/{app}" if app else platform))
    return found


class Limits:
    """What was sent to each device and project. Not safe for threads: who calls holds the limiter's lock."""

    def __init__(self) -> None:
        self._sends: dict[str, Sends] = {}
        self._full: dict[str, int] = {}  # µs at which a device's bucket of collapsible messages is full again
        self._projects: dict[str, Counter[int]] = {}  # messages by the beginning of their bucket

    def device_next(self, policies: Policies, user: str, category: Category, target: Target) -> int:
        """The first µs at which one more may go to this device."""
        at = 0
        sends = self._sends.get(target.device)
        policy = _device_policy(policies, user, category, target)
        if policy is not None and sends is not None:
            at, _ = sends.next_for(policy, 1)
        burst = policies.limits.fcm_collapsible
        if target.kind == "c" and burst is not None and target.device in self._full:
            at = max(at, self._full[target.device] - (burst.limit - 1) * burst.every_us)
        return at

    def project_frees(self, policies: Policies, route: str, cost: int, now: int) -> tuple[int, int] | None:
        """When the project has room for `cost` more, and for how many then; None where it has now."""
        limit = policies.limits.fcm_project
        if limit is None or not route.startswith("fcm"):
            return None
        bucket = bucket_us(limit.interval_us)
        counts = self._projects.setdefault(route, Counter())
        for begins in [begins for begins in counts if begins + bucket + limit.interval_us <= now]:
            del counts[begins]
        left, cost = counts.total(), min(cost, limit.limit)
        if left + cost <= limit.limit:
            return None
        for begins in sorted(counts):
            left -= counts[begins]
            if left + cost <= limit.limit:
                return begins + bucket + limit.interval_us, limit.limit - left
        raise AssertionError("an empty project has room")

    def count(  # noqa: PLR0917 - all of one send
        self, policies: Policies, category: Category, entry: Entry, targets: Iterable[Target], until_us: int, now: int
    ) -> None:
        """Count a send under a lease that ends at `until_us`: at the latest it comes then."""
        limits = policies.limits
        for target in targets:
            policy = _device_policy(policies, entry.user, category, target)
            if policy is not None:
                self._sends.setdefault(target.device, Sends()).record(policy, entry.permit, until_us, now)
            if target.kind == "c" and limits.fcm_collapsible is not None:
                full = max(self._full.get(target.device, 0), now)
                self._full[target.device] = full + limits.fcm_collapsible.every_us + until_us - now
            if limits.fcm_project is not None and target.platform == "fcm":
                bucket = bucket_us(limits.fcm_project.interval_us)
                self._projects.setdefault(target.route, Counter())[now - now % bucket] += 1

    def close(
        self, policies: Policies, permit: str, targets: list[Target], reached_us: int | None, unused_us: int
    ) -> None:
        """What was counted took place by `reached_us`, or never where that is None. unused_us: of its lease."""
        burst = policies.limits.fcm_collapsible
        for target in targets:
            sends = self._sends.get(target.device)
            if sends is not None and reached_us is not None:
                sends.move(permit, reached_us)
            elif sends is not None:
                sends.remove(permit)
            if target.kind == "c" and len(targets) == 1 and burst is not None and target.device in self._full:
                self._full[target.device] -= unused_us + (burst.every_us if reached_us is None else 0)

    def forget(self, now: int) -> None:
        """Drop what no rule can ask for any more."""
        for device in [device for device, sends in self._sends.items() if sends.until_us <= now]:
            del self._sends[device]
        for device in [device for device, full in self._full.items() if full <= now]:
            del self._full[device]


def _device_policy(policies: Policies, user: str, category: Category, target: Target) -> Policy | None:
    policy = None
    if target.platform == "fcm":
        held, bypassing = policies.limits.of_fcm_device(policies.for_user(user))
        policy = bypassing if category.bypass else held
    elif target.platform == "apns" and target.kind == "b":
        policy = policies.limits.apns_background
    return None if policy is None or policy.is_empty else policy
