"""The project's Notifier, and sending when a transaction has been committed."""

from __future__ import annotations

import secrets
from functools import cache
from pathlib import Path

from notifier.errors import needs_extra
from notifier.notification import Notification
from notifier.producer.notifier import Notifier

with needs_extra("notifier.django", "django"):
    from django.conf import settings
    from django.db import transaction


def config_path() -> Path | None:
    """Where Django's settings say that the configuration is; None where they do not."""
    named = getattr(settings, "NOTIFIER_CONFIG", None)
    return None if named is None else Path(named)


@cache
def get_notifier() -> Notifier:
    """The one Notifier of this process, for all threads; made by the first call. Forks of the process may use it too.

    Raises SettingsError where the configuration cannot be used; `manage.py check` says so beforehand.
    """
    return Notifier.from_config(config_path())


def send_on_commit(notification: Notification, *, using: str | None = None, robust: bool = False) -> str | None:
    """Send once the transaction is committed, and not at all if it is rolled back; without a transaction at once.

    Returns the job id that the notification will have, so that it can be stored in the same transaction; None for one
    with a dedupe key: an earlier one may take its place, and that is known after the commit.
    Raises InvalidNotificationError at once. If Redis fails after the commit, the error is raised where the
    transaction ends; robust: it is logged by Django instead.
    """
    notifier = get_notifier()
    notifier.check(notification)
    job_id = secrets.token_hex(10) if notification.dedupe_key is None else None
    transaction.on_commit(lambda: notifier.send(notification, job_id=job_id), using=using, robust=robust)
    return job_id
