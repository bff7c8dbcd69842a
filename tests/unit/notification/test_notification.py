"""Notification and Device by themselves: round trips, masks, and checks that need neither Redis nor settings."""

import json
import zlib
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from enum import Enum
from functools import partial
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from werkzeug.local import LocalProxy

from notifier.errors import InvalidNotificationError
from notifier.notification import Device, Notification
from notifier.notification.job import (
    FUNCTION,
    decode_data,
    encode_data,
    encode_meta,
    encode_targets,
    read_notification,
)
from notifier.notification.json_values import DATA_DEPTH
from notifier.notification.notification import LATEST, LONGEST_EXPIRY, MAPPINGS, OPTIONS
from notifier.notification.platforms import check_payload
from notifier.queue.circuits import FAR_US
from notifier.texts import mask
from notifier.units import moment

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
DEVICES = st.lists(
    st.binary(min_size=32, max_size=100).map(lambda raw: Device("apns", raw.hex()))
    | st.from_regex(r"[A-Za-z0-9_:.\-]{16,80}", fullmatch=True).map(lambda token: Device("fcm", token)),
    min_size=1,
    max_size=4,
    unique=True,
)
NOTIFICATIONS = st.builds(
    Notification,
    user=TEXT,
    devices=DEVICES.map(tuple),
    title=TEXT,
    body=st.none() | TEXT,
    data=st.dictionaries(TEXT, JSON, max_size=4),
    category=st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True),
    collapse_id=st.none() | st.text("abcé-", min_size=1, max_size=30),
    badge=st.none() | st.integers(0, 999),
    sound=st.none() | TEXT,
    app=st.none() | st.from_regex(r"[a-z0-9][a-z0-9_-]{0,20}", fullmatch=True),
    priority=st.sampled_from([None, "normal", "high"]),
    **dict.fromkeys(OPTIONS, st.sampled_from([{}, {"a": {"b": [1, None, "c"]}}])),
)
GOOD: dict[str, Any] = {"user": "anna", "devices": [Device("apns", "ab" * 32)], "title": "Hello"}


T = TypeVar("T")


def attempt(call: Callable[[], T]) -> T | InvalidNotificationError:
    """What the call returns, or its refusal; any other error is the test's failure."""
    try:
        return call()
    except InvalidNotificationError as error:
        return error


@given(NOTIFICATIONS)
def test_a_notification_survives_its_job(notification: Notification) -> None:
    """What is written into a job's data and read back by a worker is the same notification; what is empty is not."""
    notification.validate()
    function, kwargs = decode_data(encode_data(notification))
    assert function == FUNCTION
    assert [name for name in MAPPINGS if name in kwargs] == [name for name in MAPPINGS if vars(notification)[name]]
    read = Notification.from_kwargs(kwargs)
    assert read == notification
    assert vars(read).keys() == vars(notification).keys()
    another = Notification.from_kwargs(kwargs)
    assert not [name for name in MAPPINGS if name not in kwargs and vars(read)[name] is vars(another)[name]]


@given(NOTIFICATIONS)
def test_meta_is_what_the_scripts_read(notification: Notification) -> None:
    """The meta is plain JSON with user and category as text, and the priority where it is not the usual one."""
    made = replace(notification, collapse_id=None)
    expected = {"user": notification.user, "category": notification.category}
    assert json.loads(encode_meta(made)) == expected | ({"priority": "high"} if made.priority == "high" else {})


@given(
    st.dictionaries(
        st.sampled_from([*Notification.__dataclass_fields__, "other"]),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
            max_leaves=6,
        ),
    )
)
def test_any_json_is_a_notification_or_refused(kwargs: dict[str, Any]) -> None:
    """Whatever a stranger's job holds, reading it gives a notification or InvalidNotificationError, nothing else."""
    found = attempt(lambda: Notification.from_kwargs(kwargs))
    if isinstance(found, InvalidNotificationError):
        assert found.field
        assert found.why
    else:
        found.validate()


