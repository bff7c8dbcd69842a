"""The calls by which users move from one shard to another, and the fence that tells who has. See the scripts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final, TypeVar

from notifier.limiter.scripts import Call, Script, read_piece, script

T = TypeVar("T")
MOVES: Final = "notifier:moves"
ON_THE_WAY: Final = ">"
HERE: Final = "="
MOVED: Final = "#moved"  # what a reply of the fence begins with


class MovedError(Exception):
    """A fenced call has done nothing, because some users do not live there.

    users: where each is: a shard's name; '>' and a name while it is on the way; '' for where it is to be.
    """

    def __init__(self, users: Mapping[str, str]) -> None:
        super().__init__(f"{len(users)} users have moved")
        self.users = users


def fenced(call: Call[T], users: Mapping[str, bool]) -> Call[T]:
    """The same call, which raises MovedError and does nothing where one of these users does not live on that shard.

    users: whether the caller knows that they are to leave it.
    """

    def decode(reply: Any) -> T:
        if isinstance(reply, list) and reply and isinstance(reply[0], list) and _text(reply[0][0]) == MOVED:
            texts = [_text(value) for value in reply[0][1:]]
            raise MovedError(dict(zip(texts[::2], texts[1::2], strict=True)))
        return call.decode(reply)

    args = [*call.args, json.dumps(dict(users), ensure_ascii=False)]
    return replace(call, script=_behind_the_fence(call.script.name), args=args, decode=decode)


@cache
def _behind_the_fence(name: str) -> Script:
    source = read_piece("_fence") + script(name).source
    return Script(name, source, hashlib.sha1(source.encode()).hexdigest())  # noqa: S324 - Redis's own choice


def leave(users: Mapping[str, str], lanes: Sequence[str]) -> Call[list[str]]:
    """Close a shard to users, each given with the shard it moves to; the reply: the last jobs that were queued then."""
    flat = [text for pair in users.items() for text in pair]
    return Call(script("leave"), [], [json.dumps(list(lanes)), *flat], lambda reply: [_text(i) for i in reply if i])


@dataclass(frozen=True, slots=True)
class Moving:
    """A job on its way: the fields of its hash, and its own time in µs, if it waits for one."""

    id: str
    fields: Mapping[bytes, bytes]
    at_us: int | None = None


def depart(user: str, category: str, *, most: int) -> Call[list[Moving]]:
    """Give out the first of a line's jobs; none where the line has come to its end."""
    return Call(
        script("depart"),
        [],
        [user, category, most],
        lambda reply: [Moving(_text(job[0]), dict(zip(job[1::2], job[2::2], strict=True))) for job in reply],
    )


def arrive(shard: str, jobs: Sequence[Moving]) -> Call[int]:
    """Take over jobs of another shard; the reply: how many were new."""
    args: list[str | bytes | int] = [shard]
    for job in jobs:
        args += [job.id, "" if job.at_us is None else job.at_us, len(job.fields)]
        args += [part for field in job.fields.items() for part in field]
    return Call(script("arrive"), [], args, int)


def departed(user: str, job_ids: Sequence[str]) -> Call[list[str]]:
    """Remove jobs that have arrived; the reply: those that were cancelled meanwhile."""
    return Call(script("departed"), [], [user, *job_ids], lambda reply: [_text(job_id) for job_id in reply])


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
