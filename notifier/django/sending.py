"""The project's Notifier, and a send that waits for the commit of the transaction."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from notifier.errors import needs_extra
from notifier.notification import Notification
from notifier.producer.notifier import Notifier
from notifier.scripts.loader import finished

with needs_extra("notifier.django", "django"):
    from django.conf import settings
    from django.db import transaction


def config_path() -> Path | None:
    """Return the path that NOTIFIER_CONFIG in Django's settings names, or None."""
    named = getattr(settings, "NOTIFIER_CONFIG", None)
    return None if named is None else Path(named)


@cache
def get_notifier() -> Notifier:
    """Return the one Notifier of this process; the first call makes it. All threads, and forks, may use it.

    Raises SettingsError if the configuration cannot be used; `manage.py check` says so beforehand.
    """
    return Notifier.from_config(config_path())


def send_on_commit(notification: Notification, *, using: str | None = None, robust: bool = False) -> str | None:
    """Send when the transaction commits, never if it is rolled back. Without a transaction, send at once.

    The call encodes the notification: later changes to its mappings have no effect.
    Returns the job id, so that the caller can store it in the same transaction. With a dedupe key it returns None:
    only the commit shows whether an earlier notification takes the place of this one.
    Raises InvalidNotificationError at once. If Redis fails after the commit, the end of the transaction raises the
    error; with `robust` Django logs it instead.
    """
    notifier = get_notifier()
    with notifier._builder.span("send", notification) as trace:  # noqa: SLF001 - `send` in two steps
        job = notifier._builder.build(notification, trace=trace)  # noqa: SLF001
    transaction.on_commit(lambda: finished(notifier._enqueued([job])), using=using, robust=robust)  # noqa: SLF001
    return None if job.dedupe else job.id