ANYTHING = [None, True, 0, 1, -1, 7.0, 1e300, "", "7", "a", "a\n", "A", "é" * 17, "\ud800", "x" * 300, [], {}]
NESTED = {"a": [1, {"b": None}], "c": "é", "d": 2**63}
ODD: dict[str, list[Any]] = {
    "user": ["é" * 64, "é" * 128, "é" * 129, "x" * 256],
    "devices": [
        [{}],
        [{"platform": "fcm", "token": "x" * 40, "more": 1}],
        [{"platform": "nobody", "token": "x" * 40}],
        [{"platform": "fcm", "token": "short"}],
        [{"platform": "fcm", "token": 7}],
        [{"platform": "fcm", "token": "x" * 40}] * 2,
        [{"platform": "fcm", "token": "x" * 40 + str(n)} for n in (*range(7), 3)],
        [{"platform": "fcm", "token": "x" * 40 + str(n)} for n in range(1001)],
    ],
    "category": ["a" * 64, "a" * 65],
    "badge": [2**31 - 1, 2**31, 2**64],
    "collapse_id": ["é" * 32, "é" * 33],
    "priority": ["normal", "high", "low"],
    "options": [{"expo": {}}, {"expo": {"badge": 1}}, {"expo": 1}, {"nobody": {}}, {"apns": {}}],
    "data": [NESTED, {"a": float("inf")}, {"a": 2**2000}, {"a": "\ud800"}, {"\ud800": 1}],
}
NAMES = [*ODD, "app", "title", "body", "sound", "tags", "zone", "expires_in", "send_at", "apns", "other"]
GOOD_JOB: dict[str, Any] = {"user": "anna", "devices": [{"platform": "fcm", "token": "x" * 40}], "title": "Hello"}


@pytest.mark.parametrize("name", NAMES)
def test_a_worker_takes_what_the_careful_reader_takes(name: str) -> None:
    """A plain job is read by its types at once; what comes of any job is the same as if each field were checked."""
    for value in [*ANYTHING, *ODD.get(name, ODD["data"])]:
        kwargs = GOOD_JOB | {name: value}
        data = zlib.compress(json.dumps([FUNCTION, None, [], kwargs]).encode())
        careful, read = attempt(partial(Notification.from_kwargs, kwargs)), attempt(partial(read_notification, data))
        if isinstance(careful, InvalidNotificationError):
            assert str(read) == str(careful), value
        else:
            assert (type(read), read) == (Notification, careful), value


def test_a_job_of_another_function_is_no_notification() -> None:
    """None says so; arguments by position are refused where the function is ours."""
    assert read_notification(b'["other.function", null, [1], {}]') is None
    with pytest.raises(InvalidNotificationError, match="keyword arguments only"):
        read_notification(b'["notifier.deliver", null, [1], {}]')


@given(st.binary(max_size=200))
def test_any_bytes_are_a_call_or_refused(data: bytes) -> None:
    """Whatever stands in a job's data, decoding it gives a call or InvalidNotificationError, nothing else."""
    found = attempt(lambda: decode_data(data))
    if isinstance(found, InvalidNotificationError):
        assert found.field == "job"
    else:
        assert isinstance(found[0], str)
        assert isinstance(found[1], dict)


@given(st.text(max_size=200))
def test_a_mask_never_shows_all(token: str) -> None:
    """Of a token at most eight characters are shown, and never the whole."""
    shown = mask(token).replace("…", "", 1)
    assert len(shown) <= 8
    assert not token or shown != token


def test_a_repr_gives_nothing_away() -> None:
    """Neither text, data nor a token in full is in a repr: it ends in logs."""
    token = "ab" * 32
    notification = Notification(
        user="anna", devices=[Device("apns", token)], title="secret", body="hidden", data={"k": "v7"}
    )
    assert token not in repr(notification)
    for word in ("secret", "hidden", "v7"):
        assert word not in repr(notification)
    assert "anna" in repr(notification)


def test_a_repr_tells_of_what_is_wrong_too() -> None:
    """It is for whoever looks for the mistake."""
    assert repr(Device("apns", None)) == "Device('apns', '…')"  # type: ignore[arg-type]
    made = Notification("1", None)  # type: ignore[arg-type]
    assert repr(made) == "Notification(user='1', category='default', devices=None)"


class NoOffset(tzinfo):
    """A time zone that does not know how far it is from UTC."""

    def utcoffset(self, _: datetime | None) -> None:
        return None


@pytest.mark.parametrize("zone", [None, NoOffset()])
def test_a_time_without_an_offset_is_refused(zone: tzinfo | None) -> None:
    with pytest.raises(InvalidNotificationError) as caught:
        Notification(**GOOD, send_at=datetime(2030, 1, 1, tzinfo=zone)).validate()
    assert str(caught.value) == "send_at: needs a time zone, such as 2026-12-24T18:00:00+01:00"


def test_microseconds_are_rounded_up() -> None:
    """An expiry is never shortened by rounding, and given as a timedelta or as seconds it is the same."""
    assert Notification(**GOOD).expires_in_us is None
    assert Notification(**GOOD, expires_in=1e-9).expires_in_us == 1
    assert Notification(**GOOD, expires_in=1.5).expires_in_us == 1_500_000
    assert Notification(**GOOD, expires_in=timedelta(milliseconds=1500)).expires_in_us == 1_500_000


