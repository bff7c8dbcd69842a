"""The header fields of draft-ietf-httpapi-ratelimit-headers-10, Retry-After, and the body of a refusal (RFC 9457)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

from notifier.limiter.protocol import BLOCKED, Hold
from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.kinds.gap import Gap
from notifier.rules.policy import Policy
from notifier.units import UNITS

SECOND_US: Final = UNITS["s"]
PROBLEMS: Final = "https://iana.org/assignments/http-problem-types#"
PROBLEM_JSON: Final = "application/problem+json"


def policy_items(name: str, policy: Policy) -> Iterator[str]:
    for rule, quota, interval_us in _rules(policy):
        item = f'"{item_name(name, policy, rule)}";q={quota}'
        # `w` is in whole seconds, so it is left out for any other interval.
        yield item if interval_us % SECOND_US else f"{item};w={interval_us // SECOND_US}"


def limit_item(name: str, policy: Policy, rule: str, remaining: int, reset_us: int) -> str:
    """An item of RateLimit: how many requests a rule leaves, and in how many seconds it allows more."""
    return f'"{item_name(name, policy, rule)}";r={remaining};t={whole_seconds(reset_us)}'


def familiar(policy: Policy, rule: str, remaining: int, reset_us: int) -> list[tuple[str, str]]:
    """The three fields X-RateLimit-…, which many programs know. Reset is in seconds since the epoch."""
    quota = next((quota for each, quota, _ in _rules(policy) if each == rule), 0)
    values = {"Limit": quota, "Remaining": remaining, "Reset": whole_seconds(reset_us) + int(time.time()) + 1}
    return [(f"X-RateLimit-{name}", str(value)) for name, value in values.items()]


def item_name(name: str, policy: Policy, rule: str) -> str:
    """The name of a rule: the limit's, if it has no other rule; else as `login-1m`, `login-gap`, `login-burst`."""
    rules = [each for each, _, _ in _rules(policy)]
    if len(rules) == 1 or rule not in rules:
        return name
    if rule.startswith(("gap", "burst")):
        return f"{name}-{rule.partition(' ')[0]}"
    interval = rule.partition("/")[2]
    same = [each for each in rules if each.partition("/")[2] == interval]
    return f"{name}-{interval}" if len(same) == 1 else f"{name}-{rule.replace('/', '-per-')}"


def whole_seconds(us: int) -> int:
    """Round up, so that no client asks again too early."""
    return -(-us // SECOND_US)


def quota_exceeded(names: Sequence[str], holds: Sequence[Hold]) -> dict[str, Any]:
    """The body of a 429."""
    left = whole_seconds(max(hold.time_left_us for hold in holds))
    why = BLOCKED if [*names] == [BLOCKED] else f"{' and '.join(names)} used up"
    return {
        "type": f"{PROBLEMS}quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": f"{why}; try again in {left} s",
        "violated-policies": list(names),
    }


def no_answer() -> dict[str, Any]:
    """The body of a 503: the limiter cannot be asked."""
    return {
        "type": f"{PROBLEMS}temporary-reduced-capacity",
        "title": "Request cannot be satisfied due to temporary server capacity constraints",
        "status": 503,
        "detail": "the rate limit cannot be checked at the moment; try again in 1 s",
    }


def wrong_cost(name: str, why: str) -> dict[str, Any]:
    """The body of a 400: the limit never admits the cost of the request."""
    return {"type": "about:blank", "title": "Bad Request", "status": 400, "detail": f"{name}: {why}"}


def as_json(problem: dict[str, Any]) -> bytes:
    return json.dumps(problem).encode()


def _rules(policy: Policy) -> Iterator[tuple[str, int, int]]:
    """For each rule: its text in a `Hold`, its quota, and its interval in µs."""
    for rule in policy.listed:
        quota = 1 if isinstance(rule, Gap) else rule.max_cost
        length_us = 1 if isinstance(rule, CalendarWindow) else rule.horizon_us  # no fixed length: no `w`
        yield str(rule), quota, length_us
