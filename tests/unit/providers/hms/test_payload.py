"""The options of Huawei: what it does not take is refused with its name when it is enqueued."""

from typing import Any

import pytest

from notifier import InvalidNotificationError
from notifier.providers.hms.payload import check_options

REFUSED = [
    ({"colapse_key": 1}, "options.hms.colapse_key: is not an option; known are bi_tag"),
    ({"collapse_key": "1"}, "options.hms.collapse_key: must be of the type int"),
    ({"collapse_key": 101}, "options.hms.collapse_key: must be -1 to 100"),
    ({"urgency": "SOON"}, "options.hms.urgency: must be HIGH or NORMAL"),
    ({"notification": {"colour": "#fff"}}, "options.hms.notification.colour: is not an option"),
    ({"notification": {"buttons": "one"}}, "options.hms.notification.buttons: must be of the type list"),
]


@pytest.mark.parametrize(("options", "why"), REFUSED)
def test_what_is_no_option_is_named(options: dict[str, Any], why: str) -> None:
    """An unknown name, another type, a value that is not allowed: each says where it is, and what would be right."""
    with pytest.raises(InvalidNotificationError) as caught:
        check_options(options)
    assert str(caught.value).startswith(why)


def test_what_is_an_option_is_taken() -> None:
    """Each of the right type, a list as a tuple too."""
    check_options({"collapse_key": -1, "urgency": "NORMAL", "notification": {"buttons": ("one",), "style": 1}})
