"""Where the extra apns2 is not installed: what is said, and that nothing else suffers. With it: tests/extra_apns2."""

import importlib

import pytest

from notifier.errors import SettingsError
from notifier.settings import Settings
from workers.configuration.wiring import build_providers


def test_the_module_says_what_to_install() -> None:
    """Importing the client without apns2, or beside an h2 that its hyper cannot use, is told with the way out."""
    with pytest.raises(SettingsError, match=r"not installed.*environment of its own.*pip install 'push-throttle"):
        importlib.import_module("notifier.providers.apns.pyapns2.provider")


def test_a_worker_that_is_configured_for_it_says_so() -> None:
    """`client: apns2` is a setting like any other; where it cannot be had, building the providers tells it."""
    apns = {"client": "apns2", "team_id": "ABCDE12345", "key_id": "FGHIJ67890", "topic": "com.example.app"}
    settings = Settings.model_validate({"providers": {"apns": apns}})
    with pytest.raises(SettingsError, match=r"providers\.apns\.client: apns2"):
        build_providers(settings, {"NOTIFIER_APNS_KEY": "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----"})
