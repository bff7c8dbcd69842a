"""Assembles each Lua script once, from its verb and the pieces that it needs; `@name` becomes the name of a key.

Each folder in `lua` is a room: the scripts and pieces that serve one purpose. A script or a piece may have these lines:

- `--! needs NAME …`: the names of other pieces that it uses.
- `--! exports NAME …`: the names of a piece that others may use. All its other names are private.
- `--! on_demand NAME …`: in place of exports, for a piece that few calls need. Making functions takes longer than most
  commands, so the piece is made when one of these names is first used; the script calls them `on_demand.NAME`. A piece
  that only such pieces need is made on demand as well.
- `--! first_write`: the first write of the script must take no memory.
- `--! pieces`: where the pieces come, in a script that may end before it needs any.
- `--! include NAME`: the text of a file that begins with `--! included`. That text sees the names around it.

A name that no piece exports, or a field that no record of `records` has, is an error when the script is loaded.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any, Final, Generic, Self, TypeVar

from redis.exceptions import NoScriptError

from notifier.scripts.keys import declared, in_script
from notifier.scripts.pooled import send
from notifier.scripts.records import RECORDS

_TOLD: Final = re.compile(r"^--! (exports|on_demand|needs|first_write)(.*)\n", re.MULTILINE)
# A Redis over maxmemory refuses a script's first write if that may take memory, but lets a script go on that has
# written. Scripts that free memory begin with this write, or a full Redis would stay full.
_FIRST_WRITE: Final = "redis.call('DEL', '@full')"
_PIECES: Final = "--! pieces\n"
INCLUDED: Final = "--! included\n"
_INCLUDE: Final = re.compile(r"^--! include (\w+)\n", re.MULTILINE)
_COMMENT: Final = re.compile(r"--.*$", re.MULTILINE)
_MADE: Final = re.compile(r"\b(?:local function|function|local) (\w+)")
_MADE_ALONE: Final = re.compile(r"^local (?:function )?(\w+)(?: = |\(|$)", re.MULTILINE)
_ASSIGNED: Final = re.compile(r"^ +([\w., ]+) = ", re.MULTILINE)
_WORD: Final = re.compile(r"\w+")
_CALLED: Final = re.compile(r"(?<![\w.:])(\w+)\(")
# Matches the uses of names. Text in quotes and names of fields are no uses.
_USED: Final = re.compile(r"'(?:\\.|[^'\\])*'|--.*$|(?<![\w:])(?<![^.]\.)([a-zA-Z_]\w*)\b(?! = )", re.MULTILINE)
_OWN: Final = re.compile(r"(?=\b(?:local |for |function[^(\n]*\()([\w, ]+))")
_LATE: Final = "on_demand = setmetatable({{}}, {{__index = function(_, name)\n{}end\nreturn on_demand[name]\nend}})\n"
_FIELD: Final = re.compile(rf"\b({'|'.join(RECORDS)})\.(\w+)")
T = TypeVar("T")
_LUA = resources.files(__package__).joinpath("lua")


@dataclass(frozen=True, slots=True)
class Script:
    """One verb: its whole source, and the SHA-1 by which Redis knows it. Both are the same for all prefixes.

    names_keys: whether its text names keys. Then every call declares what these begin with, before its own keys; see
    `notifier.scripts.keys.declared`. The others touch only the keys that their callers declare.
    """

    name: str
    source: str
    sha: str
    names_keys: bool

    @classmethod
    def of(cls, name: str, text: str) -> Self:
        """The script of this text, in which keys are spelled `@name`."""
        source = in_script(text)
        return cls(name, source, hashlib.sha1(source.encode()).hexdigest(), source != text)  # noqa: S324 - Redis's choice

    def declares(self) -> tuple[str, ...]:
        """The keys that every call declares before its own."""
        return declared() if self.names_keys else ()


@cache
def script(name: str) -> Script:
    """The script of this name, with its pieces in place."""
    return Script.of(name, assemble(name, included(files()[name][1])))


@cache
def files() -> dict[str, tuple[str, str]]:
    """The room and the text of each file, by its name. All are read at once: later they may be of another release."""
    return {
        path.name.removesuffix(".lua"): (room.name, path.read_text(encoding="utf-8"))
        for room in _LUA.iterdir()
        if room.is_dir()
        for path in room.iterdir()
        if path.name.endswith(".lua")
    }


def included(text: str) -> str:
    """A script's text with the files that it includes."""
    return _INCLUDE.sub(lambda line: files()[line[1]][1].removeprefix(INCLUDED), text)


