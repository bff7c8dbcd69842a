"""Runs the application under uvicorn."""

from __future__ import annotations

from pathlib import Path

import uvicorn

from notifier.log import configure_logging
from notifier.server.app import build
from notifier.settings.schema import LogSettings


def run(path: Path, log: LogSettings, host: str, port: int, token: str, *, is_open: bool) -> None:
    """Serve until told to stop. log: how this process logs."""
    configure_logging(log.format, log.level)
    server = uvicorn.Config(
        build(path, token, is_open=is_open), host=host, port=port, log_level="warning", server_header=False
    )
    uvicorn.Server(server).run()
