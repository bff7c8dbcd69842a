"""Time zones: our table and the Lua's, against plain zoneinfo, over every change of the clocks of two years."""

import json
from datetime import UTC, date, datetime, time, timedelta
from importlib.resources import files
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from redis import Redis

from notifier.rules.zones import DAY_US, Zone, check_zone, zone_at
from notifier.scripts.keys import declared, in_script

MINUTE = 60_000_000
# On both hemispheres, with changes of half an hour, at midnight, for Ramadan, and none at all.
ZONES = (
    "Europe/Berlin", "Europe/London", "Europe/Dublin", "Atlantic/Azores", "Africa/Casablanca", "Africa/Cairo",
    "Asia/Beirut", "Asia/Jerusalem", "Asia/Kolkata", "Asia/Tokyo", "Australia/Lord_Howe", "Australia/Sydney",
    "Pacific/Auckland", "Pacific/Chatham", "America/New_York", "America/Los_Angeles", "America/St_Johns",
    "America/Havana", "America/Santiago", "Etc/UTC",
)  # fmt: skip
BEGIN, END = (datetime(year, 1, 1, tzinfo=UTC) for year in (2026, 2028))
# All of its names are wanted, not only what it exports.
PIECE = files("notifier.scripts") / "lua" / "rules" / "quiet_hours.lua"
LUA = """
--! include quiet_hours
local zone, reply = cjson.decode(ARGV[1]), {}
for _, call in ipairs(cjson.decode(ARGV[2])) do
  if call[1] == 'quiet' then reply[#reply + 1] = first_outside(zone, call[2], call[3], call[4], call[5])
  else reply[#reply + 1] = next_start(zone, call[1], call[2]) end
end
return reply
"""


