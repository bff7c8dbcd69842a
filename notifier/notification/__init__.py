"""A notification: what a producer hands over, and what a job's data and meta look like."""

from notifier.notification.notification import Device, Notification, route

__all__ = ["Device", "Notification", "route"]
