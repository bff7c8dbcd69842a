"""The part of `Platform` that our own platforms share. It imports no driver: producers use it too."""

from __future__ import annotations

import re
from pkgutil import resolve_name
from typing import Any, ClassVar

from notifier.notification.platforms import Platform
from notifier.providers.build import Build


class OurPlatform(Platform):
    """A platform of this package.

    settings_at, provider_at: ``module:name`` of its settings and its provider, which are imported when first needed.
    token: the form of a device's token; form: that form in words.
    """

    settings_at: ClassVar[str]
    provider_at: ClassVar[str]
    token: ClassVar[re.Pattern[str]]
    form: ClassVar[str]

    def token_problem(self, token: str) -> str:
        return "" if self.token.fullmatch(token) else f"is not a well-formed {self.name} token: {self.form}"

    def settings(self) -> Any:
        return resolve_name(self.settings_at)

    def provider(self, settings: Any, app: str | None, build: Build) -> Any:
        """See `Platform`. The class at `provider_at` gets the app's settings and its secret."""
        return resolve_name(self.provider_at)(settings.app(app), settings.read_secret(build.environ, app))
