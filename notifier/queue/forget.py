"""The call that deletes everything that Redis keeps of a person."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

from notifier.scripts.loader import Call, script
from notifier.scripts.records import ForgetFields
from notifier.units import from_bytes, to_bytes

AT_ONCE: Final = 250  # looked at in one call
# What happens to the times of sends: deleted, kept under a hash of the user, or left while jobs are in flight.
Sends = Literal["delete", "hide", "leave"]


class ForgottenPage(NamedTuple):
    """Where to go on. cursor: of the next page in this place; '0' at its end. places: to look through after it."""

    cursor: str
    places: list[str]


def forget(
    user: str, categories: Iterable[str], sends: Sends, place: str = "", cursor: str = "0", *, clock: str = ""
) -> Call[ForgottenPage]:
    """Delete one page of a user's data. categories: the configured ones. place: '' to begin."""
    fields = ForgetFields(clock, to_bytes(user), to_bytes(place), cursor, AT_ONCE, sends, salt=secrets.token_hex(16))

    def decode(reply: list[Any]) -> ForgottenPage:
        return ForgottenPage(from_bytes(reply[0]), [*map(from_bytes, reply[1])])

    return Call(script("forget"), [], [*fields, *categories], decode)
