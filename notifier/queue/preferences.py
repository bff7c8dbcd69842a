"""The call by which what a user chose changes, and what waits follows at once."""

from __future__ import annotations

from notifier.scripts.loader import Call, script
from notifier.scripts.records import PreferFields
from notifier.units import from_bytes, to_bytes


def prefer(user: str, before: str, after: str, *, who: str = "", clock: str = "") -> Call[str | None]:
    """Put `after` in the place of `before`; texts of `Preferences.encode`, '' for none.

    The reply is None, or what stands there in place of `before`: then nothing was done. who: changes it, for the log.
    """
    args = PreferFields(clock, *map(to_bytes, (user, before, after, who)))
    return Call(script("prefer"), [], args, lambda reply: None if reply[0] else from_bytes(reply[1]))
