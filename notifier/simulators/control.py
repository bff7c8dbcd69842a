"""Telling simulators that run what shall go wrong, over a Unix socket, and hearing what arrives as it arrives.

JSON, a line each way. What can be told:

  {"scripts": {"<device token>": "unregistered"}}            from its next message on; as in `read_scripts`
  {"apns": {"silent": true, "latency_ms": 20}}               settings: the attributes in `Simulator.settings`
  {"apns": {"cut": true}}, {"fcm": {"refuse_s": 10}}         acts: listening (true or false), refuse_s (refuse
      connections for so many seconds), cut, expire_tokens, and for APNs go_away (each true; or for go_away
      {"reason": ..., "keep": the share of the open streams that is still answered})

in one line as many as wanted. It is answered by ``{"done": [its keys]}``, an empty object by ``{"state": {…}}``, a
wrong one, of which nothing was done, by ``{"error": "<why>"}``. Between the answers, every message that arrives
after the connection to the socket was made is told as ``{"arrival": {…}}``, in order: when a line is answered, all
that arrived before it has been told.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import structlog

from notifier.simulators.apns import ApnsSimulator
from notifier.simulators.faults import FAULTS, UnusableError, read_scripts
from notifier.simulators.simulator import Simulator
from notifier.simulators.wire import Arrival, WireLog

if TYPE_CHECKING:
    from pathlib import Path

ANSWER_WITHIN_S: Final = 30.0
LARGEST: Final = 2**31 - 1
Step: TypeAlias = Callable[[], Any]


class Control:
    """The socket at `path`, over which these simulators are told things and what `log` records is told."""

    def __init__(self, path: Path, log: WireLog, simulators: Sequence[Simulator]) -> None:
        self._path = path
        self._simulators = {simulator.platform: simulator for simulator in simulators}
        self._written: dict[str, Any] = {}  # the scripts, as people wrote them
        self._refusing: dict[str, asyncio.Task[None]] = {}
        self._told: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        log.watch(self._tell_arrival)

    async def start(self) -> None:
        """Listen; raises OSError if the path cannot be used."""
        self._path.unlink(missing_ok=True)
        self._server = await asyncio.start_unix_server(self._serve, self._path)
        self._path.chmod(0o600)

    async def close(self) -> None:
        """Stop listening, leave all who listen, remove the socket; the simulators stay as they are."""
        for task in self._refusing.values():
            task.cancel()
        if self._server is not None:
            self._server.close()
            for writer in list(self._told):
                writer.close()
            self._path.unlink(missing_ok=True)

    def state(self) -> dict[str, Any]:
        """What the simulators have been told so far, in the form in which it is told."""
        state: dict[str, Any] = {}
        for platform, simulator in self._simulators.items():
            settings = {name: getattr(simulator, name) for name in simulator.settings}
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

    def _instruct(self, simulator: Simulator, document: object) -> list[Step]:
        if not isinstance(document, dict):
            raise UnusableError(f"{simulator.platform}: give an object of settings and actions")
        steps: list[Step] = []
        for name, value in document.items():
            where = f"{simulator.platform}.{name}"
            if name in simulator.settings:
                _check(simulator, where, name, value)
                steps.append(partial(setattr, simulator, name, value))
            elif name in (acts := self._acts(simulator)):
                steps.append(acts[name](where, value))
            else:
                raise UnusableError(f"{where}: unknown; settings are {', '.join(simulator.settings)};"
                                    f" actions are {', '.join(acts)}")  # fmt: skip
        return steps

    # What is done once.

    def _acts(self, simulator: Simulator) -> dict[str, Callable[[str, Any], Step]]:
        def listening(where: str, value: Any) -> Step:
            _is(where, value, bool)
            return lambda: self._listen(simulator, value)

        def refuse(where: str, value: Any) -> Step:
            _number(where, value)
            return lambda: self._refuse(simulator, value)

        def plain(act: Step) -> Callable[[str, Any], Step]:
            def step(where: str, value: Any) -> Step:
                if value is not True:
                    raise UnusableError(f"{where}: give true, not {value!r}")
                return act

            return step

        acts = {
            "listening": listening,
            "refuse_s": refuse,
            "cut": plain(simulator.cut),
            "expire_tokens": plain(simulator.expire_tokens),
        }
        if isinstance(simulator, ApnsSimulator):
            acts["go_away"] = lambda where, value: _go_away(simulator, where, value)
        return acts

    async def _listen(self, simulator: Simulator, value: bool) -> None:
        if task := self._refusing.pop(simulator.platform, None):
            task.cancel()
        if value and not simulator.listening:
            await simulator.start()
        elif not value:
            await simulator.close()

    async def _refuse(self, simulator: Simulator, seconds: float) -> None:
        async def come_back() -> None:
            await asyncio.sleep(seconds)
            try:
                await simulator.start()
            except OSError as error:  # another process has taken the port; `listening` tries again
                structlog.get_logger(__name__).warning("cannot_listen", url=simulator.url, error=error.strerror)

        await self._listen(simulator, False)
        self._refusing[simulator.platform] = asyncio.create_task(come_back())

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
        except ValueError as error:
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


def _go_away(simulator: ApnsSimulator, where: str, value: Any) -> Step:
    given = {} if value is True else value
    if not isinstance(given, dict) or given.keys() - {"reason", "keep"}:
        raise UnusableError(f"{where}: give true or an object with reason and keep, not {value!r}")
    keep, reason = given.get("keep", 1), given.get("reason", "Shutdown")
    _number(f"{where}.keep", keep, most=1)
    _is(f"{where}.reason", reason, str)
    return lambda: simulator.go_away(reason, keep=keep)


def _check(simulator: Simulator, where: str, name: str, value: Any) -> None:
    match name:
        case "silent" | "wrong_name" | "window_updates":
            _is(where, value, bool)
        case "fail":
            _shares(simulator, where, value)
        case "max_streams" | "token_lifetime_s" | "window_bytes":
            _is(where, value, int)
            _number(where, value, least=0 if name == "window_bytes" else 1)
        case _:
            _number(where, value)


def _shares(simulator: Simulator, where: str, value: Any) -> None:
    _is(where, value, dict)
    for name, share in value.items():
        if name not in FAULTS or simulator.platform not in FAULTS[name].replies:
            raise UnusableError(f"{where}: {name!r} is no fault of this platform; --faults lists them")
        _number(f"{where}.{name}", share, most=1)
    if sum(value.values()) > 1:
        raise UnusableError(f"{where}: the shares are more than 1 in all")


def _is(where: str, value: Any, kind: type) -> None:
    if type(value) is not kind:
        raise UnusableError(f"{where}: {value!r} is not of the type {kind.__name__}")


def _number(where: str, value: Any, *, least: float = 0, most: float = LARGEST) -> None:
    if type(value) not in {int, float} or not least <= value <= most:
        raise UnusableError(f"{where}: {value!r} is not a number from {least:g} to {most:g}")
