"""A broadcast channel in place of a device: `Device("apns", "channel:<id>")`. It imports no driver."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from notifier.errors import InvalidNotificationError
from notifier.notification import Notification
from notifier.providers.apns.options import push_type

PREFIX: Final = "channel:"
LIVE_ACTIVITY: Final = "liveactivity"
PAYLOAD_BYTES: Final = 5120
STORED_S: Final = 8 * 3600  # Apple keeps a channel's most recent message no longer
# Apple: base64, of any length; it goes into a header unchanged.
CHANNEL_ID: Final = re.compile(r"[A-Za-z0-9+/_-]{2,256}={0,2}")


@dataclass(frozen=True, slots=True)
class BroadcastChannel:
    """A channel. stores: whether Apple keeps its most recent message for devices that are off, 8 hours at most."""

    id: str
    stores: bool


def channel_of(token: str) -> str:
    """The channel's id, if a token names one; else ''."""
    return token.removeprefix(PREFIX) if token.startswith(PREFIX) else ""


def problem(channel_id: str) -> str:
    """Say what is wrong with a channel's id; '' if it is well formed."""
    return "" if CHANNEL_ID.fullmatch(channel_id) else "is not the id of a channel: base64, as Apple gave it"


def goes_to_channels(notification: Notification) -> bool:
    """Whether all of its Apple devices are channels."""
    return all(channel_of(device.token) for device in notification.devices if device.platform == "apns")


def check(notification: Notification) -> None:
    """Raise InvalidNotificationError if it goes to a channel, and Apple would take it for a device only."""
    if not any(device.platform == "apns" and channel_of(device.token) for device in notification.devices):
        return
    if push_type(notification) != LIVE_ACTIVITY:
        raise InvalidNotificationError("apns.push_type", f"must be {LIVE_ACTIVITY} for a channel")
    if notification.apns.get("event") == "start":
        why = "must be update or end for a channel: who subscribes has the Live Activity; start it on a device"
        raise InvalidNotificationError("apns.event", why)
