"""The reader of what others wrote as JSON."""

import pytest

from notifier.errors import InvalidNotificationError
from notifier.notification.json_values import check_mapping, fields_of, read_object


@pytest.mark.parametrize("body", [b"", b"\xff\xfe", b"[]", b"null", b"7", b"<html>", b"[" * 100_000, b'{"a":'])
def test_what_is_no_object_has_no_fields(body: bytes) -> None:
    """Reading never raises."""
    assert read_object(body) is None
    assert fields_of(body) == {}


def test_an_object_is_read() -> None:
    """What is one is what it says; where there is nothing to read, there are no fields."""
    assert read_object('{"a": 1}') == fields_of(b'{"a": 1}') == {"a": 1}
    assert fields_of(None) == {}


def test_of_a_long_key_the_path_shows_the_beginning() -> None:
    """Each of thousands of values has a path: with a key of a megabyte in it, to check them would take minutes."""
    with pytest.raises(InvalidNotificationError) as refused:
        check_mapping("data", {"k" * 1_000_000: {"a": [1, object()]}})
    assert str(refused.value) == f"data.{'k' * 200}.a[1]: object is not JSON"
