"""Push notifications that never burst a user: enqueue here, run `notifier worker` beside it."""

from typing import TYPE_CHECKING

from notifier.lazy import lazily

if TYPE_CHECKING:
    from notifier.errors import (
        ChannelError as ChannelError,
        InvalidNotificationError as InvalidNotificationError,
        InvalidPreferenceError as InvalidPreferenceError,
        LimiterUnreachableError as LimiterUnreachableError,
        NotifierError as NotifierError,
        NotReplicatedError as NotReplicatedError,
        OverloadedError as OverloadedError,
        RedisUnusableError as RedisUnusableError,
        SettingsError as SettingsError,
    )
    from notifier.limiter import Hold as Hold, Limiter as Limiter, Permit as Permit
    from notifier.notification import Device as Device, Notification as Notification
    from notifier.notification.job import deliver as deliver
    from notifier.notification.throttled import mark_sent as mark_sent, throttled as throttled
    from notifier.producer.aio import AsyncNotifier as AsyncNotifier
    from notifier.producer.cancel import Cancellation as Cancellation
    from notifier.producer.channels import to_channel as to_channel
    from notifier.producer.events import Ended as Ended
    from notifier.producer.exchanges import Status as Status
    from notifier.producer.feedback import Gone as Gone
    from notifier.producer.notifier import Notifier as Notifier
    from notifier.producer.permits import UserPermit as UserPermit
    from notifier.queue.circuits import Held as Held
    from notifier.queue.history import Record as Record
    from notifier.rules.calendar_windows import CalendarWindow as CalendarWindow
    from notifier.rules.category import Category as Category
    from notifier.rules.hours import Hours as Hours
    from notifier.rules.policies import Policies as Policies, Rules as Rules
    from notifier.rules.policy import Burst as Burst, Policy as Policy, Window as Window
    from notifier.rules.preferences import Mute as Mute, Preferences as Preferences
    from notifier.settings import Settings as Settings, load_settings as load_settings

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
