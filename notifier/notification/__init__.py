"""Notifications and their devices, and how they are written as RQ jobs."""

from notifier.notification.notification import Device, Notification, route

__all__ = ["Device", "Notification", "route"]
