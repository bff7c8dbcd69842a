"""Calls of RQ's jobs are read whatever they hold, and nothing that a pickle names runs."""

import io
import json
import pickle
import zlib
from datetime import UTC, datetime
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from notifier import throttled
from notifier.errors import InvalidNotificationError
from notifier.notification.rq_call import open_pickle, read_call
from notifier.notification.throttled import MARKER
from workers.rq.functions import PLAIN, AllowedFunctions

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


class Runs:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


@given(args=st.lists(VALUES), protocol=st.integers(3, pickle.HIGHEST_PROTOCOL))
def test_plain_values_are_read_as_they_are(args: list[Any], protocol: int) -> None:
    """Of every protocol that RQ writes."""
    data = pickle.dumps(("app.notify", None, tuple(args), {"more": args}), protocol)
    assert read_call(zlib.compress(data)) == ("app.notify", tuple(args), {"more": args}, True, [])
    assert open_pickle(data, None) == ("app.notify", None, tuple(args), {"more": args})


def test_an_object_is_not_built(tmp_path: Path) -> None:
    """It is read past, named, and never built where it may not be."""
    data = pickle.dumps(("app.notify", None, (42, Runs(tmp_path / "ran")), {}))
    call = read_call(data)
    assert call.args[0] == 42
    assert call.needs == [f"{open.__module__}.open"]
    with pytest.raises(ValueError, match=rf"it needs {open.__module__}\.open"):
        open_pickle(data, PLAIN.__contains__)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("protocol", [0, 1, 2])
def test_the_class_that_may_be_built_is_built(protocol: int) -> None:
    """Python would take an old pickle's `commands` for `subprocess`, whose functions nobody allowed."""
    asked: list[str] = []
    with pytest.raises(ValueError, match="No module named 'commands'"):
        open_pickle(b"\x80" + bytes([protocol]) + b"ccommands\ncall\n(]tR.", lambda name: not asked.append(name))  # type: ignore[func-returns-value]
    assert asked == ["commands.call"]


@pytest.mark.parametrize("what", ["Runs", "notify"])
def test_what_may_be_named_is_not_changed(what: str) -> None:
    """A class or a function that is allowed stays as the app wrote it, for the job that this very pickle calls."""
    named = b"".join(b"\x8c" + bytes([len(part)]) + part.encode() for part in (__name__, what))
    pickled = b"\x80\x04" + named + b"\x93(N}\x8c\x05ruledNstb."
    with pytest.raises(ValueError, match="a class or a function would be changed"):
        open_pickle(pickled, lambda _: True)
    assert not hasattr(globals()[what], "ruled")


def test_pythons_own_values_may_be_built() -> None:
    at = datetime(2026, 1, 1, tzinfo=UTC)
    values = (at, at.astimezone(ZoneInfo("Europe/Berlin")), Decimal("1.5"), UUID(int=7), {1}, frozenset({2}))
    data = pickle.dumps(("app.notify", None, values, {}))
    allowed = AllowedFunctions([])
    assert all(allowed.opens(name) for name in read_call(data).needs)
    assert open_pickle(data, allowed.opens)[2] == values


@pytest.mark.parametrize("asked", [(ZoneInfo, "from_file"), (datetime, "now"), (Runs, "_unpickle")], ids=repr)
def test_getattr_gives_what_makes_a_zone_and_nothing_else(asked: tuple[type, str]) -> None:
    """Also not of a class that may be built."""

    class Asks:
        def __reduce__(self) -> Any:
            return getattr, asked

    with pytest.raises(ValueError, match="it needs getattr"):
        open_pickle(pickle.dumps(Asks()), lambda _: True)


@given(data=st.binary(max_size=200).map(lambda tail: b"\x80\x04" + tail))
def test_a_forged_pickle_is_refused(data: bytes) -> None:
    """Whatever it holds, it is no call, and costs no memory that it asks for."""
    with pytest.raises(InvalidNotificationError):
        read_call(data)


