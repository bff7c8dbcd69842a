"""Runs the application under uvicorn."""

from __future__ import annotations

import logging
import resource
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import uvicorn

from notifier.log import configure_logging
from notifier.server.app import build
from notifier.server.connections import Brake, LimitedProtocol, limited
from notifier.server.state import State
from notifier.settings.schema_processes import LogSettings

END_S: Final = 20  # for answers under way when the server is told to stop
# Half of them are for connections, and a quarter for those that asyncio accepts at once, before `Crowd` closes some of
# them. The rest is for Redis. macOS allows 256 if nobody asks for more.
FILES: Final = 1024


def bind(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family, backlog=FILES // 4)


def run(path: Path, log: LogSettings, listening: socket.socket, token: Callable[[], str], *, is_open: bool) -> None:
    """Serve until told to stop. log: how this process logs."""
    configure_logging(log.format, log.level)
    files = allow_files(FILES)
    make_server(path, token, is_open=is_open, files=files, log_level="warning").run([listening])


def allow_files(wanted: int) -> int:
    """Let this process open so many files, or as many as its host allows; return how many of them it may open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < wanted:  # Linux writes no limit as -1
        wanted = wanted if hard < 0 else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


def make_server(
    path: Path, token: Callable[[], str], *, is_open: bool, files: int = FILES, **options: Any
) -> uvicorn.Server:
    """Make the server. token, is_open: as for `build`. options: uvicorn's. Raises SettingsError."""
    state = State(path)
    app = build(state, token, is_open=is_open)
    # Any client may write X-Forwarded-For, and the log of actions must name the true address.
    options |= {"ws": "none", "server_header": False, "proxy_headers": False, "timeout_graceful_shutdown": END_S}
    options |= {"backlog": files // 4, "log_config": None}  # its log goes where ours goes, with secrets masked
    server = _Server(state, uvicorn.Config(app, http=limited(files // 2), **options))
    for name in ("uvicorn.error", "asyncio"):  # strangers can cause these lines
        logging.getLogger(name).addFilter(Brake())
    return server


class _Server(uvicorn.Server):
    """Ends the streams at shutdown, because uvicorn waits for all answers; then cuts the connections still open."""

    def __init__(self, state: State, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._state = state

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._state.feed.end()
        await super().shutdown(sockets)
        for connection in list(self.server_state.connections):
            cast(LimitedProtocol, connection).cut()
