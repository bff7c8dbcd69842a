"""Telling simulators that run what shall go wrong, over a Unix socket, and hearing what arrives as it arrives.

JSON, a line each way. `python -m notifier.simulators --help` lists what can be told; in one line as many as wanted.
It is answered by ``{"done": [its keys]}``, an empty object by ``{"state": {…}}``, a wrong one, of which nothing was
done, by ``{"error": "<why>"}``. Between the answers, every message that arrives after the connection to the socket was
made is told as ``{"arrival": {…}}``, in order: when a line is answered, all that arrived before it has been told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from pydantic import ValidationError

from notifier.simulators.apns import ApnsSimulator
from notifier.simulators.faults import UnusableError, read_scripts, why
from notifier.simulators.orders import ApnsOrders, settings_of
from notifier.simulators.simulator import Simulator, stop_accepting
from notifier.simulators.wire import Arrival, WireLog

ANSWER_WITHIN_S: Final = 30.0
LINE_BYTES: Final = 2**24  # scripts for many devices are long
Step: TypeAlias = Callable[[], Any]


class Control:
    """The socket at `path`, over which these simulators are told things and what `log` records is told."""

    def __init__(self, path: Path, log: WireLog, simulators: Sequence[Simulator]) -> None:
        self._path = path
        self._simulators = {simulator.platform: simulator for simulator in simulators}
        self._written: dict[str, Any] = {}  # the scripts, as people wrote them
        self._told: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        log.watch(self._tell_arrival)

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self._path, limit=LINE_BYTES)
        self._path.chmod(0o600)

    async def close(self) -> None:
        """Stop listening, leave all who listen, remove the socket; the simulators stay as they are."""
        if self._server is not None:
            await stop_accepting(*self._server.sockets)
            self._server.close()
            for writer in list(self._told):
                writer.close()
            self._path.unlink(missing_ok=True)

    def state(self) -> dict[str, Any]:
        """Return what the simulators have been told so far, in the form in which it is told."""
        state: dict[str, Any] = {}
        for platform, simulator in self._simulators.items():
            settings = {name: getattr(simulator, name) for name in settings_of(simulator.orders)}
            open_now = len(list(simulator.open_connections()))
            state[platform] = {"listening": simulator.listening, **settings, "connections": open_now}
        return {**state, "scripts": self._written}

    async def tell(self, document: object) -> None:
        """Do what a document says: all of it, or raise UnusableError and do nothing."""
        if not isinstance(document, dict):
            raise UnusableError(f"give an object with any of: {', '.join([*self._simulators, 'scripts'])}")
        steps: list[Step] = []
        for key, value in document.items():
            if key == "scripts":
                steps += self._script(value)
            elif key in self._simulators:
                steps += self._instruct(self._simulators[key], value)
            else:
                raise UnusableError(f"{key!r} is none of: {', '.join([*self._simulators, 'scripts'])}")
        for step in steps:
            if asyncio.iscoroutine(done := step()):
                await done

    def _script(self, document: object) -> list[Step]:
        if document is None:  # all scripts are taken back
            return [
                self._written.clear,
                *(simulator.playback.clear for simulator in self._simulators.values()),
            ]
        steps: list[Step] = []
        for platform, scripts in read_scripts(self._simulators, document).items():
            rewrite = self._simulators[platform].playback.rewrite
            steps += [partial(rewrite, token, replies) for token, replies in scripts.items()]
        return [*steps, partial(self._note, document)]

    def _note(self, document: Any) -> None:
        told = {**self._written, **document}
        self._written = {token: written for token, written in told.items() if written}

    def _instruct(self, simulator: Simulator, document: Any) -> list[Step]:
        platform, known = simulator.platform, simulator.orders
        try:
            orders = known.model_validate(document, context=platform)
        except ValidationError as error:
            raise UnusableError(why(error, known.model_fields, platform)) from None
        acts: dict[str, Step] = {
            "listening": partial(self._listen, simulator, orders.listening),
            "cut": simulator.cut,
            "expire_tokens": simulator.expire_tokens,
        }
        if isinstance(simulator, ApnsSimulator) and isinstance(orders, ApnsOrders):
            acts["go_away"] = partial(simulator.go_away, orders.go_away.reason, keep=orders.go_away.keep)
        return [acts.get(name, partial(setattr, simulator, name, value)) for name, value in document.items()]

    async def _listen(self, simulator: Simulator, value: bool) -> None:
        if value and not simulator.listening:
            await simulator.start()
        elif not value:
            await simulator.close()

    # Over the socket.

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
            document = json.loads(line)
            await self.tell(document)
        except UnusableError as error:
            return {"error": str(error)}
        except (ValueError, RecursionError) as error:
            return {"error": f"this is no JSON: {error}"}
        except OSError as error:
            return {"error": f"cannot listen: {error.strerror}"}
        return {"done": list(document)} if document else {"state": self.state()}

    def _tell_arrival(self, arrival: Arrival) -> None:
        for writer in self._told:
            _write(writer, {"arrival": asdict(arrival)})


def answers(path: Path) -> bool:
    """Whether simulators listen on this socket. Raises UnusableError where the system takes no such path."""
    with socket.socket(socket.AF_UNIX) as line:
        try:
            return line.connect_ex(str(path)) == 0
        except OSError as error:
            raise UnusableError(f"{path} cannot be a socket: {error}; give a shorter path") from None


def tell(path: Path, document: object) -> dict[str, Any]:
    """Tell simulators that run elsewhere what `Control` takes; return their state. Raises UnusableError."""
    with socket.socket(socket.AF_UNIX) as line:
        line.settimeout(ANSWER_WITHIN_S)
        try:
            line.connect(str(path))
            with line.makefile("rw", encoding="utf-8") as stream:
                for each in (document, {}):
                    stream.write(json.dumps(each) + "\n")
                    stream.flush()
                    said: dict[str, Any] = {"arrival": None}
                    while "arrival" in said:
                        said = json.loads(stream.readline())
                    if "error" in said:
                        raise UnusableError(said["error"])
        except (OSError, ValueError) as error:
            raise UnusableError(f"no simulators answer at {path}: {error}") from None
    state: dict[str, Any] = said["state"]
    return state


def _write(writer: asyncio.StreamWriter, message: Mapping[str, Any]) -> None:
    writer.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")
