"""The options of Expo and of Huawei: what they do not take is refused with its name when it is enqueued."""

from typing import Any

import pytest

from notifier import Device, InvalidNotificationError, Notification
from notifier.providers.expo.payload import check_options as check_expo
from notifier.providers.expo.payload import message as expo_message
from notifier.providers.hms.payload import check_options as check_hms

REFUSED = [
    (check_expo, {"tiltle": "T"}, "options.expo.tiltle: is not an option; known are categoryId"),
    (check_expo, {"mutableContent": "yes"}, "options.expo.mutableContent: must be of the type bool"),
    (check_expo, {"priority": "urgent"}, "options.expo.priority: must be one of default, normal, high"),
    (check_hms, {"colapse_key": 1}, "options.hms.colapse_key: is not an option; known are bi_tag"),
    (check_hms, {"collapse_key": "1"}, "options.hms.collapse_key: must be of the type int"),
    (check_hms, {"collapse_key": 101}, "options.hms.collapse_key: must be -1 to 100"),
    (check_hms, {"urgency": "SOON"}, "options.hms.urgency: must be HIGH or NORMAL"),
    (check_hms, {"notification": {"colour": "#fff"}}, "options.hms.notification.colour: is not an option"),
    (check_hms, {"notification": {"buttons": "one"}}, "options.hms.notification.buttons: must be of the type list"),
]


@pytest.mark.parametrize(("check", "options", "why"), REFUSED)
def test_what_is_no_option_is_named(check: Any, options: dict[str, Any], why: str) -> None:
    """An unknown name, another type, a value that is not allowed: each says where it is, and what would be right."""
    with pytest.raises(InvalidNotificationError) as caught:
        check(options)
    assert str(caught.value).startswith(why)


@pytest.mark.parametrize(
    ("check", "options"),
    [
        (check_expo, {"priority": "high", "_contentAvailable": True, "richContent": {"image": "https://a.example"}}),
        (check_hms, {"collapse_key": -1, "urgency": "NORMAL", "notification": {"buttons": ("one",), "style": 1}}),
    ],
)
def test_what_is_an_option_is_taken(check: Any, options: dict[str, Any]) -> None:
    """Each of the right type, a list as a tuple too."""
    check(options)


def test_an_option_stands_in_the_message() -> None:
    """Expo gets a category's option beside the notification's own fields."""
    device = Device("expo", f"ExponentPushToken[{'ann':_>22}]")
    sent = Notification("ann", [device], title="Hello", options={"expo": {"channelId": "chat"}})
    assert expo_message(sent, device.token, 1_500_000) == (
        b'{"to":"' + device.token.encode() + b'","title":"Hello","ttl":2,"channelId":"chat"}'
    )
