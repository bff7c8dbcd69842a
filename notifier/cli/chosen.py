"""Print a user's preferences as lines for people."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from notifier.rules.preferences import FOREVER


def chosen_lines(given: Mapping[str, Any]) -> list[str]:
    """A line for each choice. given: `Preferences.as_dict`."""
    lines = [
        f"{name}: {', '.join(value) if isinstance(value, list) else value}"
        for name, value in given.items()
        if name != "mutes"
    ]
    for mute in given.get("mutes", ()):
        until = datetime.fromisoformat(mute["until"]).astimezone(UTC)
        ends = "without end" if until >= FOREVER else f"until {until:%Y-%m-%d %H:%M} UTC"
        lines.append(f"muted {ends}: {', '.join(mute.get('categories', ['all']))} ({mute['what']})")
    return lines
