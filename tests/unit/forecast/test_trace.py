"""Traces: their lines, what is refused by its number, and when they began."""

import json
from pathlib import Path

import pytest

from notifier.forecast.trace import Event, TraceError, read_event, read_trace
from workers.demo.traffic import notifications

S = 1_000_000


def test_a_line_of_a_trace() -> None:
    """What is not said has the defaults; times are rounded up to whole microseconds; what else stands there is left."""
    assert read_event(b'{"at": 0.0000012, "user": "42"}') == ("42", Event(2))
    full = {
        "at": 1.1,
        "user": "ada",
        "category": "chat",
        "priority": "high",
        "expires_in": 2,
        "collapse_id": "match",
        "devices": [],
        "title": 3,
    }
    event = Event(1_100_000, "chat", high=True, expires_in_us=2 * S, collapse_id="match")
    assert read_event(json.dumps(full).encode()) == ("ada", event)


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("[1]", "JSON object"),
        ("{", "JSON object"),
        ("[" * 100_000, "JSON object"),
        ('{"at": 1}', "user"),
        ('{"at": 1, "user": 42}', "user"),
        ('{"at": 1, "user": ""}', "user"),
        ('{"user": "42"}', "at"),
        ('{"at": "1", "user": "42"}', "at"),
        ('{"at": true, "user": "42"}', "at"),
        ('{"at": -1, "user": "42"}', "at"),
        ('{"at": NaN, "user": "42"}', "at"),
        ('{"at": 1e300, "user": "42"}', "at"),
        ('{"at": 1, "user": "42", "category": "CHAT!"}', "category"),
        ('{"at": 1, "user": "42", "priority": "urgent"}', "priority"),
        ('{"at": 1, "user": "42", "priority": []}', "priority"),
        ('{"at": 1, "user": "42", "expires_in": 0}', "expires_in"),
        ('{"at": 1, "user": "42", "expires_in": "2s"}', "expires_in"),
        ('{"at": 1, "user": "42", "collapse_id": 7}', "collapse_id"),
        (f'{{"at": 1, "user": "{"x" * 1_000_000}"}}', "longer"),
    ],
)
def test_a_bad_line_is_refused_by_its_number(line: str, named: str, tmp_path: Path) -> None:
    """The error names the file, the line and the field."""
    path = tmp_path / "trace.jsonl"
    path.write_text(f'{{"at": 1, "user": "42"}}\n\n{line}\n')
    with pytest.raises(TraceError) as refused:
        read_trace(path)
    assert str(refused.value).startswith(f"{path}:3: ")
    assert named in str(refused.value)


def test_a_trace_is_each_users_in_the_order_of_its_times(tmp_path: Path) -> None:
    """Lines may come in any order; those of one moment keep the file's. The bytes read are told, all of them."""
    path = tmp_path / "trace.jsonl"
    ats = [(3, "a"), (1, "b"), (1, "c"), (2, "a")]
    path.write_text("".join(json.dumps({"at": at, "user": "x", "category": name}) + "\n" for at, name in ats))
    told: list[int] = []
    trace = read_trace(path, told.append)
    assert [(event.at_us // S, event.category) for event in trace["x"]] == [(1, "b"), (1, "c"), (2, "a"), (3, "a")]
    assert sum(told) == path.stat().st_size


def test_a_trace_may_say_when_it_began(tmp_path: Path) -> None:
    """In its first line, for what goes by the clock; a time without a zone is refused."""
    path = tmp_path / "trace.jsonl"
    path.write_text('{"at": 1, "user": "ann", "began": "2026-11-21T08:00:00+01:00"}\n{"at": 2, "user": "ann"}\n')
    assert read_trace(path).began_us == 1_795_244_400 * S
    path.write_text('{"at": 1, "user": "ann"}\n')
    assert read_trace(path).began_us is None
    path.write_text('{"at": 1, "user": "ann", "began": "2026-11-21T08:00:00"}\n')
    with pytest.raises(TraceError, match=r"trace\.jsonl:1: began: must be a time from 1971 to 2099 with its zone"):
        read_trace(path)


def test_a_file_of_notifications_is_a_trace(tmp_path: Path) -> None:
    """What send-file sends can be replayed too, if it has times."""
    path, rows = tmp_path / "notifications.jsonl", notifications()
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    trace = read_trace(path)
    assert sum(map(len, trace.values())) == len(rows)
    assert len(trace) == 244
