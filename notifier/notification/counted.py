"""The text of a notification that stands for several."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from notifier.errors import InvalidNotificationError
from notifier.notification.notification import Notification
from notifier.notification.platforms import check_payload
from notifier.rules.category import Category, Digest


def counted(notification: Notification, category: Category, count: int) -> Notification:
    """The notification with `{count}` in its title and body replaced, where its category collapses or sums up.

    Where a platform would not take the text of the digest, the newest goes as itself, so that not all of them are lost.
    """
    if not category.counts:
        return notification
    if category.digest and count > 1:
        with suppress(InvalidNotificationError):
            digest = _told(notification, category.digest, count)
            check_payload(digest)
            return digest
    return _told(notification, notification, count)


def _told(notification: Notification, of: Notification | Digest, count: int) -> Notification:
    title, body = (text and text.replace("{count}", str(count)) for text in (of.title, of.body))
    return replace(notification, title=title, body=body)
