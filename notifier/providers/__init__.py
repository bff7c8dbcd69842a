"""The providers: a file or a folder each, the one importer of its driver. What is asked at enqueue stands here."""

from __future__ import annotations

from notifier.errors import InvalidNotificationError
from notifier.notification import Notification
from notifier.providers.apns import payload as apns_payload
from notifier.providers.fcm import options as fcm_options
from notifier.providers.fcm import payload as fcm_payload
from notifier.providers.webpush import payload as webpush_payload


def check_payload(notification: Notification) -> None:
    """Raise InvalidNotificationError unless the payload fits every platform it goes to, in bytes on the wire."""
    if notification.fcm:
        fcm_options.check_options(notification.fcm)
    platforms = {device.platform for device in notification.devices}
    if "apns" in platforms or notification.apns:
        _check_size("apns", len(apns_payload.payload(notification)), apns_payload.limit(notification))
    if "fcm" in platforms:
        _check_size("fcm", fcm_payload.payload_size(notification), fcm_payload.PAYLOAD_BYTES)
    if "webpush" in platforms:
        _check_size("webpush", len(webpush_payload.payload(notification)), webpush_payload.PAYLOAD_BYTES)


def _check_size(platform: str, size: int, limit: int) -> None:
    if size > limit:
        raise InvalidNotificationError(
            "body", f"makes {size} bytes on the wire to {platform}; at most {limit} are taken"
        )
