"""Convert durations such as `1500ms` or `10m` to microseconds and back; write numbers for people."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from fractions import Fraction
from typing import Any, Final

UNITS: Final = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}
WORDS: Final = {"second": "s", "minute": "m", "hour": "h", "day": "d", "week": "w"}

SHORTEST_INTERVAL_US: Final = UNITS["ms"]
LONGEST_US: Final = 366 * UNITS["d"]
# An exact window keeps one entry for each send, so its limit also bounds its memory.
LARGEST_LIMIT: Final = 1_000_000_000_000

DURATION: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,15})?)\s*([^\s0-9.]*)")
_SHOWN: Final = 40


def moment(us: float) -> datetime:
    """The time at `us` microseconds since the epoch, in UTC."""
    return datetime.fromtimestamp(us / 1_000_000, tz=UTC)


def clock_us(reply: Sequence[Any]) -> int:
    """Redis's reply to TIME in µs."""
    return int(reply[0]) * 1_000_000 + int(reply[1])


def checked_limit(limit: object) -> int:
    """Check the limit of a rule. Raises TypeError if it is no whole number, ValueError if it is out of bounds."""
    if type(limit) is not int:
        raise TypeError(f"a limit is a whole number, not {limit!r}")
    if not 1 <= limit <= LARGEST_LIMIT:
        raise ValueError(f"a limit must be from 1 to {LARGEST_LIMIT}, is {limit}")
    return limit


def interval_of(
    rule: str, interval: str | timedelta | None, us: int | None, *, least_us: int = SHORTEST_INTERVAL_US
) -> int:
    """The interval of a rule in µs, given as `interval` or as `us`. rule: how the rule begins in Python, for errors."""
    if (interval is None) == (us is None):
        raise TypeError(f"give one interval, as text or as a timedelta: {rule}, '1m')")
    if isinstance(interval, str | timedelta):
        us = duration_us(interval)
    elif interval is not None:
        raise TypeError(
            f"an interval is text or a timedelta, not {interval!r}: a bare number has no unit; write {rule}, '1m')"
        )
    if type(us) is not int:
        raise TypeError(f"an interval in microseconds is a whole number, not {us!r}")
    if us < least_us:
        raise ValueError(
            f"an interval must be at least {format_duration(least_us)}, is {us} µs; write for example {rule}, '1m')"
        )
    return us


def duration_us(value: str | timedelta) -> int:
    """The microseconds, from 0 to 366 days, in text such as `1.5s` or a timedelta; TypeError for a bare number."""
    if isinstance(value, timedelta):
        return _within(value // timedelta(microseconds=1), value, 0, LONGEST_US)
    if isinstance(value, str):
        return parse_duration(value)
    raise TypeError(f"a duration is text such as '1.5s' or a timedelta, not {value!r}: a bare number has no unit")


def counted(number: int, one: str, more: str = "") -> str:
    """A number with what it counts: '1 user', '2,000 users'. more: the plural, if it is not `one` and an s."""
    return f"{number:,} {one if number == 1 else more or one + 's'}"


def shown(text: object) -> str:
    """Quote a value for an error. A long value is cut: it may be a pasted file or key."""
    quoted = str(text)
    return repr(quoted if len(quoted) <= _SHOWN else quoted[: _SHOWN - 20] + "…")


def parse_duration(text: str, *, least_us: int = 0, max_us: int = LONGEST_US) -> int:
    """Return the microseconds in `1500ms`, `1.5s`, `10m`, `1h`, `2d` or `1w`, rounded up.

    Raise ValueError, which says what would be right, for another form or a duration outside `least_us..max_us`.
    """
    text = text.strip()
    if text.startswith("-"):
        raise ValueError(f"{shown(text)}: a duration cannot be negative; the least is {format_duration(least_us)}")
    match = DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"{shown(text)} is not a duration; write a number and a unit, such as 1500ms, 1.5s or 10m")
    number, unit = match.groups()
    if not unit:
        raise ValueError(
            f"{shown(text)}: a number without a unit; write {number}ms or {number}s, or use {_short_units()}"
        )
    unit = unit_of(unit)
    if unit not in UNITS:
        raise ValueError(f"{shown(text)}: unknown unit {shown(unit)}; use {_short_units()}")
    return _within(math.ceil(Fraction(number) * UNITS[unit]), text, least_us, max_us)


def _within(us: int, said: object, least_us: int, max_us: int) -> int:
    if not least_us <= us <= max_us:
        bounds = f"from {format_duration(least_us)} to {format_duration(max_us)}"
        raise ValueError(f"{shown(said)} is outside what is allowed; give {bounds}")
    return us


def format_duration(us: int) -> str:
    """Write `us` microseconds exactly, as `parse_duration` reads it: `1500ms`, `10m`, `7d`, `0s`."""
    if us < 0:
        raise ValueError(f"{us} µs: a duration cannot be negative")
    if us == 0:
        return "0s"
    # No weeks: "14d" and "366d" compare at a glance where "2w" and "366d" do not.
    for unit in ("d", "h", "m", "s", "ms"):
        if us % UNITS[unit] == 0:
            return f"{us // UNITS[unit]}{unit}"
    return f"{us // 1_000}.{us % 1_000:03d}".rstrip("0") + "ms"


def unit_of(unit: str) -> str:
    """The unit that a word means: h for hour and hours."""
    return WORDS.get(unit.removesuffix("s"), unit) if unit not in UNITS else unit


def _short_units() -> str:
    *rest, last = UNITS
    return f"{', '.join(rest)} or {last}"


def from_bytes(raw: bytes | str) -> str:
    """Decode bytes of Redis. Bytes that are not UTF-8 become lone surrogates, which `to_bytes` turns back."""
    return raw.decode("utf-8", "surrogateescape") if isinstance(raw, bytes) else raw


def to_bytes(text: str) -> bytes:
    """Undo `from_bytes`. Never fails: any other lone surrogate is written as its escape."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        return text.encode("utf-8", "backslashreplace")
