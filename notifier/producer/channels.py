"""Broadcast channels of Live Activities: `notifier.channels` makes and deletes them at Apple."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, TypeVar

from notifier.errors import SettingsError, needs_extra
from notifier.notification import Device, Notification
from notifier.providers.apns.broadcast import LIVE_ACTIVITY, PREFIX
from notifier.store.partitions import connect_all_async

if TYPE_CHECKING:
    from notifier.providers.apns.broadcast import BroadcastChannel
    from notifier.providers.apns.channels import ChannelServer
    from notifier.settings import Settings

T = TypeVar("T")
Ask = Callable[["ChannelServer"], Awaitable[T]]
NONE: Final[Mapping[str, Any]] = {}


def to_channel(channel_id: str, apns: Mapping[str, Any] = NONE, **fields: Any) -> Notification:
    """A notification for all who subscribe to a channel. For the limits its user is ``channel:<id>``.

    apns: options of a Live Activity, as in `Notification.apns`: event, timestamp, content_state, …; `store` only for a
    channel that stores.
    fields: fields of Notification: category, title, body, sound, expires_in, app, …
    """
    name, options = PREFIX + channel_id, {"push_type": LIVE_ACTIVITY, **apns}
    return Notification(**{"user": name, **fields}, devices=[Device("apns", name)], apns=options)


async def _at_apple(settings: Settings, app: str | None, ask: Ask[T]) -> T:
    """Ask Apple's server for channels. Raises ChannelError, RedisUnusableError, SettingsError."""
    with needs_extra("channels", "apns"):  # only a program with channels needs the driver
        from notifier.providers.apns.channels import ChannelServer  # noqa: PLC0415
        from notifier.providers.apns.token_store import RedisTokenStore  # noqa: PLC0415

    section: Any = settings.providers.platforms().get("apns")
    if section is None:
        raise SettingsError("providers.apns: is missing; channels are Apple's")
    if app is not None and app not in section.apps:
        raise SettingsError(f"providers.apns.apps: has no {app!r}; known are {', '.join(section.apps) or 'none'}")
    first = connect_all_async(settings.redis)[0]  # where the team's token is
    try:
        server = ChannelServer(section, app, os.environ, RedisTokenStore([first]))
        try:
            return await ask(server)
        finally:
            await server.close()
    finally:
        await first.client.aclose()


class Channels:
    """Apple's broadcast channels. Devices that subscribe to a channel get each update of a Live Activity sent to it.

    Each call makes its own connection to Apple, and waits for the answer. It raises ChannelError if Apple refuses,
    RedisUnusableError if the team's token cannot be read, and SettingsError if the configuration has no such app.

    app: one of `providers.apns.apps`; None is the app without a name.
    """

    def __init__(self, settings: Callable[[], Settings]) -> None:
        self._settings = settings

    def create(self, *, stores: bool = False, app: str | None = None) -> str:
        """Make a channel; returns its id, which the app needs. An app may have 10,000.

        stores: Apple keeps the most recent message for devices that are off, 8 hours at most, and takes fewer messages.
        """
        return self._ask(app, lambda server: server.create(stores=stores))

    def read(self, channel_id: str, *, app: str | None = None) -> BroadcastChannel:
        """How a channel was made."""
        return self._ask(app, lambda server: server.read(channel_id))

    def list(self, *, app: str | None = None) -> list[str]:
        """The ids of all channels of the app."""
        return self._ask(app, lambda server: server.list())

    def delete(self, channel_id: str, *, app: str | None = None) -> None:
        """Delete a channel for ever: its subscribers get nothing any more."""
        self._ask(app, lambda server: server.delete(channel_id))

    def _ask(self, app: str | None, ask: Ask[T]) -> T:
        # In a thread of its own: the caller's thread may run an event loop.
        with ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(asyncio.run, _at_apple(self._settings(), app, ask)).result()
