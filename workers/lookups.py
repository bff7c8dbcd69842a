"""Lookups of names that do not delay the end of the process: a silent name server may take a minute over each."""

from __future__ import annotations

import asyncio
import socket
import threading
from concurrent.futures import Future
from typing import Any


class Loop(asyncio.SelectorEventLoop):
    """The event loop of a worker. With asyncio's own, the end of the process waits for each lookup under way."""

    async def getaddrinfo(self, *args: Any, **options: Any) -> Any:
        """As asyncio's, but in a thread that ends with the process."""
        found: Future[Any] = Future()
        found.set_running_or_notify_cancel()

        def look_up() -> None:
            try:
                found.set_result(socket.getaddrinfo(*args, **options))
            except BaseException as error:  # noqa: BLE001 - it is raised where the answer is awaited
                found.set_exception(error)

        threading.Thread(target=look_up, name="lookup", daemon=True).start()
        return await asyncio.wrap_future(found, loop=self)
