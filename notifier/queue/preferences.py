"""The call that changes a user's preferences. Waiting notifications follow them at once."""

from __future__ import annotations

from notifier.scripts.loader import Call, script
from notifier.scripts.records import PreferFields
from notifier.units import from_bytes, to_bytes


def prefer(user: str, before: str, after: str, *, who: str = "", clock: str = "") -> Call[str | None]:
    """Replace `before` by `after`: texts of `Preferences.encode`, '' for none.

    The reply is None; or the text in Redis if it is not `before`, and nothing was done. who: the person, for the log.
    """
    args = PreferFields(clock, *map(to_bytes, (user, before, after, who)))
    return Call(script("prefer"), [], args, lambda reply: None if reply[0] else from_bytes(reply[1]))
