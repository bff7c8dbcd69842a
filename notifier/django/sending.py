"""The project's Notifier, and sending when a transaction has been committed."""

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

    It is sent as it is now, whatever becomes of its mappings until then.
    Returns the job id that the notification will have, so that it can be stored in the same transaction; None for one
    with a dedupe key: an earlier one may take its place, and that is known after the commit.
    Raises InvalidNotificationError at once. If Redis fails after the commit, the error is raised where the
    transaction ends; robust: it is logged by Django instead.
    """
    notifier = get_notifier()
    with notifier._builder.span("send", notification) as trace:  # noqa: SLF001 - what `send` does, in two steps
        job = notifier._builder.build(notification, trace=trace)  # noqa: SLF001
    transaction.on_commit(lambda: finished(notifier._enqueued([job])), using=using, robust=robust)  # noqa: SLF001
    return None if job.dedupe else job.id
