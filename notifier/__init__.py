"""Push notifications that never burst a user: enqueue here, run `python -m workers` beside it."""

from notifier.client import Notifier, Status
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
from notifier.feedback import Gone
from notifier.job import deliver
from notifier.limiter import Hold, Limiter, Permit, RedisLimiter
from notifier.limiter.routes import Held
from notifier.notification import Device, Notification
from notifier.policies import Policies, Rules
from notifier.policy import Category, Policy, Window

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
