"""Time zones: the local time of users, by the package tzdata alone, so that all hosts agree.

Redis owns the time and knows no zones, so workers write the offsets of three years to it, see `quiet_hours.lua`.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from difflib import get_close_matches
from functools import cache, lru_cache
from importlib.resources import files
from typing import Final, Literal, TypeAlias
from zoneinfo import ZoneInfo

import tzdata

DEFAULT_ZONE: Final = "Etc/UTC"
VERSION: Final = str(tzdata.IANA_VERSION)  # such as 2026a, 2026b: a later version is greater
DAY_US: Final = 86_400_000_000
THURSDAY_US: Final = 3 * DAY_US  # since Monday: 1 January 1970 was a Thursday
EPOCH: Final = date(1970, 1, 1)

Unit: TypeAlias = Literal["day", "week", "month"]


@dataclass(frozen=True, slots=True)
class Zone:
    """A zone over some years: from `since_us[i]` on its clocks are `offset_us[i]` ahead of UTC.

    It is exact from `since_us[0]` to `until_us`; at other times the offset of the nearer end holds.
    """

    name: str
    since_us: tuple[int, ...]
    offset_us: tuple[int, ...]
    until_us: int

    def wall_us(self, at_us: int) -> int:
        """Return the local time, as µs since 1 January 1970 by the same clock."""
        return at_us + self.offset_us[self._index(at_us)]

    def first_outside(self, from_us: int, to_us: int, at_us: int, every_us: int = DAY_US) -> int:
        """The first µs from `at_us` on at which the local time is outside of the span from `from_us` until `to_us`.

        Both are µs since midnight, or since Monday's midnight if every_us is a week. If `from_us` is the later one, the
        span continues over the end. The local time decides: an hour that the clock repeats is inside twice, an hour
        that the clock skips never comes.
        """
        while True:
            index = self._index(at_us)
            wall = (at_us + self.offset_us[index] + THURSDAY_US) % every_us
            if (wall - from_us) % every_us >= (to_us - from_us) % every_us:
                return at_us
            ends = at_us + (to_us - wall) % every_us
            if index + 1 == len(self.since_us) or ends < self.since_us[index + 1]:
                return ends
            at_us = self.since_us[index + 1]

    def next_start(self, unit: Unit, at_us: int) -> int:
        """When the next day, ISO week or month after `at_us` begins: as soon as the clock reads its date."""
        day = self.wall_us(at_us) // DAY_US
        if unit == "day":
            day += 1
        elif unit == "week":
            day += 7 - (day + THURSDAY_US // DAY_US) % 7
        else:
            day = _month_after(day)
        return self._first_reading(day * DAY_US)

    def encode(self) -> str:
        """Return the table as the scripts read it."""
        table = {"v": VERSION, "u": self.until_us, "s": self.since_us, "o": self.offset_us, "m": self._months()}
        return json.dumps(table, separators=(",", ":"))

    def _months(self) -> list[int]:
        """The days on which months begin, counted from 1 January 1970 in local time."""
        months = [_month_after(self.since_us[0] // DAY_US)]
        while months[-1] * DAY_US < self.until_us:
            months.append(_month_after(months[-1]))
        return months

    def _index(self, at_us: int) -> int:
        return max(0, bisect_right(self.since_us, at_us) - 1)

    def _first_reading(self, wall_us: int) -> int:
        """The first µs at which the local time is `wall_us` or later."""
        for index, (since, offset) in enumerate(zip(self.since_us, self.offset_us, strict=True)):
            at = max(since, wall_us - offset)
            if index + 1 == len(self.since_us) or at < self.since_us[index + 1]:
                return at
        raise AssertionError("a zone has an offset at least")


def _month_after(day: int) -> int:
    first = (EPOCH + timedelta(days=day)).replace(day=1)
    return ((first + timedelta(days=32)).replace(day=1) - EPOCH).days


def check_zone(name: object) -> str:
    """Return the name of a zone; raise ValueError, saying what would be right, if there is none of this name."""
    if isinstance(name, str) and name in _names():
        return name
    close = get_close_matches(name, _names(), n=1) if isinstance(name, str) and len(name) < 64 else []  # noqa: PLR2004
    right = f"did you mean {close[0]}?" if close else "write one as Europe/Berlin or Etc/UTC"
    shown = repr(name[:40]) if isinstance(name, str) else type(name).__name__
    raise ValueError(f"{shown} is not a time zone of the IANA database, {VERSION}; {right}")


def zone_at(name: str, now_us: int) -> Zone:
    """The zone in the years around a moment; raise ValueError if there is none of this name."""
    return _of_year(check_zone(name), datetime.fromtimestamp(now_us // 1_000_000, tz=UTC).year)


def zone_or(name: str | None, default: str, now_us: int) -> Zone:
    """As `zone_at`; the default zone if none is named, or if there is none of this name."""
    try:
        return zone_at(name or default, now_us)
    except ValueError:
        return zone_at(default, now_us)


@lru_cache(maxsize=1024)
def _of_year(name: str, year: int) -> Zone:
    """A zone from the year before to the year after. It depends on `year` alone, so it is the same on every host."""
    info = _load(name)
    begin, end = (int(datetime(y, 1, 1, tzinfo=UTC).timestamp()) for y in (year - 1, year + 2))
    changes = [(begin, _offset_s(info, begin)), *_changes(info, begin, end)]
    since, offsets = zip(*((at * 1_000_000, offset * 1_000_000) for at, offset in changes), strict=True)
    return Zone(name, since, offsets, end * 1_000_000)


def _changes(info: ZoneInfo, begin: int, end: int) -> Iterator[tuple[int, int]]:
    """Each change of the offset: when, in s, and the new offset. There is at most one a day."""
    for day in range(begin, end, 86_400):
        before, after = day, day + 86_400
        offset = _offset_s(info, after)
        if offset != _offset_s(info, before):
            while after - before > 1:
                middle = (before + after) // 2
                if _offset_s(info, middle) == offset:
                    after = middle
                else:
                    before = middle
            yield after, offset


def _offset_s(info: ZoneInfo, at_s: int) -> int:
    offset = datetime.fromtimestamp(at_s, tz=info).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def _load(name: str) -> ZoneInfo:
    # By its file: ZoneInfo(name) would prefer the machine's zones to the package's.
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file, key=name)


@cache
def _names() -> frozenset[str]:
    return frozenset(files("tzdata").joinpath("zones").read_text(encoding="utf-8").split())
