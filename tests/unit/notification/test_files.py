"""Files of notifications: every line is a notification or a reason, under its own number."""

import io
import json
from datetime import datetime, timedelta, timezone

from notifier.notification import Device, Notification
from notifier.notification.files import Format, read_rows

TOKEN = "fcm-registration-0001"


def rows(text: str, form: Format = "jsonl") -> dict[int, Notification | str]:
    return {row.number: row.notification or row.problem for row in read_rows(io.StringIO(text, newline=""), form)}


def test_json_lines() -> None:
    """Each line has the fields of a notification; times are texts, empty lines are none."""
    good = {
        "user": "u",
        "devices": [{"platform": "fcm", "token": TOKEN}],
        "title": "T",
        "send_at": "2026-12-24T18:00:00+01:00",
        "expires_in": 90,
        "dedupe_key": "k",
    }
    (found,) = rows("\n" + json.dumps(good) + "\n\n").values()
    at = datetime(2026, 12, 24, 18, tzinfo=timezone(timedelta(hours=1)))
    assert found == Notification(
        user="u", devices=(Device("fcm", TOKEN),), title="T", send_at=at, expires_in=90, dedupe_key="k"
    )


def test_a_bad_line_is_named_and_does_not_stop_the_rest() -> None:
    """What is wrong in a line is its own row, by the line's number."""
    good = json.dumps({"user": "u", "devices": [{"platform": "fcm", "token": TOKEN}], "title": "T"})
    wrong = [f'{good[:-1]}, "{name}": -1}}' for name in ("sent_at", "expires_in")]
    found = rows("\n".join(["nonsense", "[1]", good, '{"user": 1}', *wrong, '{"a":' * 9_999, good]))
    assert [number for number, row in found.items() if isinstance(row, Notification)] == [3, 8]
    assert found[1] == found[2] == found[7] == "is not a JSON object"
    assert "devices" in str(found[4])
    assert found[5] == "sent_at: is not a field; did you mean send_at?"
    assert str(found[6]).startswith("expires_in: has already passed")


def test_csv() -> None:
    """The first line names the columns; data.<key> are data, a cell that is empty is not given."""
    text = (
        "user,platform,token,title, badge ,data.screen,send_at\r\n"
        f'u,fcm,{TOKEN},"Hello, you",3,inbox,\r\n'
        f"u,fcm,{TOKEN},Hello,three,,\r\n"
        f"u,fcm,{TOKEN},Hello\r\n"
        f"u,fcm,{TOKEN},Hello,,,tomorrow\r\n"
        f"u,,,Hello,,,\r\n\r\n"
    )
    found = rows(text, "csv")
    device = (Device("fcm", TOKEN),)
    assert found[2] == Notification(user="u", devices=device, title="Hello, you", badge=3, data={"screen": "inbox"})
    assert found[3] == "badge: 'three' is not a number"
    assert found[4] == "has 4 cells; the first line names 7 columns"
    assert str(found[5]).startswith("send_at: is not a time such as")
    assert str(found.pop(6)).startswith("devices[0].platform: ''")
    assert max(found) == 5, "an empty line is no row"


def test_a_column_that_is_none_is_named_with_those_there_are() -> None:
    """A wrong column is told in the words of a CSV: platform and token, not devices."""
    good = f"u,fcm,{TOKEN},T\r\n"
    found = rows("whom,platform,token,title\r\n" + good * 3, "csv")
    problem = found.pop(1)
    assert found == {}, "once for the whole file"
    assert str(problem).startswith("whom: is not a column; known are app, ")
    assert str(problem).endswith(
        "dedupe_key, expires_in, platform, priority, send_at, sound, tags, title, token, user, zone, data.…"
    )
    assert rows("user,platform,token,titel\r\n" + good, "csv") == {1: "titel: is not a column; did you mean title?"}
    assert rows("user,platform,token,user\r\n" + good, "csv") == {1: "user: names two columns; keep one"}
    assert isinstance(rows(f"user,platform,token,title,\r\nu,fcm,{TOKEN},T,\r\n", "csv")[2], Notification)


def test_text_that_is_no_unicode_is_refused_by_its_field() -> None:
    """Bytes that are not UTF-8 reach the check of the notification, which says where."""
    raw = b'{"user": "u\xff", "devices": [{"platform": "fcm", "token": "fcm-registration-0001"}], "title": "T"}\n'
    text = io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8", errors="surrogateescape", newline="")
    (row,) = read_rows(text, "jsonl")
    assert row.problem == "user: is not valid Unicode text"


def test_a_line_that_is_no_csv_is_kept_as_it_stands() -> None:
    """So that it can be put right."""
    token = "t" * 20
    text = f'user,platform,token,title\na,fcm,{token},"one"x\nb,fcm,{token},two\n'
    refused = [row for row in read_rows(io.StringIO(text), "csv") if row.problem]
    assert ["is not CSV" in row.problem for row in refused] == [True]
    assert refused[0].raw == f'a,fcm,{token},"one"x\n'
