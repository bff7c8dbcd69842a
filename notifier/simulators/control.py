"""Steering simulators that run: scripts, cuts and outages over a Unix socket, and what arrives as it arrives.

JSON, a line each way. A command is one of

  {"script": {"<device token>": [{"status": 410, "reason": "Unregistered"}]}}  from its next message on
  {"cut": "apns"}                           every open connection, without a word
  {"stop": "apns"}    {"start": "apns"}     stop listening; listen on the same port again

and is answered by ``{"done": "<command>"}`` or ``{"error": "<why>"}``. Between the answers, every message that
arrives after the connection to the socket was made is told as ``{"arrival": {…}}``, in order: when a command
is answered, all that arrived before it has been told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Protocol

from notifier.simulators.wire import Arrival, Playback, WireLog, read_scripts

if TYPE_CHECKING:
    from pathlib import Path


class Steered(Protocol):
    """A simulator, as far as it is steered."""

    playback: Playback

    async def start(self) -> None:
        """Listen."""
        ...

    async def close(self) -> None:
        """Stop listening and cut what is open; `start` takes the same port again."""
        ...

    def cut(self) -> None:
        """Cut all connections."""
        ...


class Control:
    """The socket at `path`, over which these simulators (by name) are steered and what `log` records is told."""

    def __init__(self, path: Path, log: WireLog, simulators: Mapping[str, Steered]) -> None:
        self._path = path
        self._simulators = simulators
        self._told: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        log.watch(self._tell_arrival)

    async def start(self) -> None:
        """Listen; raises OSError if the path cannot be used."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        self._path.chmod(0o600)

    async def close(self) -> None:
        """Stop listening, leave all who listen, remove the socket."""
        if self._server is not None:
            self._server.close()
            for writer in list(self._told):
                writer.close()
            self._path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._told.add(writer)
        try:
            with contextlib.suppress(OSError):
                while line := await reader.readline():
                    _write(writer, await self._obey(line))
        finally:
            self._told.discard(writer)
            writer.close()

    async def _obey(self, line: bytes) -> dict[str, Any]:
        try:
            ((command, what),) = json.loads(line).items()
            match command:
                case "script":
                    for token, replies in read_scripts(what).items():
                        for simulator in self._simulators.values():
                            simulator.playback.rewrite(token, replies)
                case "cut":
                    self._simulators[what].cut()
                case "stop":
                    await self._simulators[what].close()
                case "start":
                    await self._simulators[what].start()
                case _:
                    return {"error": f"no such command: {command}"}
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            return {"error": f"not understood: {type(error).__name__}: {error}"}
        except OSError as error:
            return {"error": f"{command} {what}: {error.strerror}"}
        return {"done": command}

    def _tell_arrival(self, arrival: Arrival) -> None:
        for writer in self._told:
            _write(writer, {"arrival": asdict(arrival)})


def _write(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
