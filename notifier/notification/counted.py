"""The text of a notification that stands for several."""

from __future__ import annotations

from dataclasses import replace

from notifier.notification.notification import Notification
from notifier.rules.category import Category


def counted(notification: Notification, category: Category, count: int) -> Notification:
    """The notification with `{count}` in its title and body replaced, where its category collapses or sums up."""
    if not category.counts:
        return notification
    of = category.digest if category.digest and count > 1 else notification
    title, body = (text and text.replace("{count}", str(count)) for text in (of.title, of.body))
    return replace(notification, title=title, body=body)
