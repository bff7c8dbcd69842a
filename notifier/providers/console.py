"""A provider for trials: it prints a line for each push instead of sending it."""

from __future__ import annotations

import asyncio
import sys
from typing import TextIO

from notifier.notification import Device, route
from notifier.providers.contract import Answer, Dispatch, Outcome
from notifier.texts import mask


class ConsoleProvider:
    """Replaces the provider of one platform and app, and delivers every push to a text stream.

    stream: None is the current `sys.stdout`. It shows the title, but only the length of the body: a console is a log.
    """

    def __init__(self, platform: str, app: str | None = None, stream: TextIO | None = None) -> None:
        self.platform = platform
        self._route = route(platform, app)
        self._stream = stream
        self._closed = False

    async def send(self, dispatch: Dispatch) -> Answer:
        """Print the push and answer DELIVERED; UNSENT once closed or past `send_by`, FAULT if it cannot print."""
        if self._closed or asyncio.get_running_loop().time() >= dispatch.send_by:
            return Answer(Outcome.UNSENT, reason="Closed" if self._closed else "TooLate")
        notification = dispatch.notification
        # repr: a line break in a title must not make two lines, nor an escape code colour the terminal.
        title = "-" if notification.title is None else repr(notification.title)
        body = "no body" if notification.body is None else f"body of {len(notification.body)} characters"
        line = (
            f"push {self._route} user={notification.user!r} category={notification.category}"
            f" token={mask(dispatch.device.token)} title={title} ({body})"
        )
        try:
            print(line, file=self._stream or sys.stdout, flush=True)
        except OSError as error:  # a full disk, or a closed pipe
            return Answer(Outcome.FAULT, reason=f"cannot print: {error}")
        return Answer(Outcome.DELIVERED)

    def service(self, device: Device) -> str:
        del device
        return "console"

    async def probe(self, device: Device) -> bool:
        del device
        return True

    async def close(self) -> None:
        self._closed = True
