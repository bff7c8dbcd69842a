"""A Django app: `INSTALLED_APPS = [..., "notifier.django"]`. See docs/how-to/frameworks.md.

NOTIFIER_CONFIG in Django's settings names the YAML. Without it, the app finds the YAML as `Notifier.from_config` does.
"""

from typing import TYPE_CHECKING

from notifier.lazy import lazily

if TYPE_CHECKING:
    from notifier.django.sending import get_notifier as get_notifier, send_on_commit as send_on_commit

# Lazily, because Django imports this package before it knows its settings.
__getattr__, __dir__ = lazily(__name__, {"notifier.django.sending": "get_notifier send_on_commit"})
