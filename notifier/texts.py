"""Texts made safe to show: secrets masked, long texts cut, control characters escaped."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

MAX_REASON: Final = 1_000  # characters of a reason that are kept


def mask(token: str) -> str:
    """Shorten a token for a log or an error: enough to tell two tokens apart, never the whole."""
    if token.startswith("{"):  # web push subscriptions begin and end alike, and the rest is secret
        return "…" + hashlib.sha256(token.encode(errors="replace")).hexdigest()[:8]
    return f"{token[:6]}…{token[-2:]}" if len(token) > 12 else "…"  # noqa: PLR2004 - shorter ones would be given away


def readable(text: str, most: int = MAX_REASON) -> str:
    """Cut a long text, and escape lone surrogates, which UTF-8 cannot encode."""
    if len(text) > most:
        text = f"{text[:most]}…"
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


# Characters that move the cursor or change the direction of writing, except the line feed and the tab.
_CONTROL: Final = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def without_controls(text: str) -> str:
    """Escape control characters: a name chosen by a stranger must not steer the terminal."""
    return _CONTROL.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def meant(name: str, known: Iterable[str]) -> str:
    """Suggest the most similar known name, or list the known names."""
    names = list(known)
    close = get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"known are {', '.join(names) or 'none'}"


def seconds_text(seconds: float) -> str:
    """Write a duration for people, in at most two units: '850 ms', '12.3 s', '4 min 10 s', '3 h 05 min', '2 d 4 h'."""
    if seconds < 0.9995:  # noqa: PLR2004 - less than a second when rounded
        return f"{seconds * 1000:.0f} ms"
    if seconds < 59.95:  # noqa: PLR2004 - as above
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    text = f"{days} d {hours} h" if days else f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"
    return text.removesuffix(" 0 h").removesuffix(" 00 min").removesuffix(" 00 s")


def at_most(seconds: float | None) -> str:
    """Write a quantile, which is known only as the upper end of its bucket in a histogram; '' if that is empty."""
    return "" if seconds is None else f"≤ {seconds_text(seconds)}"
