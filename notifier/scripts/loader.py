"""The Lua scripts, loaded once: `--! include` lines are replaced by the named shared pieces, `@name` by a key's name.

A piece that begins with `--! exports NAME …` keeps all its other names to itself. Lua allows 200 local names in a
script, and a reader needs to know only those that a piece is used by.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final, Generic, Self, TypeVar

from redis.exceptions import NoScriptError

from notifier.scripts.keys import in_script, prefix

_INCLUDE = re.compile(r"^--! include (.+)$", re.MULTILINE)
_EXPORTS = re.compile(r"\A(?:--! exports .+\n)+")
T = TypeVar("T")
_LUA = resources.files(__package__).joinpath("lua")
ROOMS: Final = ("verbs", "audit", "migration")


@dataclass(frozen=True, slots=True)
class Script:
    """One verb: its whole source and the SHA-1 by which Redis knows it."""

    name: str
    source: str
    sha: str

    @classmethod
    def of(cls, name: str, text: str) -> Self:
        """The script of this text, in which keys are spelled `@name`."""
        source = in_script(text)
        return cls(name, source, hashlib.sha1(source.encode()).hexdigest())  # noqa: S324 - Redis's own choice


def script(name: str) -> Script:
    """The script of this name, with its includes in place."""
    return _script(name, prefix())


@cache
def _script(name: str, _prefix: str) -> Script:
    path = next(path for room in ROOMS if (path := _LUA.joinpath(room, f"{name}.lua")).is_file())
    own = path.read_text(encoding="utf-8")
    return Script.of(name, _INCLUDE.sub(lambda m: "\n".join(read_piece(piece) for piece in m[1].split()), own))


def names_of(room: str) -> list[str]:
    """The names of the scripts of one room."""
    return sorted(
        path.name.removesuffix(".lua") for path in _LUA.joinpath(room).iterdir() if path.name.endswith(".lua")
    )


def read_piece(name: str) -> str:
    """The text of a piece that scripts include, in a block of its own if it says what it exports."""
    text = _LUA.joinpath("shared", f"{name}.lua").read_text(encoding="utf-8")
    exports = _EXPORTS.match(text)
    if exports is None:
        return text
    names = exports[0].replace("--! exports", "").split()
    either = "|".join(map(re.escape, names))
    text = re.sub(rf"^local function ({either})\b", r"function \1", text, flags=re.MULTILINE)
    text = re.sub(rf"^local ({either}) = ", r"\1 = ", text, flags=re.MULTILINE)
    return f"local {', '.join(names)}\ndo\n{text}end\n"


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One call of a script: its arguments, and how to read its reply. Run it by `run` or `run_async`."""

    script: Script
    keys: Sequence[str]
    args: Sequence[str | bytes | int]
    decode: Callable[[Any], T]


def run(redis: Any, call: Call[T]) -> T:
    """Run a call on a `redis.Redis`; a server that lost its scripts is given the source again."""
    try:
        reply = redis.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
    except NoScriptError:
        redis.script_load(call.script.source)  # by itself: to be compiled takes as long as to run
        reply = redis.eval(call.script.source, len(call.keys), *call.keys, *call.args)
    return call.decode(reply)


async def run_async(redis: Any, call: Call[T]) -> T:
    """Run a call on a `redis.asyncio.Redis`; as `run`."""
    try:
        reply = await redis.evalsha(call.script.sha, len(call.keys), *call.keys, *call.args)
    except NoScriptError:
        await redis.script_load(call.script.source)
        reply = await redis.eval(call.script.source, len(call.keys), *call.keys, *call.args)
    return call.decode(reply)
