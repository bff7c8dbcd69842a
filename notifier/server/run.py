"""Runs the application under uvicorn."""

from __future__ import annotations

from pathlib import Path

import uvicorn

from notifier.server.app import build


def run(path: Path, host: str, port: int, token: str, *, is_open: bool) -> None:
    """Serve until told to stop."""
    server = uvicorn.Config(
        build(path, token, is_open=is_open), host=host, port=port, log_level="warning", server_header=False
    )
    uvicorn.Server(server).run()
