"""A way to Redis that lets calls through and loses answers: what a producer sees whose connection breaks in between."""

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Self

from notifier.simulators.simulator import stop_accepting
from tests.harness.support import let_go


class CuttingProxy:
    """Passes everything on, until told by `cut` to lose the answers to so many calls of scripts.

    Each of these has been run by Redis when its connection is closed. lost: how many were.
    """

    def __init__(self, upstream: int) -> None:
        self._upstream = upstream
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="cutting proxy")
        self._to_lose = 0
        self._until: Callable[[], bool] = lambda: True
        self.lost = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(self._serve(), self._loop).result(10)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._leave(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    @property
    def url(self) -> str:
        """For clients."""
        return f"redis://127.0.0.1:{self.port}/0"

    def cut(self, answers: int, until: Callable[[], bool] = lambda: True) -> None:
        """Lose the next so many; each connection is closed once `until` holds."""
        self._to_lose, self._until = answers, until

    async def _serve(self) -> asyncio.Server:
        return await asyncio.start_server(self._connected, "127.0.0.1", 0)

    async def _leave(self) -> None:
        await stop_accepting(*self._server.sockets)
        self._server.close()
        await let_go()

    async def _connected(self, client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        server, to_server = await asyncio.open_connection("127.0.0.1", self._upstream)
        asked: list[bool] = []  # whether the call that has no answer yet is one of a script
        answers = asyncio.ensure_future(self._answer(server, to_client, asked))
        try:
            with contextlib.suppress(ConnectionError):
                while data := await client.read(65_536):
                    asked.append(b"EVALSHA" in data)
                    to_server.write(data)
            to_server.close()
            await answers
        finally:
            to_server.close()
            to_client.close()

    async def _answer(self, server: asyncio.StreamReader, to_client: asyncio.StreamWriter, asked: list[bool]) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await server.read(65_536):
                if any(asked) and self._to_lose:
                    self._to_lose -= 1
                    self.lost += 1
                    while not self._until():  # noqa: ASYNC110 - what happens in another process has no event
                        await asyncio.sleep(0.01)
                    break
                asked.clear()
                to_client.write(data)
        to_client.close()
