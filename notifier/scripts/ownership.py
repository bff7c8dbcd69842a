"""The calls by which users move from one shard to another, and the fence that tells who has. See the scripts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final, TypeVar

from notifier.scripts.loader import Call, Script, read_piece, script

T = TypeVar("T")
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
    return Script.of(name, read_piece("fence") + script(name).source)


def _text(value: Any) -> Any:
    return value.decode() if isinstance(value, bytes) else value
