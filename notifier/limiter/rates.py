"""Rates as people write them for the limiter: `5/minute; 100/day; gap 200ms; burst 20 then 1/3m`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final, TypeAlias

from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.policy import Burst, Policy, Window
from notifier.rules.rate_text import RATES_FORM, Rule, parse_rates, rules_in_text, together
from notifier.units import shown

Rates: TypeAlias = "str | Policy | Window | CalendarWindow | Burst | Iterable[str | Window | CalendarWindow | Burst]"
Limits: TypeAlias = Mapping[str, Rates] | Callable[[], Mapping[str, Rates]]

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")


def as_policy(rates: Rates, named: Callable[[], Mapping[str, Rates]] = dict) -> Policy:
    """Return the policy of `rates`: text, a name in `named()`, a Policy, a rule, or a list of texts and rules.

    Raises TypeError if `rates` is of another type, and ValueError, saying what would be right, for a wrong rate.
    """
    if isinstance(rates, str):
        return as_policy(_named(rates.strip(), named())) if is_name(rates) else parse_rates(rates)
    if isinstance(rates, Policy):
        return _checked(rates)
    if isinstance(rates, Window | CalendarWindow | Burst):
        return _checked(together([rates]))
    if isinstance(rates, Iterable) and not isinstance(rates, Iterator):  # a second call would find it empty
        if rules := [rule for part in rates for rule in _rules_in(part)]:
            return _checked(together(rules))
        raise ValueError(f"rates are empty, and Policy() is no rules; {RATES_FORM}")
    kind = type(rates).__name__
    raise TypeError(f"rates must be text, a Policy, a Window, a Burst or a list of these, is {kind}; {RATES_FORM}")


def is_name(rates: str) -> bool:
    return _NAME.fullmatch(rates.strip()) is not None


def _rules_in(part: object) -> Iterable[Rule]:
    if isinstance(part, str):
        return rules_in_text(part)
    if isinstance(part, Window | CalendarWindow | Burst):
        return [part]
    raise TypeError(f"rates hold text, Window or Burst, not {type(part).__name__}; {RATES_FORM}")


def _named(name: str, named: Mapping[str, Rates]) -> Rates:
    if name not in named:
        known = f"known are {', '.join(sorted(named))}" if named else "no limits are configured"
        raise ValueError(f"no limit is named {shown(name)}: {known}; or {RATES_FORM}")
    return named[name]


@lru_cache(maxsize=1024)
def _checked(policy: Policy) -> Policy:
    """Raise ValueError for rules that only the workers apply."""
    if policy.quiet or policy.send:
        raise ValueError("quiet hours and send hours are for the notifications of users, not for the limiter")
    if not policy.is_exact:
        raise ValueError("precision is for the notifications of users: every window of the limiter is exact")
    return policy
