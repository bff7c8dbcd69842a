"""Preferences: the choices of users, such as in an app's settings, and the rules that follow from them.

Chosen windows, a chosen gap and chosen quiet hours hold beside the configured ones. A tier that users may not choose,
or no longer, counts as not chosen.
"""

from __future__ import annotations

import json
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, get_args

from notifier.rules.calendar_windows import CalendarWindow, parse_calendar_window
from notifier.rules.hours import Hours, parse_hours, text_of
from notifier.rules.kinds.window import Window, parse_window
from notifier.rules.policy import Policy
from notifier.rules.zones import DEFAULT_ZONE, check_zone
from notifier.units import duration_us, format_duration, parse_duration

What = Literal["hold", "drop"]

FOREVER: Final = datetime(2199, 1, 1, tzinfo=UTC)  # the end of a mute without an end
MAX_WINDOWS: Final = 5
MAX_MUTES: Final = 20


@dataclass(frozen=True, slots=True)
class Mute:
    """A mute: nothing of these categories (None: all) is sent until a time.

    what: `hold` lets notifications wait until then, `drop` ends them at once.
    """

    until: datetime = FOREVER
    categories: tuple[str, ...] | None = None
    what: What = "hold"

    def holds(self, category: str, now_us: int) -> bool:
        """Whether a notification of this category waits for it, or is dropped by it."""
        return (self.is_endless or self.until_us > now_us) and (self.categories is None or category in self.categories)

    @property
    def is_endless(self) -> bool:
        """Whether it holds until it is taken back."""
        return self.until >= FOREVER

    @property
    def until_us(self) -> int:
        """`until`, in µs since the epoch."""
        return round(self.until.timestamp() * 1_000_000)


