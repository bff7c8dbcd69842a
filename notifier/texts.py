"""Texts as people may see them: secrets masked, long ones cut, nothing that steers a terminal."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

MAX_REASON: Final = 1_000  # characters of a reason that are kept


def mask(token: str) -> str:
    """A token as it may appear in a log or an error: enough to tell two apart, never the whole."""
    if token.startswith("{"):  # a web push subscription: all begin and end alike, and what is between is secret
        return "…" + hashlib.sha256(token.encode(errors="replace")).hexdigest()[:8]
    return f"{token[:6]}…{token[-2:]}" if len(token) > 12 else "…"  # noqa: PLR2004 - shorter ones would be given away


def readable(text: str, most: int = MAX_REASON) -> str:
    """The same text, as any log and any script can take it: what is no Unicode as escapes, and cut where it is long."""
    if len(text) > most:
        text = f"{text[:most]}…"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


# What moves the cursor or turns the direction of writing; line breaks and tabs are left.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def without_controls(text: str) -> str:
    """The same text, with what would steer a terminal written as an escape: anybody may have named it."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def meant(name: str, known: Iterable[str]) -> str:
    """Which name may have been meant, or which there are."""
    names = list(known)
    close = get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(names) or 'none'}"


def seconds_text(seconds: float) -> str:
    """How long, for people, in at most two units: '850 ms', '12.3 s', '4 min 10 s', '3 h 05 min', '2 d 4 h'."""
    if seconds < 0.9995:  # noqa: PLR2004 - less than a second when rounded
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:  # noqa: PLR2004 - as above
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    text = f"{days} d {hours} h" if days else f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
    return text.removesuffix(" 0 h").removesuffix(" 00 min").removesuffix(" 00 s")
