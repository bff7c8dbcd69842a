"""Pauses: people stop sending, and resume it. `routes.lua` keeps pauses beside the circuits of the routes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from notifier.queue.circuits import SCOPES, Change, Held, circuit, find_holds
from notifier.scripts.loader import Call
from notifier.scripts.records import CircuitFields
from notifier.store.exchange import Exchange
from notifier.units import to_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable


def pause_name(what: str) -> str:
    """The name in `routes.lua` of a pause: of 'all', 'category:…', 'user:…', 'lane:…' or 'route:…'.

    Raises ValueError.
    """
    scope, colon, of = what.partition(":")
    if what == "all":
        return "all:"
    if scope not in SCOPES or not colon or not of:
        raise ValueError(f"{what!r}: give all, category:NAME, user:ID, lane:NAME or route:NAME")
    return of if scope == "route" else what


def pause(name: str, who: str, reason: str, lasts_us: int) -> Call[Change]:
    """Pause a `pause_name`. Notifications keep their place and their expiry. lasts_us: 0 is until it is resumed."""
    return circuit(CircuitFields("", to_bytes(who), to_bytes(name), "pause", to_bytes(reason), lasts_us))


def resume(name: str, who: str) -> Call[Change]:
    """Resume a `pause_name`. The reply is '' if it was not paused."""
    return circuit(CircuitFields("", to_bytes(who), to_bytes(name), "resume"))


def find_pauses() -> Exchange[list[Held]]:
    """All pauses: routes by their names, others by the names that `is_pause` recognises."""
    return [held for held in (yield from find_holds()) if held.kind == "paused"]


def which_holds(pauses: Iterable[Held], user: str, category: str, lane: str) -> Held | None:
    """The longest of these pauses that holds a user's notifications of a category and lane, whatever their route."""
    names = {"all:", f"lane:{lane}", f"category:{category}", f"user:{user}"}
    found = [held for held in pauses if held.route in names]
    return max(found, key=lambda held: (held.next_at is None, held.next_at), default=None)