@dataclass(frozen=True, slots=True)
class Preferences:
    """The choices of one user. None or () means that nothing was chosen."""

    tier: str | None = None
    windows: tuple[Window | CalendarWindow, ...] | None = None
    gap_us: int | None = None
    quiet_hours: tuple[Hours, ...] | None = None
    zone: str | None = None
    mutes: tuple[Mute, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing is chosen."""
        return self == Preferences()

    def as_dict(self) -> dict[str, Any]:
        """Return the choices as plain data, named as in `Notifier.users.set`, and `mutes`."""
        given: dict[str, Any] = {"tier": self.tier, "zone": self.zone}
        given["windows"] = None if self.windows is None else [str(window) for window in self.windows]
        given["gap"] = None if self.gap_us is None else format_duration(self.gap_us)
        given["quiet_hours"] = None if self.quiet_hours is None else text_of(self.quiet_hours)
        given["mutes"] = [_mute_as_dict(mute) for mute in self.mutes] or None
        return {name: value for name, value in given.items() if value is not None}

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> Preferences:
        """Make them from `as_dict`, or from a caller's values. Raises ValueError as '<field>: <why>'."""
        if unknown := given.keys() - FIELDS:
            raise ValueError(f"{min(map(str, unknown))}: is not a preference; known are {', '.join(sorted(FIELDS))}")
        made: dict[str, Any] = {}
        for name, value in given.items():
            if value is None:
                continue
            try:
                made["gap_us" if name == "gap" else name] = FIELDS[name](value)
            except (ValueError, TypeError) as error:
                raise ValueError(f"{name}: {error}") from None
        return cls(**made)

    def encode(self) -> str:
        """Return them as Redis has them; '' if nothing is chosen."""
        return "" if self.is_empty else json.dumps(self.as_dict(), ensure_ascii=False, separators=(",", ":"))

    @classmethod
    def decode(cls, text: str | bytes) -> Preferences:
        """Read them as Redis has them. Raises ValueError if `encode` did not write the text.

        The zone is not checked: a host with newer zones may have accepted it.
        """
        given = json.loads(text) if text else {}
        if not isinstance(given, dict):
            raise ValueError("preferences: are no object")  # noqa: TRY004 - as for all that cannot be read
        zone = given.pop("zone", None)
        return replace(cls.of(given), zone=None if zone is None else _text(zone))

    @property
    def unknown_zone(self) -> str:
        """Why this host does not know the chosen zone; '' if it does, or if none is chosen."""
        try:
            check_zone(DEFAULT_ZONE if self.zone is None else self.zone)
        except ValueError as error:
            return str(error)
        return ""

    def muted(self, mute: Mute, now: datetime) -> Preferences:
        """Return them with one more mute. An old mute of the same categories, and a mute that is over, are dropped."""
        kept = [old for old in self.mutes if old.categories != mute.categories and old.until > now]
        return replace(self, mutes=(*kept, mute))

    def unmuted(self, categories: Iterable[str] | None) -> Preferences:
        """Return them without mutes of these categories; None removes all mutes."""
        if categories is None:
            return replace(self, mutes=())
        gone, kept = set(categories), []
        for mute in self.mutes:
            left = None if mute.categories is None else tuple(c for c in mute.categories if c not in gone)
            kept += [] if left == () else [replace(mute, categories=left)]
        return replace(self, mutes=tuple(kept))


@dataclass(frozen=True, slots=True)
class Chosen:
    """The effect of preferences under the rules. policy: it replaces the user's."""

    policy: Policy
    zone: str | None = None
    mutes: tuple[Mute, ...] = ()


def among(entries: Iterable[Mapping[str, Any]], users: Container[str]) -> dict[str, Preferences]:
    """Return some users' preferences from entries of `Notifier.users.export`. Raises ValueError."""
    return {
        entry["user"]: Preferences.of({name: value for name, value in entry.items() if name != "user"})
        for entry in entries
        if entry.get("user") in users
    }


def _windows(value: Any) -> tuple[Window | CalendarWindow, ...]:
    rates = _listed(value)
    if rates is None or len(rates) > MAX_WINDOWS:
        raise ValueError(f"give a list of at most {MAX_WINDOWS} rates, such as ['10/minute']")
    return tuple(_window(str(each) if isinstance(each, Window | CalendarWindow) else each) for each in rates)


def _listed(value: Any) -> tuple[Any, ...] | None:
    return None if isinstance(value, str) or not isinstance(value, Iterable) else tuple(value)


def _window(text: Any) -> Window | CalendarWindow:
    return parse_calendar_window(_text(text)) or parse_window(text)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be text, is {type(value).__name__}")  # noqa: TRY004 - as for all that cannot be read
    return value


def _gap(value: Any) -> int:
    """Read a gap by its text form, also a timedelta: `decode` must be able to read every gap that is stored."""
    return parse_duration(format_duration(duration_us(value)))


def _mutes(value: Any) -> tuple[Mute, ...]:
    mutes = _listed(value)
    if mutes is None or len(mutes) > MAX_MUTES:
        raise ValueError(f"give a list of at most {MAX_MUTES} mutes")
    return tuple(each if isinstance(each, Mute) else _mute(each) for each in mutes)


def _mute(given: Any) -> Mute:
    if not isinstance(given, Mapping) or not given.keys() <= Mute.__dataclass_fields__.keys():
        raise ValueError("give each as a mapping of until, categories and what, or of some of these")
    return mute_of(**given)


def mute_of(until: Any = None, categories: Iterable[str] | None = None, what: Any = "hold") -> Mute:
    """Check and make a mute. until: a datetime with a zone, or its ISO text; None is without end. Raises ValueError."""
    try:
        moment = datetime.fromisoformat(until) if isinstance(until, str) else FOREVER if until is None else until
        # The first and the last moments of another zone are out of range in UTC.
        ends = min(max(moment, datetime.min.replace(tzinfo=UTC)), FOREVER).astimezone(UTC)
    except (ValueError, TypeError):
        raise ValueError("until: must be a datetime with a time zone") from None
    if what not in get_args(What):
        raise ValueError(f"what: {what!r} is neither 'hold' nor 'drop'")
    return Mute(ends, names_of(categories), what)


def names_of(categories: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return the names of categories, sorted; None is all. Raises ValueError."""
    if categories is None:
        return None
    names = _listed(categories)
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError("categories: give a list of names, at least one; or leave it out for all")
    return tuple(sorted({*names}))


def _mute_as_dict(mute: Mute) -> dict[str, Any]:
    given: dict[str, Any] = {"until": mute.until.isoformat()}
    if mute.categories is not None:
        given["categories"] = list(mute.categories)
    return given | {"what": mute.what}


FIELDS: Final[Mapping[str, Any]] = {
    "tier": _text,
    "windows": _windows,
    "gap": _gap,
    "quiet_hours": parse_hours,
    "zone": check_zone,
    "mutes": _mutes,
}
