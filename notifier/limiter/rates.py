"""Rates as people write them for the limiter: `5/minute; 100/day; gap 200ms; burst 20 then 1/3m`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Final, TypeAlias

from notifier.rules.policy import Burst, Policy, Window
from notifier.units import SHORTEST_INTERVAL_US, parse_duration, parse_window, shown

Rates: TypeAlias = "str | Policy | Window | Burst | Iterable[str | Window | Burst]"
Limits: TypeAlias = Mapping[str, Policy] | Callable[[], Mapping[str, Policy]]

FORM: Final = "write for example '5/minute; 100/day; gap 200ms; burst 20 then 1/3m'"
_BURST: Final = re.compile(r"burst\s+([0-9]{1,15})\s+then\s+1/(.+)")
_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def as_policy(rates: Rates, named: Callable[[], Mapping[str, Policy]] = dict) -> Policy:
    """Return the policy that `rates` are: text, a name of `named()`, rules, or several of these that hold together.

    Raises TypeError for what is no rate at all, and ValueError, saying what would be right, for a wrong one.
    """
    if isinstance(rates, str):
        return _checked(_named(rates.strip(), named())) if is_name(rates) else parse_rates(rates)
    if isinstance(rates, Policy):
        return _checked(rates)
    if isinstance(rates, Window | Burst):
        return _checked(_together([rates]))
    if isinstance(rates, Iterable):
        return _checked(_together([rule for part in rates for rule in _rules_in(part)]))
    raise TypeError(f"rates must be text, a Policy, a Window or a Burst, is {type(rates).__name__}; {FORM}")


def is_name(rates: str) -> bool:
    """Whether text is the name of rates that are configured."""
    return _NAME.fullmatch(rates.strip()) is not None


@lru_cache(maxsize=1024)
def parse_rates(text: str) -> Policy:
    """Return the policy in text: parts with semicolons or commas between, each a window, a gap or a burst."""
    parts = [part.strip() for part in re.split(r"[;,]", text)]
    if not any(parts):
        raise ValueError(f"{shown(text)} holds no rate; {FORM}")
    return _together([_part(part) for part in parts if part])


def _part(text: str) -> Window | Burst | int:
    """A window, a burst, or the µs of a gap."""
    if text.startswith("gap "):
        return parse_duration(text[4:], least_us=SHORTEST_INTERVAL_US)
    if text.startswith("burst"):
        match = _BURST.fullmatch(text)
        if match is None:
            raise ValueError(f"{shown(text)} is not a burst; write 'burst 20 then 1/3m'")
        return Burst(int(match[1]), every_us=parse_duration(match[2], least_us=SHORTEST_INTERVAL_US))
    return parse_window(text)


def _rules_in(part: object) -> Iterable[Window | Burst | int]:
    if isinstance(part, str):
        return [_part(text.strip()) for text in re.split(r"[;,]", part) if text.strip()]
    if isinstance(part, Window | Burst):
        return [part]
    raise TypeError(f"rates hold text, Window or Burst, not {type(part).__name__}; {FORM}")


def _together(rules: Iterable[Window | Burst | int]) -> Policy:
    windows, bursts, gaps = [], [], []
    for rule in rules:
        if isinstance(rule, Window):
            windows.append(rule)
        elif isinstance(rule, Burst):
            bursts.append(rule)
        else:
            gaps.append(rule)
    if len(bursts) > 1 or len(gaps) > 1:
        raise ValueError("rates hold one gap and one burst at most; of two the stricter would do")
    return Policy(tuple(windows), gaps[0] if gaps else 0, bursts[0] if bursts else None)


def _named(name: str, named: Mapping[str, Policy]) -> Policy:
    if name not in named:
        known = f"known are {', '.join(sorted(named))}" if named else "no limits are configured"
        raise ValueError(f"no limit is named {shown(name)}: {known}; or {FORM}")
    return named[name]


@lru_cache(maxsize=1024)
def _checked(policy: Policy) -> Policy:
    """Raise for rules that only the workers keep."""
    if policy.goes_by_clock:
        raise ValueError("quiet hours and calendar windows need a user's time zone, which the limiter does not have")
    return policy
