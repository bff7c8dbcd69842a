"""Rules for Redis's ACL: the fewest commands and keys for each role. Those of scripts are read from their sources."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from notifier.scripts.keys import in_force
from notifier.scripts.loader import files, names_of, script

_COMMENT: Final = re.compile(r"--.*$", re.MULTILINE)
_CALL: Final = re.compile(r"\bcall\('([A-Za-z]+)'")

# Commands of every connection, whatever the role.
EVERYBODY: Final = ("auth", "client|setname", "exec", "hello", "info", "multi", "ping", "select", "time")
SCRIPTS: Final = ("eval", "evalsha", "script|load")
READING: Final = (
    "dbsize", "exists", "get", "hget", "hgetall", "hkeys", "hlen", "hmget", "hscan", "hvals", "llen", "lpos",
    "lrange", "pttl", "scan", "scard", "sismember", "smembers", "sscan", "ttl", "type", "xrange", "xrevrange", "zcard",
    "zcount", "zrandmember", "zrange", "zrangebyscore", "zrevrange", "zscan", "zscore",
)  # fmt: skip
LIMITER: Final = ("acquire", "limit", "limit_change", "limit_usage", "limit_used", "refund")
# Commands of RQ's own worker: for jobs of other functions, its registries, `rq suspend` and orders to stop.
RQ: Final = (
    "blmove", "blpop", "client|info", "client|list", "hincrbyfloat", "lmove", "lrem", "publish", "rename",
    "srandmember", "subscribe", "unsubscribe", "unwatch", "watch", "xread",
)  # fmt: skip
STREAMS: Final = ("xack", "xautoclaim", "xgroup|create", "xreadgroup")


@dataclass(frozen=True, slots=True)
class Role:
    """The rights of one kind of program. keys, rq: names under our prefix and under RQ's; None is all of them.

    scripts: by name. room: the role may also run all scripts of this room; '*' is every room but the audits.
    """

    scripts: Sequence[str]
    commands: Sequence[str]
    keys: Sequence[str] | None = None
    rq: Sequence[str] | None = None
    reads: Sequence[str] = ()
    rq_reads: Sequence[str] = ()
    room: str = ""
    rq_channels: Sequence[str] = ()


ROLES: Final[Mapping[str, Role]] = {
    "producer": Role(
        ("enqueue", "cancel", "prefer", "write", *LIMITER),
        (*STREAMS, "hkeys", "hmget", "hscan", "hvals", "lrange", "smembers", "wait", "zcard", "zscan"),
        ("events", "feedback", "partition"),
        (),
        reads=("rates",),
        rq_reads=("suspended",),
    ),
    "worker": Role((), (*READING, *RQ), room="*", rq_channels=("pubsub:*",)),
    "server": Role(
        ("enqueue", "cancel", "circuit", "forget", "limit_usage", "prefer"),
        (*READING, *STREAMS, "wait", "xtrim"),
        room="audit",
    ),
    "readonly": Role((), (*READING, *SCRIPTS)),
}


def rules(role: str, version: tuple[int, int] = (7, 0)) -> list[str]:
    """Return the words for Redis's `ACL SETUSER` for this role, without a password.

    Raises KeyError for an unknown role. version: of Redis.
    Before 7.0, Redis has no right to read only: the role may then also write the keys that it reads.
    """
    of, named = ROLES[role], in_force()
    more = set(names_of(of.room)) if of.room else set()
    scripts = {*of.scripts, *more} - ({*names_of("audit")} if of.room == "*" else set())
    sources = [_COMMENT.sub("", script(name).source) for name in sorted(scripts)]
    since = ["client|setinfo"] * (version >= (7, 2)) + ["cluster|slots"] * named.ours.startswith("{")
    commands = sorted({*EVERYBODY, *since, *(SCRIPTS if sources else ()), *of.commands, *_called_in(sources)})
    reading = "%R~" if version >= (7, 0) else "~"
    keys = [*_patterns(named.ours, "OURS", of.keys, sources), *_patterns(named.rqs, "RQS", of.rq, sources)]
    read = [*(f"{named.ours}:{name}" for name in of.reads), *(f"{named.rqs}:{name}" for name in of.rq_reads)]
    return [
        "resetchannels",
        "-@all",
        *(f"+{name}" for name in commands),
        *(f"~{key}" for key in keys),
        *(f"{reading}{key}" for key in read),
        *(f"&{named.rqs}:{name}" for name in of.rq_channels),
    ]


@cache
def commands_of_scripts() -> list[str]:
    return sorted(_called_in(_COMMENT.sub("", text) for _, text in files().values()))


def _called_in(sources: Iterable[str]) -> set[str]:
    return {command.lower() for source in sources for command in _CALL.findall(source)}


def _patterns(first: str, called: str, names: Sequence[str] | None, sources: Sequence[str]) -> list[str]:
    """Return patterns of the keys under `first`: all of them, or `names` and those that the scripts name."""
    if names is None:
        return [f"{first}:*"]
    spelled = re.compile(rf"\b{called} \.\. '([a-z_]+)")
    found = sorted({*names, *(name for source in sources for name in spelled.findall(source))})
    return [f"{first}:", *(pattern for name in found for pattern in (f"{first}:{name}", f"{first}:{name}:*"))]


def line(role: str, version: tuple[int, int] = (7, 0)) -> str:
    """Return a line of Redis's ACL file, without a password: nobody can sign in until an operator adds one."""
    return " ".join([f"user notifier-{role} on", *rules(role, version)])