def test_the_edges_are_inside() -> None:
    """The longest expiry and collapse id, the latest time and the deepest data are accepted; one more is refused.

    In the scripts 2100 is the time of what waits for a route alone: a time of one's own lies before it.
    """
    assert moment(FAR_US) == LATEST
    deep: Any = 1
    for _ in range(DATA_DEPTH - 1):
        deep = [deep]
    edge: dict[str, Any] = {
        "expires_in": LONGEST_EXPIRY,
        "send_at": LATEST - timedelta(microseconds=1),
        "data": {"a": deep},
        "collapse_id": "ü" * 32,
    }
    Notification(**GOOD, **edge).validate()
    over: dict[str, Any] = {
        "expires_in": LONGEST_EXPIRY + timedelta(microseconds=1),
        "send_at": LATEST,
        "data": {"a": [[deep]]},
        "collapse_id": "ü" * 32 + "x",
    }
    for field, value in over.items():
        with pytest.raises(InvalidNotificationError) as caught:
            Notification(**GOOD, **edge | {field: value}).validate()
        assert caught.value.field == field
    Notification(**GOOD, send_at=datetime(1, 1, 1, tzinfo=UTC)).validate()


def test_a_badge_or_a_sound_alone_goes_where_the_platform_takes_it() -> None:
    """Apple shows and Expo hands on a badge alone; to the others it would be an empty message."""
    takes = {"apns": "ab" * 32, "expo": "ExponentPushToken[abcdefghij]"}
    refuses = {"fcm": "f" * 40, "hms": "h" * 40}
    for alone in ({"badge": 0}, {"badge": 3}, {"sound": "default"}):
        note = Notification(user="anna", devices=[Device(*item) for item in takes.items()], **alone)
        note.validate()
        check_payload(note)
        for item in refuses.items():
            with pytest.raises(InvalidNotificationError, match="body: nothing to send: give a title, a body or data"):
                replace(note, devices=[Device(*item)]).validate()


class Word(str, Enum):  # noqa: UP042 - a StrEnum is written by its value
    """As pydantic's and SQLAlchemy's users write names."""

    FCM = "fcm"
    TOKEN = "f" * 40
    ANNA = "anna"
    BLUE = "blue"
    HIGH = "high"


ADA = LocalProxy(lambda: "ada")  # as Flask's `g.name` or Django's lazy objects


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"title": ADA}, "title: must be text, is LocalProxy"),
        ({"user": ADA}, "user: must be text, is LocalProxy"),
        ({"devices": [Device("fcm", ADA)]}, r"devices\[0\].token: must be text, is LocalProxy"),
        ({"dedupe_key": ADA}, "dedupe_key: must be text, is LocalProxy"),
        ({"data": {"name": ADA}}, "data.name: LocalProxy is not JSON"),
        ({"data": {"names": [LocalProxy(lambda: {"first": "ada"})]}}, r"data.names\[0\]: LocalProxy is not JSON"),
    ],
)
def test_what_stands_for_text_is_refused(fields: dict[str, Any], why: str) -> None:
    """It says that it is text, and is written as a list of letters."""
    base: dict[str, Any] = {"user": "anna", "devices": [Device("fcm", "f" * 40)], "title": "Hello"}
    with pytest.raises(InvalidNotificationError, match=f"^{why}$"):
        Notification(**base | fields).validate()


class NotATime(datetime):
    """As pandas.NaT, which a table has where no time is given."""

    __hash__ = None  # type: ignore[assignment]

    def __ne__(self, other: object) -> bool:
        return True

    def utcoffset(self) -> timedelta:
        raise ValueError("NaTType does not support utcoffset")


def test_a_time_that_is_none_is_refused() -> None:
    """By its field, as all else that is wrong."""
    made = Notification("anna", [Device("fcm", "f" * 40)], "Hello", send_at=NotATime(2026, 1, 1))
    with pytest.raises(InvalidNotificationError, match=r"^send_at: is no time: leave it out to send at once$"):
        made.validate()


def test_a_member_of_an_enum_is_its_text() -> None:
    """In what the scripts compare with the names of routes and users, and in all that a worker reads."""
    device = Device(Word.FCM, Word.TOKEN)
    word: dict[str, Any] = {"collapse_id": Word.BLUE, "priority": Word.HIGH, "tags": [Word.BLUE], "zone": Word.BLUE}
    made = Notification(Word.ANNA, [device], "Hello", category=Word.BLUE, app=Word.BLUE, dedupe_key=Word.BLUE, **word)
    assert encode_targets(made) == "blue fcm:c|bDtXMmmQIjQHp82QDQGQ"
    assert f"{device.platform} {device.token}" == "fcm " + "f" * 40
    assert f"{made.user} {made.category} {made.app} {made.collapse_id} {made.dedupe_key}" == "anna blue blue blue blue"
    meta = {"user": "anna", "priority": "high", "tags": ["blue"]}
    assert json.loads(encode_meta(made)) == meta | dict.fromkeys(["category", "zone", "collapse_id"], "blue")
    assert decode_data(encode_data(made))[1]["devices"] == [{"platform": "fcm", "token": "f" * 40}]
