"""Before rates are applied: what changes, and what would be lost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from notifier.settings.rates import SECTIONS, differences


@dataclass(frozen=True, slots=True)
class Change:
    """From the rates in force to others. lines: what changes, a line for each entry. lost: sections that would go."""

    lines: list[str]
    lost: list[str]


def change_to(before: Mapping[str, Any], after: Mapping[str, Any]) -> Change:
    """Return what would change."""
    lost = [name for name in SECTIONS if before.get(name) and name not in after]
    return Change(list(differences(before, after)), lost)