def assemble(name: str, text: str) -> str:
    """The text of a script with its pieces before it.

    Each part is a function of its own, and all exported names are declared before the parts. So a function made in a
    part copies the outer names that it uses from the part, and Lua need not search its stack for them.
    """
    verb = read_part(name, text)
    order: dict[str, Part] = {}
    _add_needed(verb, order)
    at_once = _made_at_once(verb, set())
    early = [part for part in order.values() if part.name in at_once]
    late = [part for part in order.values() if part.name not in at_once]
    late_names = {name for part in late for name in part.exports}
    # Lua searches the script's locals from the last to the first, so the names that most parts need are the last.
    wanted = Counter(need for part in [verb, *order.values()] for need in part.needs)
    names = sorted((name for part in early for name in part.exports), key=lambda name: wanted[name])
    pieces = "".join(part.as_piece(late_names) for part in early)
    if late:
        names.append("on_demand")
        cases = "else".join(part.as_case(late_names) for part in late)
        pieces = _LATE.format(cases) + pieces
    declared = f"local {', '.join(names)}\ndo\n{pieces}end\n" if names else ""
    first = f"{_FIRST_WRITE}\n" if verb.writes_first else ""
    before, _, rest = verb.text(late_names).rpartition(_PIECES)
    whole = f"{first}{before}{declared}local function script()\n{rest}end\nreturn script()\n"
    return "local call = redis.call\n" + whole.replace("redis.call(", "call(")


@dataclass(frozen=True, slots=True)
class Part:
    """A verb or a piece. writes_first: its first write must take no memory. is_late: it is made on demand."""

    name: str
    exports: Sequence[str]
    needs: Sequence[str]
    writes_first: bool
    is_late: bool
    body: str

    def text(self, late_names: AbstractSet[str]) -> str:
        """Its text, with names made on demand as fields of `on_demand`. Raises ValueError if a local hides one."""
        late = late_names & {*self.needs}
        own = {name for names in _OWN.findall(_COMMENT.sub("", self.body)) for name in names.replace(",", " ").split()}
        if hidden := sorted({*late, "on_demand"} & own):
            raise ValueError(f"{self.name}.lua has {', '.join(hidden)}, which hides what it needs")
        return _USED.sub(lambda used: f"on_demand.{used[1]}" if used[1] in late else used[0], self.body)

    def as_piece(self, late_names: AbstractSet[str]) -> str:
        """The text that makes its exports when the script begins."""
        exports = ", ".join(self.exports)
        made = f"local function piece_{self.name}()\n{self.text(late_names)}return {exports}\nend\n"
        return f"{made}{exports} = piece_{self.name}()\n"

    def as_case(self, late_names: AbstractSet[str]) -> str:
        """The text that makes its exports when one of them is first used."""
        asked = " or ".join(f"name == '{each}'" for each in self.exports)
        fields = ", ".join(f"on_demand.{each}" for each in self.exports)
        return f"if {asked} then\n{self.text(late_names)}{fields} = {', '.join(self.exports)}\n"


def read_part(name: str, text: str) -> Part:
    """A verb or a piece from its file. Raises ValueError if its `--!` lines do not match its text."""
    told: dict[str, list[str]] = {"exports": [], "on_demand": [], "needs": [], "first_write": []}
    for word, names in _TOLD.findall(text):
        told[word] += names.split() or [word]
    body = _FIELD.sub(_place, _TOLD.sub("", text))
    exports = told["exports"] + told["on_demand"]
    made, words = Counter(_MADE_ALONE.findall(body)), set(_WORD.findall(_COMMENT.sub("", body)))
    assigned = {each for names in _ASSIGNED.findall(body) for each in names.split(", ")}
    for exported in exports:
        if made[exported] != 1:
            raise ValueError(f"{name}.lua exports {exported}, which it does not make once, on a line of its own")
        if exported in assigned:
            raise ValueError(f"{name}.lua exports {exported}, and makes it anew: others would not see that")
    if unused := sorted({*told["needs"]} - words):
        raise ValueError(f"{name}.lua needs {', '.join(unused)}, and does not use it")
    return Part(name, exports, told["needs"], bool(told["first_write"]), bool(told["on_demand"]), body)


def _place(field: re.Match[str]) -> str:
    return str(RECORDS[field[1]].index(field[2]) + 1) if field[2] != "n" else str(len(RECORDS[field[1]]))


@cache
def _pieces() -> dict[str, Part]:
    """The pieces, by the names that they export."""
    found: dict[str, Part] = {}
    for each, (_, text) in files().items():
        part = read_part(each, text)
        for name in part.exports:
            if name in found:
                raise ValueError(f"{name} is exported by {part.name}.lua and {found[name].name}.lua")
            found[name] = part
    return found


