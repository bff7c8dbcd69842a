"""The message of Expo: its options stand beside the fields of every platform."""

from notifier import Device, Notification
from notifier.providers.expo.payload import message


def test_an_option_stands_in_the_message() -> None:
    """Expo gets a category's option beside the notification's own fields."""
    device = Device("expo", f"ExponentPushToken[{'ann':_>22}]")
    sent = Notification("ann", [device], title="Hello", priority="high", options={"expo": {"channelId": "chat"}})
    assert message(sent, device.token, 1_500_000) == (
        b'{"to":"' + device.token.encode() + b'","title":"Hello","priority":"high","ttl":2,"channelId":"chat"}'
    )
