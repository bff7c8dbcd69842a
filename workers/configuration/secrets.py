"""Live secrets: the keys and certificates of the providers are read again when their files change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import structlog
from redis.exceptions import RedisError

from notifier.errors import SettingsError
from notifier.providers.contract import Provider
from notifier.settings import Settings
from notifier.settings.secret_files import SecretFiles
from workers.sending.sender import Sender
from workers.served import Served

# Builds the providers of one platform, by route. Raises SettingsError.
BuildPlatform: TypeAlias = Callable[[str], Mapping[str, Provider]]


class ProviderSecrets:
    """Follows the files of one worker's providers: by platform, as the apps of a platform may share a connection.

    If a file cannot be used, this is logged, and the platform's old providers stay.
    """

    def __init__(self, settings: Settings, build: BuildPlatform) -> None:
        """Create it before the providers are built, or it misses a file that changes meanwhile."""
        platforms = settings.providers.platforms()
        self._files = {name: SecretFiles(section.files()) for name, section in platforms.items() if not section.prints}
        self._build = build
        self._mended: set[str] = set()  # platforms whose circuits must be probed
        self._log = structlog.get_logger("notifier.worker")

    async def follow(self, sender: Sender, served: Sequence[Served]) -> bool:
        """Take up changed files: sends under way end with the old secrets, and all later ones use the new.

        Has the circuits probed at once, as messages may wait because the old key was refused; returns whether it did.
        If this raises one of Redis's errors, the next call has them probed.
        """
        for platform in await asyncio.to_thread(self._changed):
            try:
                providers = self._build(platform)
            except SettingsError as error:
                self._log.error("secrets_refused", platform=platform, problems=str(error).splitlines())
            else:
                sender.replace(providers)
                self._mended.add(platform)
                self._log.info("secrets_taken_up", platform=platform)
        mended = sorted(self._mended)
        for platform in mended:
            for each in served:
                with contextlib.suppress(*[RedisError] * (len(served) > 1)):
                    await each.probe(platform)
            self._mended.remove(platform)
        return bool(mended)

    def _changed(self) -> list[str]:
        return [platform for platform, files in self._files.items() if files.changed()]
