"""Push notifications that never burst a user: enqueue here, run `notifier worker` beside it."""

from notifier.dispatch.circuits import Held
from notifier.errors import (
    InvalidNotificationError,
    LimiterUnreachableError,
    NotifierError,
    NotReplicatedError,
    OverloadedError,
    RedisUnusableError,
    SettingsError,
    ShardsUnusableError,
)
from notifier.limiter import Hold, Limiter, Permit, RedisLimiter
from notifier.notification import Device, Notification
from notifier.notification.job import deliver
from notifier.producer.backend import Status
from notifier.producer.feedback import Gone
from notifier.producer.notifier import Notifier
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import Category, Policy, Window

__all__ = [
    "Category",
    "Device",
    "Gone",
    "Held",
    "Hold",
    "InvalidNotificationError",
    "Limiter",
    "LimiterUnreachableError",
    "NotReplicatedError",
    "Notification",
    "Notifier",
    "NotifierError",
    "OverloadedError",
    "Permit",
    "Policies",
    "Policy",
    "RedisLimiter",
    "RedisUnusableError",
    "Rules",
    "SettingsError",
    "ShardsUnusableError",
    "Status",
    "Window",
    "deliver",
]
