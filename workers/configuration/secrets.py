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
    """Follows the files of the providers of one worker: by platform, as the apps of one may share a connection.

    A file that cannot be used is logged, and all of its platform's old ones stay in force.
    """

    def __init__(self, settings: Settings, build: BuildPlatform) -> None:
        """Before the providers are built, or a file that changes meanwhile is not noticed."""
        platforms = settings.providers.platforms()
        self._files = {name: SecretFiles(section.files()) for name, section in platforms.items() if not section.prints}
        self._build = build
        self._mended: set[str] = set()  # platforms whose circuits are to be probed
        self._log = structlog.get_logger("notifier.worker")

    async def follow(self, sender: Sender, served: Sequence[Served]) -> bool:
        """Take up what has changed: sends that are under way end as they began, and all later ones go by the new.

        What waits because the old key was refused is to be tried at once; returns whether there may be some.
        Raises redis's errors; then the next call tries it.
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
