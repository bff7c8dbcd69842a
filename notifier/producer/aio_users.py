"""AsyncUsers: `Users` for asyncio. The same checks and exchanges; only the waiting differs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Any

from notifier.limiter.requests import Timeout
from notifier.producer.users import KEEP, Edits, HoursGiven, Windows, entry_of, nothing, unchanged
from notifier.rules.preferences import Preferences, What


class AsyncUsers:
    """`Users` for asyncio: every method is awaited, and `export` is an async iterator."""

    def __init__(
        self,
        begin: Callable[[Timeout], Awaitable[float]],
        prefer: Callable[..., Awaitable[Preferences]],
        preferences: Callable[[], AsyncIterator[tuple[str, Preferences]]],
        edits: Edits,
    ) -> None:
        self._begin = begin
        self._prefer = prefer
        self._preferences = preferences
        self._edits = edits

    async def set(
        self,
        user: str,
        *,
        tier: str | None = KEEP,
        windows: Windows | None = KEEP,
        gap: str | timedelta | None = KEEP,
        quiet_hours: HoursGiven | None = KEEP,
        zone: str | None = KEEP,
        who: str = "",
        timeout: Timeout = None,
    ) -> Preferences:
        """See `Users.set`."""
        given = {"tier": tier, "windows": windows, "gap": gap, "quiet_hours": quiet_hours, "zone": zone}
        spent = await self._begin(timeout)
        return await self._prefer(user, self._edits.set(user, given), who, timeout, spent)

    async def mute(
        self,
        user: str,
        *,
        until: datetime | timedelta | None = None,
        categories: Iterable[str] | None = None,
        what: What = "hold",
        who: str = "",
        timeout: Timeout = None,
    ) -> Preferences:
        """See `Users.mute`."""
        spent = await self._begin(timeout)
        return await self._prefer(user, self._edits.mute(user, until, categories, what), who, timeout, spent)

    async def unmute(
        self, user: str, *, categories: Iterable[str] | None = None, who: str = "", timeout: Timeout = None
    ) -> Preferences:
        """See `Users.unmute`."""
        spent = await self._begin(timeout)
        return await self._prefer(user, self._edits.unmute(user, categories), who, timeout, spent)

    async def get(self, user: str, *, timeout: Timeout = None) -> Preferences:
        """See `Users.get`."""
        return await self._prefer(user, unchanged, "", timeout)

    async def clear(self, user: str, *, who: str = "", timeout: Timeout = None) -> None:
        """See `Users.clear`."""
        await self._prefer(user, nothing, who, timeout)

    async def export(self) -> AsyncIterator[dict[str, Any]]:
        """See `Users.export`."""
        async for user, preferences in self._preferences():
            yield {"user": user, **preferences.as_dict()}

    async def apply(self, entries: Iterable[Mapping[str, Any]], *, who: str = "", timeout: Timeout = None) -> int:
        """See `Users.apply`. timeout: of each."""
        count = 0
        await self._begin(timeout)
        for count, entry in enumerate(entries, 1):
            user, edit = entry_of(self._edits, entry, count - 1)
            await self._prefer(user, edit, who, timeout)
        return count
