"""Runs the application under uvicorn."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import uvicorn

from notifier.log import configure_logging
from notifier.server.app import build
from notifier.server.state import State
from notifier.settings.schema import LogSettings


def run(path: Path, log: LogSettings, host: str, port: int, token: Callable[[], str], *, is_open: bool) -> None:
    """Serve until told to stop. log: how this process logs."""
    configure_logging(log.format, log.level)
    make_server(path, token, is_open=is_open, host=host, port=port, log_level="warning").run()


def make_server(path: Path, token: Callable[[], str], *, is_open: bool, **options: Any) -> uvicorn.Server:
    """The server. token: what who asks must give, asked for at each request; '' for none.

    is_open: by any name of the host. options: uvicorn's. Raises SettingsError.
    """
    state = State(path, may_act=bool(token()))
    return _Server(state, uvicorn.Config(build(state, token, is_open=is_open), server_header=False, **options))


class _Server(uvicorn.Server):
    """Ends the streams when it is told to stop: uvicorn waits until all answers have ended, and these would not."""

    def __init__(self, state: State, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._state = state

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """See the class."""
        self._state.feed.end()
        await super().shutdown(sockets)
