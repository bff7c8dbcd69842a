"""The control socket: a client tells running simulators what shall go wrong, and hears of each message that arrives.

Each side writes lines of JSON. `python -m notifier.simulators --help` lists the keys, of which a line may have several.
A line is answered by ``{"done": [its keys]}``, and an empty object by ``{"state": {…}}``. A line with a mistake changes
nothing and is answered by ``{"error": "<why>"}``. The client also gets ``{"arrival": {…}}`` for every message that
arrives after it connected, in order: the arrivals before an answer stand before it on the socket.
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
    """The socket at `path`, which takes orders for these simulators and reports the arrivals in `log`."""

    def __init__(self, path: Path, log: WireLog, simulators: Sequence[Simulator]) -> None:
        self._path = path
        self._simulators = {simulator.platform: simulator for simulator in simulators}
        self._written: dict[str, Any] = {}  # the scripts, as people wrote them
        self._clients: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        log.watch(self._tell_arrival)

    async def start(self) -> None:
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self._path, limit=LINE_BYTES)
        self._path.chmod(0o600)

    async def close(self) -> None:
        """Stop listening, disconnect all clients, and remove the socket; the simulators stay as they are."""
        if self._server is not None:
            await stop_accepting(*self._server.sockets)
            self._server.close()
            for writer in list(self._clients):
                writer.close()
            self._path.unlink(missing_ok=True)

    def state(self) -> dict[str, Any]:
        """Return the simulators' settings and scripts, as `tell` takes them, and their numbers of connections."""
        state: dict[str, Any] = {}
        for platform, simulator in self._simulators.items():
            settings = {name: getattr(simulator, name) for name in settings_of(simulator.orders)}
            open_now = len(list(simulator.open_connections()))
            state[platform] = {"listening": simulator.listening, **settings, "connections": open_now}
        return {**state, "scripts": self._written}

    async def tell(self, document: object) -> None:
        """Carry out all orders of a document. If one has a mistake, do nothing and raise UnusableError."""
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
        if document is None:  # null takes all scripts back
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
        scripts = {**self._written, **document}
        self._written = {token: written for token, written in scripts.items() if written}

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
        self._clients.add(writer)
        try:
            with contextlib.suppress(OSError):
                while line := await reader.readline():
                    _write(writer, await self._obey(line))
        finally:
            self._clients.discard(writer)
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
        for writer in self._clients:
            _write(writer, {"arrival": asdict(arrival)})


def answers(path: Path) -> bool:
    """Whether simulators listen on this socket. Raises UnusableError if the path cannot be a socket."""
    with socket.socket(socket.AF_UNIX) as line:
        try:
            return line.connect_ex(str(path)) == 0
        except OSError as error:
            raise UnusableError(f"{path} cannot be a socket: {error}; give a shorter path") from None


def tell(path: Path, document: object) -> dict[str, Any]:
    """Send a document to the `Control` at `path`; return the state of its simulators. Raises UnusableError."""
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