@pytest.mark.parametrize("index", [2**31, 2**32 - 1])
def test_a_forged_index_costs_no_memory(index: int) -> None:
    """LONG_BINPUT makes Python's C reader allot as many places as the index says."""
    stream = io.BytesIO(b"\x80\x04K\x01r" + index.to_bytes(4, "little") + b".")
    with pytest.raises(InvalidNotificationError):
        read_call(stream.getvalue())


@pytest.mark.parametrize(
    "value",
    [
        b"}N" + b"\x85" * 3 + b"Ns",
        b"}(N" + b"\x85" * 3 + b"Nu",
        b"(N" + b"\x85" * 3 + b"Nd",
        b"\x8f(N" + b"\x85" * 3 + b"\x90",
        b"(N" + b"\x85" * 3 + b"\x91",
        b"}N" + b"2\x86" * 60 + b"Ns",  # 120 bytes, and a hash that would ask 2**60 others
        b"}(" + b"N" * 101 + b"tNs",
        b"}\x8a\x09" + (2**64).to_bytes(9, "little") + b"Ns",
    ],
    ids=["setitem", "setitems", "dict", "additems", "frozenset", "doubled", "long", "number"],
)
def test_a_key_that_costs_much_to_hash_is_refused(value: bytes) -> None:
    """A tuple of tuples without end, as a key or in a set, would overflow the C stack: that is the worker's death."""
    with pytest.raises(InvalidNotificationError, match="neither JSON nor a pickle"):
        read_call(b"\x80\x05(\x8c\x05app.fN" + value + b"\x85}t.")
    with pytest.raises(ValueError, match="a key is a tuple of tuples, or too long"):
        open_pickle(b"\x80\x05" + value + b".", PLAIN.__contains__)


def test_many_values_of_an_app_are_read() -> None:
    names = [f"user-{n}" for n in range(100_000)]
    assert read_call(pickle.dumps(("app.notify", None, (names,), {}))).args == (names,)


@pytest.mark.parametrize("key", [(1, "a"), 2**64 - 1, frozenset({(1, 2)}), None, 1.5, b"x", UUID(int=2**127)])
def test_keys_of_apps_are_read(key: object) -> None:
    data = pickle.dumps(("app.notify", None, ({key: 1}, {key}), {}))
    assert read_call(data).function == "app.notify"
    assert open_pickle(data, AllowedFunctions([]).opens)[2] == ({key: 1}, {key})


@throttled(user="user_id", category="chat")
def notify(text: str, user_id: object = None) -> str:
    return f"{user_id}: {text}"


def test_the_decorator_leaves_the_function_as_it_is() -> None:
    assert notify("x", 7) == "7: x"
    assert getattr(notify, MARKER).meta(notify, ["x", 7], {}) == {"user": "7", "category": "chat"}
    assert getattr(notify, MARKER).meta(notify, ["x"], {"user_id": "Ann"})["user"] == "Ann"


@pytest.mark.parametrize(
    ("args", "says"), [(["x"], "not NoneType"), (["x", ""], "must not be empty"), (["x", True], "bool")]
)
def test_a_call_for_nobody_is_refused(args: list[object], says: str) -> None:
    with pytest.raises(InvalidNotificationError, match=says):
        getattr(notify, MARKER).meta(notify, args, {})


def test_a_parameter_that_is_not_there_is_refused_at_once() -> None:
    with pytest.raises(TypeError, match=r"throttled\(user='usr'\): f has no such parameter; it has user, text"):

        @throttled(user="usr")
        def f(user: str, text: str) -> None: ...

    with pytest.raises(TypeError, match=r"functools.partial\(.+\) has no such parameter; it has text, user_id"):
        throttled(user="usr")(partial(notify))


def test_json_is_read_as_well() -> None:
    assert read_call(json.dumps(["app.f", None, [1], {"a": 2}]).encode()) == ("app.f", [1], {"a": 2}, False, ())
