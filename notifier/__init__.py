"""Push notifications that never burst a user: enqueue here, run `notifier worker` beside it."""

from typing import TYPE_CHECKING

from notifier.lazy import lazily

if TYPE_CHECKING:
    from notifier.errors import (
        ChannelError,
        InvalidNotificationError,
        InvalidPreferenceError,
        LimiterUnreachableError,
        NotifierError,
        NotReplicatedError,
        OverloadedError,
        RedisUnusableError,
        SettingsError,
    )
    from notifier.limiter import Hold, Limiter, Permit
    from notifier.notification import Device, Notification
    from notifier.notification.job import deliver
    from notifier.notification.throttled import mark_sent, throttled
    from notifier.producer.aio import AsyncNotifier
    from notifier.producer.cancel import Cancellation
    from notifier.producer.channels import to_channel
    from notifier.producer.events import Ended
    from notifier.producer.exchanges import Status
    from notifier.producer.feedback import Gone
    from notifier.producer.notifier import Notifier
    from notifier.producer.permits import UserPermit
    from notifier.queue.circuits import Held
    from notifier.queue.history import Record
    from notifier.rules.calendar_windows import CalendarWindow
    from notifier.rules.category import Category
    from notifier.rules.hours import Hours
    from notifier.rules.policies import Policies, Rules
    from notifier.rules.policy import Burst, Policy, Window
    from notifier.rules.preferences import Mute, Preferences
    from notifier.settings import Settings, load_settings

__all__ = [
    "AsyncNotifier",
    "Burst",
    "CalendarWindow",
    "Cancellation",
    "Category",
    "ChannelError",
    "Device",
    "Ended",
    "Gone",
    "Held",
    "Hold",
    "Hours",
    "InvalidNotificationError",
    "InvalidPreferenceError",
    "Limiter",
    "LimiterUnreachableError",
    "Mute",
    "NotReplicatedError",
    "Notification",
    "Notifier",
    "NotifierError",
    "OverloadedError",
    "Permit",
    "Policies",
    "Policy",
    "Preferences",
    "Record",
    "RedisUnusableError",
    "Rules",
    "Settings",
    "SettingsError",
    "Status",
    "UserPermit",
    "Window",
    "deliver",
    "load_settings",
    "mark_sent",
    "throttled",
    "to_channel",
]

__getattr__, __dir__ = lazily(
    __name__,
    {
        "notifier.queue.circuits": "Held",
        "notifier.queue.history": "Record",
        "notifier.errors": (
            "ChannelError InvalidNotificationError InvalidPreferenceError LimiterUnreachableError NotifierError "
            "NotReplicatedError OverloadedError RedisUnusableError SettingsError"
        ),
        "notifier.limiter": "Hold Limiter Permit",
        "notifier.notification": "Device Notification",
        "notifier.notification.job": "deliver",
        "notifier.notification.throttled": "mark_sent throttled",
        "notifier.producer.aio": "AsyncNotifier",
        "notifier.producer.cancel": "Cancellation",
        "notifier.producer.channels": "to_channel",
        "notifier.producer.events": "Ended",
        "notifier.producer.exchanges": "Status",
        "notifier.producer.feedback": "Gone",
        "notifier.producer.notifier": "Notifier",
        "notifier.producer.permits": "UserPermit",
        "notifier.rules.calendar_windows": "CalendarWindow",
        "notifier.rules.policies": "Policies Rules",
        "notifier.rules.category": "Category",
        "notifier.rules.policy": "Burst Policy Window",
        "notifier.rules.preferences": "Mute Preferences",
        "notifier.rules.hours": "Hours",
        "notifier.settings": "Settings load_settings",
    },
)
