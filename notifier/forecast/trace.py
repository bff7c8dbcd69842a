"""Traces: recorded notifications and their times, one JSON object on each line, without tokens, texts or data.

Each line has `at` (seconds since the trace began) and `user`, and may have `category`, `priority`, `expires_in`
(seconds), `collapse_id` and `zone`. Other fields are ignored, so that a file of notifications with their times is a
trace too. The first line may have `began`, a time with its zone, which quiet hours and calendar windows need.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from sys import intern
from typing import Any, Final, NamedTuple

from notifier.errors import NotifierError
from notifier.notification.json_values import read_object
from notifier.notification.notification import NAME_FORM
from notifier.rules.category import DEFAULT_CATEGORY
from notifier.rules.zones import check_zone

LONGEST_LINE: Final = 1_000_000
LONGEST_S: Final = 100 * 366 * 86_400.0
PRIORITIES: Final = ("normal", "high")
EVERY: Final = 20_000  # lines from one report of the progress to the next


class TraceError(NotifierError):
    """A trace that cannot be read; the text names the file, the line and what would be right."""


class Event(NamedTuple):
    """One notification, accepted `at_us` after the trace began. expires_in_us, zone: None if it has none of its own.

    collapse_id: it replaces a waiting event with the same one; with None it replaces none, except in a digest.
    """

    at_us: int
    category: str = DEFAULT_CATEGORY
    high: bool = False
    expires_in_us: int | None = None
    collapse_id: str | None = None
    zone: str | None = None


Trace = Mapping[str, list[Event]]  # by user, in the order in which they were accepted


class Recorded(dict[str, list[Event]]):
    """A trace that was read. began_us: when it began, µs since the epoch; None if it does not say."""

    began_us: int | None = None


def read_trace(path: Path, advance: Callable[[int], object] = lambda _: None) -> Recorded:
    """Return the trace in a file. advance: called now and then, with the number of bytes read since its last call.

    Raise TraceError for a file that cannot be read, and for the first wrong line.
    """
    try:
        with path.open("rb") as file:
            return trace_of(_lines(file, advance), str(path))
    except OSError as error:
        raise TraceError(f"{path}: cannot be read: {error.strerror}") from None


def trace_of(lines: Iterable[bytes], name: str = "the trace") -> Recorded:
    """Return the trace in these lines; blank lines are ignored. name: its name in errors.

    Raise TraceError for the first wrong line.
    """
    trace = Recorded()
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            user, event = read_event(line)
            if not trace:
                trace.began_us = _began_us(line)
        except ValueError as error:
            raise TraceError(f"{name}:{number}: {error}") from None
        trace.setdefault(user, []).append(event)
    for events in trace.values():
        events.sort(key=lambda event: event.at_us)
    return trace


def read_event(line: bytes) -> tuple[str, Event]:
    """Return the user and the event of one line; raise ValueError, saying what would be right."""
    if len(line) > LONGEST_LINE:
        raise ValueError(f"is longer than {LONGEST_LINE:,} bytes")
    fields = read_object(line)
    if fields is None:
        raise ValueError('is not a JSON object such as {"at": 1.5, "user": "42", "category": "chat"}')
    user, category = fields.get("user"), fields.get("category", DEFAULT_CATEGORY)
    if not isinstance(user, str) or not user:
        raise ValueError("user: must be text, and is needed")
    if not isinstance(category, str) or not NAME_FORM.fullmatch(category):
        raise ValueError("category: must be a category's name")
    priority = fields.get("priority", "normal")
    if priority not in PRIORITIES:
        raise ValueError("priority: must be normal or high")
    expires = fields.get("expires_in")
    expires_us = None if expires is None else _microseconds("expires_in", expires)
    if expires_us == 0:
        raise ValueError("expires_in: must be more than 0")
    collapse_id = fields.get("collapse_id")
    if collapse_id is not None and (not isinstance(collapse_id, str) or not collapse_id):
        raise ValueError("collapse_id: must be text")
    zone = fields.get("zone")
    if zone is not None:
        zone = intern(_zone(zone))
    at_us = _microseconds("at", fields.get("at"))
    return user, Event(at_us, intern(category), priority == "high", expires_us, collapse_id, zone)


def _began_us(line: bytes) -> int | None:
    began = json.loads(line).get("began")
    if began is None:
        return None
    try:
        at = datetime.fromisoformat(began)
    except (TypeError, ValueError):
        at = None
    if at is None or at.tzinfo is None or not is_near(at):
        raise ValueError("began: must be a time from 1971 to 2099 with its zone, such as 2026-11-21T08:00:00+01:00")
    return round(at.timestamp() * 1_000_000)


def is_near(at: datetime) -> bool:
    """Whether a time is in the years for which zones are known, from 1971 to 2099."""
    return 1970 < at.year < 2100  # noqa: PLR2004


def _zone(name: object) -> str:
    try:
        return check_zone(name)
    except ValueError as error:
        raise ValueError(f"zone: {error}") from None


def _microseconds(name: str, seconds: Any) -> int:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds <= LONGEST_S:
        raise ValueError(f"{name}: must be a number of seconds, from 0 to a hundred years")
    return math.ceil(round(seconds * 1_000_000, 3))


def _lines(file: Any, advance: Callable[[int], object]) -> Iterator[bytes]:
    unreported = 0
    for number, line in enumerate(file, 1):
        unreported += len(line)
        if number % EVERY == 0:
            advance(unreported)
            unreported = 0
        yield line
    advance(unreported)
