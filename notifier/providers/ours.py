"""The answers that our own platforms give alike. No driver is imported here: producers ask them too."""

from __future__ import annotations

import re
from pkgutil import resolve_name
from typing import Any, ClassVar

from notifier.notification.platforms import Platform
from notifier.providers.build import Build


class OurPlatform(Platform):
    """A platform of ours.

    settings_at, provider_at: its settings and its provider, written as an entry point is; each is imported when it is
    first asked for. token: the form of a device's token; form: that form in words.
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
        """See `Platform`: the provider of the app's section and of its secret."""
        return resolve_name(self.provider_at)(settings.app(app), settings.read_secret(build.environ, app))
