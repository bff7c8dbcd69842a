"""The options of Expo: what it does not take is refused with its name when it is enqueued."""

from typing import Any

import pytest

from notifier import Device, InvalidNotificationError, Notification
from notifier.providers.expo.payload import check_options, message

REFUSED = [
    ({"tiltle": "T"}, "options.expo.tiltle: is not an option; known are categoryId"),
    ({"mutableContent": "yes"}, "options.expo.mutableContent: must be of the type bool"),
    ({"priority": "urgent"}, "options.expo.priority: must be one of default, normal, high"),
]


@pytest.mark.parametrize(("options", "why"), REFUSED)
def test_what_is_no_option_is_named(options: dict[str, Any], why: str) -> None:
    """An unknown name, another type, a value that is not allowed: each says where it is, and what would be right."""
    with pytest.raises(InvalidNotificationError) as caught:
        check_options(options)
    assert str(caught.value).startswith(why)


def test_what_is_an_option_is_taken() -> None:
    """Each of the right type, a list as a tuple too."""
    check_options({"priority": "high", "_contentAvailable": True, "richContent": {"image": "https://a.example"}})


def test_an_option_stands_in_the_message() -> None:
    """Expo gets a category's option beside the notification's own fields."""
    device = Device("expo", f"ExponentPushToken[{'ann':_>22}]")
    sent = Notification("ann", [device], title="Hello", options={"expo": {"channelId": "chat"}})
    assert message(sent, device.token, 1_500_000) == (
        b'{"to":"' + device.token.encode() + b'","title":"Hello","ttl":2,"channelId":"chat"}'
    )
