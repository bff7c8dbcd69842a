"""The call by which all that is kept of a person goes."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from typing import Any, Final, Literal, NamedTuple

from notifier.scripts.loader import Call, script
from notifier.scripts.records import ForgetFields
from notifier.units import from_bytes, to_bytes

AT_ONCE: Final = 250  # looked at in one call
# What becomes of when something was sent: it goes, stands under a hash of the user, or stays for what is in flight.
Sends = Literal["delete", "hide", "leave"]


class ForgottenPage(NamedTuple):
    """Say what a page has left. cursor: to go on from; '0' at the end. places: to look through after it."""

    cursor: str
    places: list[str]


def forget(
    user: str, categories: Iterable[str], sends: Sends, place: str = "", cursor: str = "0", *, clock: str = ""
) -> Call[ForgottenPage]:
    """Take a page of what is kept of a user away. categories: that are configured. place: '' to begin."""
    fields = ForgetFields(clock, to_bytes(user), to_bytes(place), cursor, AT_ONCE, sends, salt=secrets.token_hex(16))

    def decode(reply: list[Any]) -> ForgottenPage:
        return ForgottenPage(from_bytes(reply[0]), [*map(from_bytes, reply[1])])

    return Call(script("forget"), [], [*fields, *categories], decode)