def us(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def plain(name: str) -> ZoneInfo:
    with files("tzdata").joinpath("zoneinfo", *name.split("/")).open("rb") as file:
        return ZoneInfo.from_file(file)


def changes(info: ZoneInfo) -> list[datetime]:
    """The minutes in which the clocks of a zone change, in 2026 and 2027."""
    found = []
    days = [BEGIN + timedelta(days=n) for n in range((END - BEGIN).days)]  # no clock changes twice in one
    for before, after in pairwise(days):
        if before.astimezone(info).utcoffset() != after.astimezone(info).utcoffset():
            minutes = [before + timedelta(minutes=n) for n in range(1441)]
            found.append(
                next(m for m in minutes if m.astimezone(info).utcoffset() == after.astimezone(info).utcoffset())
            )
    return found


def is_quiet(info: ZoneInfo, begin: time, end: time, moment: datetime) -> bool:
    reads = moment.astimezone(info).time()
    return begin <= reads < end if begin < end else reads >= begin or reads < end


def in_lua(redis: Redis, zone: Zone, calls: list[tuple[Any, ...]]) -> list[int]:
    found: Any = redis.eval(
        in_script(LUA.replace("--! include quiet_hours", PIECE.read_text(encoding="utf-8"))),
        2,
        *declared(),
        zone.encode(),
        json.dumps(calls),
    )
    return [int(at) for at in found]


@pytest.mark.parametrize("name", ZONES)
def test_the_table_is_what_zoneinfo_says(name: str) -> None:
    """What the clock reads, twice a day over two years and around every change."""
    info = plain(name)
    zones = {year: zone_at(name, us(datetime(year, 6, 1, tzinfo=UTC))) for year in (2026, 2027)}
    halves = [BEGIN + timedelta(hours=12 * n) for n in range((END - BEGIN) // timedelta(hours=12))]
    edges = [change + timedelta(microseconds=n) for change in changes(info) for n in (-1, 0, 1)]
    for moment in [*halves, *edges]:
        reads = moment.astimezone(info).replace(tzinfo=UTC)
        assert zones[moment.year].wall_us(us(moment)) == us(reads), moment


@pytest.mark.parametrize("name", ZONES)
def test_quiet_hours_over_every_change_of_the_clocks(redis: Redis, name: str) -> None:
    """A moment is quiet as the clock on the wall reads; quiet hours end at the first minute at which it does not.

    Around every change, minute by minute, for spans that contain, touch and miss it, over midnight too.
    """
    info = plain(name)
    around = changes(info) or [datetime(2026, 3, 29, 1, tzinfo=UTC)]
    for change in around:
        zone = zone_at(name, us(change))
        minutes = [change + timedelta(minutes=15 * n) for n in range(-8, 9)]
        reads = (change - timedelta(minutes=1)).astimezone(info)
        for shift, length in ((-90, 60), (-60, 75), (-30, 30), (-30, 120), (0, 45), (1, 660), (-720, 1439)):
            begin = (reads + timedelta(minutes=shift + 1)).time().replace(second=0, microsecond=0)
            end = (datetime.combine(date(2026, 1, 1), begin) + timedelta(minutes=length)).time()
            span = [(t.hour * 60 + t.minute) * MINUTE for t in (begin, end)]
            ends, found = [], minutes[0]
            for moment in minutes:
                found = max(found, moment)  # until the end before, all was quiet
                while is_quiet(info, begin, end, found):
                    found += timedelta(minutes=1)
                ends.append(us(found))
                assert zone.first_outside(*span, us(moment)) == ends[-1], (change, begin, end, moment)
            assert in_lua(redis, zone, [("quiet", *span, us(moment)) for moment in minutes]) == ends


@pytest.mark.parametrize("name", ["Europe/Berlin", "Australia/Lord_Howe", "America/Havana"])
def test_hours_of_a_week_over_every_change_of_the_clocks(redis: Redis, name: str) -> None:
    """As those of a day, but on one day of the week alone: what the clock reads decides, and its date."""
    info = plain(name)
    for change in changes(info):
        zone, monday = zone_at(name, us(change)), timedelta(days=change.astimezone(info).weekday())
        reads = (change - timedelta(minutes=1)).astimezone(info).replace(tzinfo=None)
        midnight = datetime.combine(reads.date(), time()) - monday
        for shift, length in ((-90, 60), (-30, 120), (0, 45), (-600, 700), (-720, 7 * 1440 - 1)):
            begin = (reads + timedelta(minutes=shift + 1) - midnight) // timedelta(minutes=1) % 10080
            end = (begin + length) % 10080

            def is_inside(moment: datetime, begin: int = begin, length: int = length) -> bool:
                at = moment.astimezone(info)
                return (at.weekday() * 1440 + at.hour * 60 + at.minute - begin) % 10080 < length

            moments, ends = [change + timedelta(minutes=60 * n) for n in range(-2, 3)], []
            found = moments[0]
            for moment in moments:
                found = max(found, moment)  # until the end before, all was inside
                while is_inside(found):
                    found += timedelta(minutes=1)
                ends.append(us(found))
            calls = [(begin * MINUTE, end * MINUTE, us(moment), 7 * DAY_US) for moment in moments]
            assert [zone.first_outside(*call) for call in calls] == ends, (change, begin, end)
            assert in_lua(redis, zone, [("quiet", *call) for call in calls]) == ends


@pytest.mark.parametrize("name", ZONES)
def test_days_weeks_and_months_begin_as_the_clock_first_reads_their_date(redis: Redis, name: str) -> None:
    """For every day of two years, and the hours around every change: the next day, ISO week and month."""
    info = plain(name)
    moments = [BEGIN + timedelta(hours=13, days=n) for n in range(0, 730, 5)]
    moments += [change + timedelta(minutes=30 * n) for change in changes(info) for n in range(-4, 5)]
    for year in (2026, 2027):
        of_year = [moment for moment in moments if moment.year == year]
        zone = zone_at(name, us(datetime(year, 6, 1, tzinfo=UTC)))
        for unit in ("day", "week", "month"):
            starts = [us(begins(info, after(unit, moment.astimezone(info).date()))) for moment in of_year]
            assert [zone.next_start(unit, us(moment)) for moment in of_year] == starts
            assert in_lua(redis, zone, [(unit, us(moment)) for moment in of_year]) == starts


def after(unit: str, day: date) -> date:
    """The first day of the day, ISO week or month after that of a day."""
    if unit == "day":
        return day + timedelta(days=1)
    if unit == "week":
        return day + timedelta(days=8 - day.isoweekday())
    return (day.replace(day=1) + timedelta(days=32)).replace(day=1)


def begins(info: ZoneInfo, day: date) -> datetime:
    """The first minute at which the clock reads this date."""
    minute = datetime.combine(day, time(), info).astimezone(UTC) - timedelta(hours=2)
    while minute.astimezone(info).date() != day:
        minute += timedelta(minutes=15)
    return minute


def test_a_table_covers_the_year_it_is_for() -> None:
    """Each moment of a year has a table that is exact for a month and more around it; zones are told apart by name."""
    for year in (2026, 2027):
        for moment in (datetime(year, 1, 1, tzinfo=UTC), datetime(year, 12, 31, 23, 59, tzinfo=UTC)):
            zone = zone_at("Europe/Berlin", us(moment))
            assert zone.since_us[0] + 40 * DAY_US <= us(moment) < zone.until_us - 40 * DAY_US
    for wrong in ("Europe/Berln", "../../../etc/passwd", "", "/etc/passwd", "Europe", "europe/berlin", 3, None):
        with pytest.raises(ValueError, match="is not a time zone of the IANA database"):
            check_zone(wrong)
    with pytest.raises(ValueError, match=r"did you mean Europe/Berlin\?"):
        check_zone("Europe/Berln")
