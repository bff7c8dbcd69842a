"""Options of a platform: what it does not take is refused with its name when it is enqueued."""

from typing import Any

import pytest

from notifier import InvalidNotificationError
from notifier.providers.expo import payload as expo
from notifier.providers.hms import payload as hms

CHECKS = {"expo": expo.check_options, "hms": hms.check_options}
REFUSED = [
    ("expo", {"tiltle": "T"}, "options.expo.tiltle: is not an option; known are categoryId"),
    ("expo", {"mutableContent": "yes"}, "options.expo.mutableContent: must be of the type bool"),
    ("expo", {"priority": "urgent"}, "options.expo.priority: must be one of default, normal, high"),
    ("hms", {"colapse_key": 1}, "options.hms.colapse_key: is not an option; known are bi_tag"),
    ("hms", {"collapse_key": "1"}, "options.hms.collapse_key: must be of the type int"),
    ("hms", {"collapse_key": 101}, "options.hms.collapse_key: must be -1 to 100"),
    ("hms", {"urgency": "SOON"}, "options.hms.urgency: must be HIGH or NORMAL"),
    ("hms", {"notification": {"colour": "#fff"}}, "options.hms.notification.colour: is not an option"),
    ("hms", {"notification": {"buttons": "one"}}, "options.hms.notification.buttons: must be of the type list"),
]


@pytest.mark.parametrize(("platform", "options", "why"), REFUSED, ids=[why for *_, why in REFUSED])
def test_what_is_no_option_is_named(platform: str, options: dict[str, Any], why: str) -> None:
    """An unknown name, another type, a value that is not allowed: each says where it is, and what would be right."""
    with pytest.raises(InvalidNotificationError) as caught:
        CHECKS[platform](options)
    assert str(caught.value).startswith(why)


@pytest.mark.parametrize(
    ("platform", "options"),
    [
        ("expo", {"priority": "high", "_contentAvailable": True, "richContent": {"image": "https://a.example"}}),
        ("hms", {"collapse_key": -1, "urgency": "NORMAL", "notification": {"buttons": ("one",), "style": 1}}),
    ],
    ids=["expo", "hms"],
)
def test_what_is_an_option_is_taken(platform: str, options: dict[str, Any]) -> None:
    """Each of the right type, a list as a tuple too."""
    CHECKS[platform](options)
