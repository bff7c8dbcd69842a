"""The call by which all that is kept of a person goes."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

from notifier.queue.history import history_keys
from notifier.scripts.keys import OF_SCOPE, OF_USER, user_key
from notifier.scripts.loader import Call, script
from notifier.scripts.records import ForgetFields
from notifier.units import from_bytes, to_bytes

AT_ONCE: Final = 250  # looked at in one call
SENDS: Final = frozenset({"sent", "counts", "burst"})  # when something was sent, and no more
# What becomes of these: they go, they stand under a hash of the user, or they stay for what is in flight.
Sends = Literal["delete", "hide", "leave"]


class ForgottenPage(NamedTuple):
    """Say what a page has left. cursor: to go on from; '0' at the end. places: to look through after it."""

    cursor: str
    places: list[str]


def keys_of(user: str, categories: Iterable[str], *, with_sends: bool) -> list[str]:
    """The keys of a user beside what waits. with_sends: also those by which the limits go on to hold."""
    scoped = [name for name in OF_SCOPE if with_sends or name not in SENDS]
    of_user = [user_key(name, user) for name in (*OF_USER, *scoped)]
    of_categories = [user_key(name, user, category) for name in scoped for category in categories]
    return [*of_user, *of_categories, *history_keys(user)]


def forget(
    user: str, keys: Iterable[str], sends: Sends, place: str = "", cursor: str = "0", *, clock: str = ""
) -> Call[ForgottenPage]:
    """Take a page of what is kept of a user away. place: '' to begin, where the keys are deleted."""
    fields = ForgetFields(clock, to_bytes(user), to_bytes(place), cursor, AT_ONCE, sends, salt=secrets.token_hex(16))

    def decode(reply: list[Any]) -> ForgottenPage:
        return ForgottenPage(from_bytes(reply[0]), [*map(from_bytes, reply[1])])

    return Call(script("forget"), [], [*fields, *map(to_bytes, keys)], decode)
