"""The text of a notification that stands for several."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from notifier.errors import InvalidNotificationError
from notifier.notification.notification import Notification
from notifier.notification.platforms import check_payload
from notifier.rules.category import Category, Digest


def counted(notification: Notification, category: Category, count: int) -> Notification:
    """Replace `{count}` in the title and the body, if the category collapses or has a digest.

    If a platform refuses the text of the digest, the newest notification keeps its own text, so that it is not lost.
    """
    if not category.counts:
        return notification
    if category.digest and count > 1:
        with suppress(InvalidNotificationError):
            digest = _with_count(notification, category.digest, count)
            check_payload(digest)
            return digest
    return _with_count(notification, notification, count)


def _with_count(notification: Notification, source: Notification | Digest, count: int) -> Notification:
    title, body = (text and text.replace("{count}", str(count)) for text in (source.title, source.body))
    return replace(notification, title=title, body=body)