def _add_needed(part: Part, order: dict[str, Part]) -> None:
    """Add the pieces that this one needs to `order`, each after the pieces that it needs itself."""
    for name in part.needs:
        piece = _pieces().get(name)
        if piece is None:
            raise ValueError(f"{part.name}.lua needs {name}, which no piece exports")
        if piece.name not in order:
            order[piece.name] = piece
            _add_needed(piece, order)
            order[piece.name] = order.pop(piece.name)
    text = _COMMENT.sub("", part.body)
    own = {*part.needs, *_MADE.findall(text)}
    if unsaid := sorted(name for name in {*_CALLED.findall(text)} - own if name in _pieces()):
        raise ValueError(f"{part.name}.lua calls {', '.join(unsaid)}, and does not say that it needs that")


def _made_at_once(part: Part, found: set[str]) -> set[str]:
    """The names of the pieces that this one needs, without pieces on demand and those that only such pieces need."""
    for piece in (_pieces()[name] for name in part.needs):
        if not piece.is_late and piece.name not in found:
            found.add(piece.name)
            _made_at_once(piece, found)
    return found


def names_of(room: str = "*") -> list[str]:
    """The names of the scripts of one room; '*' is all rooms."""
    return sorted(name for name, (of, text) in files().items() if room in {of, "*"} and not _is_part(text))


def _is_part(text: str) -> bool:
    """Whether a file is no script by itself, but a piece or an included text."""
    return text.startswith(INCLUDED) or re.search(r"^--! (exports|on_demand) ", text, re.MULTILINE) is not None


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One call of a script: its own keys, its arguments, and how to read its reply. Run it by `run` or `run_async`.

    declared: what a script that names keys is to declare before its own, if not what is in force.
    """

    script: Script
    keys: Sequence[str | bytes]
    args: Sequence[str | bytes | int]
    decode: Callable[[Any], T]
    declared: Sequence[str | bytes] = ()

    def words(self) -> list[str | bytes | int]:
        """Return the arguments of EVAL or EVALSHA after the script: how many keys, the keys, the arguments."""
        declares: Sequence[str | bytes] = self.script.declares()
        keys = [*(declares and (self.declared or declares)), *self.keys]
        return [len(keys), *keys, *self.args]


def finished(work: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that serves both kinds of client. On a blocking client it never suspends."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise AssertionError("the coroutine suspended: its client is an asyncio client")


async def settled(reply: Any) -> Any:
    """The reply of either kind of client, awaited where it is asyncio's."""
    return await reply if hasattr(reply, "__await__") else reply


def run(redis: Any, call: Call[T]) -> T:
    """Run a call on a `redis.Redis`; see `run_async`."""
    return finished(run_async(redis, call))


async def run_async(redis: Any, call: Call[T]) -> T:
    """Run a call on a `redis.asyncio.Redis`. A server that has lost its scripts gets the source again.

    `decode` gets texts as bytes. `failed_call` says which call raised an error.
    """
    try:
        try:
            reply = await settled(send(redis, "EVALSHA", call.script.sha, *call.words()))
        except NoScriptError:
            await settled(redis.script_load(call.script.source))  # by itself: compiling takes as long as running
            reply = await settled(send(redis, "EVAL", call.script.source, *call.words()))
        return call.decode(reply)
    except Exception as error:
        error.push_call = call  # type: ignore[attr-defined]
        raise


async def run_together(redis: Any, calls: Sequence[Call[Any]]) -> list[Any]:
    """Run calls on a `redis.asyncio.Redis` in one round trip, in order. Returns for each its reply or its error."""
    async with redis.pipeline(transaction=False) as pipe:
        for call in calls:
            queue(pipe, call)
        replies = await pipe.execute(raise_on_error=False)
    return [await _answer(redis, *both) for both in zip(calls, replies, strict=True)]


async def _answer(redis: Any, call: Call[Any], reply: Any) -> Any:
    """Read the reply to a call in a pipeline."""
    try:
        if isinstance(reply, NoScriptError):
            return await run_async(redis, call)
        if not isinstance(reply, Exception):
            return call.decode(reply)
    except Exception as error:  # noqa: BLE001 - the caller decides what to do
        reply = error
    reply.push_call = call
    return reply


def queue(pipe: Any, call: Call[Any]) -> None:
    """Put a call into a pipeline. Its reply is not decoded, and may be a NoScriptError."""
    pipe.execute_command("EVALSHA", call.script.sha, *call.words())


def failed_call(error: Exception) -> Call[Any] | None:
    """The call that raised this error, in its script or while its reply was decoded; or None."""
    found: BaseException | None = error
    while found is not None and not hasattr(found, "push_call"):
        found = found.__cause__
    return getattr(found, "push_call", None)
