"""Rules by their marks in Redis, as `rules.lua` writes them."""

from __future__ import annotations

import re
from typing import Final

from notifier.units import format_duration

_MARK: Final = re.compile(r"g(?P<gap>\d+)|(?P<burst>t?)(?P<limit>\d+)/(?P<interval>\w+)")


def rule_words(mark: str) -> str:
    """Return the text of the rule that a mark names, as `str` of the rule writes it; or ''."""
    found = _MARK.fullmatch(mark)
    if found is None:
        return ""
    gap, burst, limit, interval = found.groups()
    if gap:
        return f"gap {format_duration(int(gap))}"
    per = format_duration(int(interval)) if interval.isdigit() else f"calendar-{interval}"
    return f"burst {limit} then 1/{per}" if burst else f"{limit}/{per}"
