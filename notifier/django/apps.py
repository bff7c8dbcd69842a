"""Registers the app with Django, and its check of the configuration with `manage.py check`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.apps import AppConfig
from django.core.checks import Error, register

from notifier.errors import SettingsError


class NotifierConfig(AppConfig):
    """The app `notifier`."""

    name = "notifier.django"
    label = "notifier"
    verbose_name = "Push notifications"

    def ready(self) -> None:
        register(check_configuration)


def check_configuration(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[Error]:
    """Return one error for each mistake in the configuration."""
    del app_configs  # the whole project has one configuration
    from notifier.django.sending import config_path  # noqa: PLC0415 - only this check needs it
    from notifier.settings import load_settings  # noqa: PLC0415 - as above

    try:
        load_settings(config_path())
    except SettingsError as error:
        return [Error(line, id="notifier.E001") for line in str(error).splitlines()]
    return []
