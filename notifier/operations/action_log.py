"""The action log: people's actions, and changes of the file of rates. It holds no token, text or body."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from notifier.errors import RedisUnusableError
from notifier.queue.writes import write
from notifier.scripts.keys import redis_key
from notifier.scripts.loader import run
from notifier.store.exchange import Commands, Exchange
from notifier.store.partitions import Partitions
from notifier.store.pipelining import ask_all

KEPT: Final = 10_000
LONGEST: Final = 300  # bytes of a field
CUT: Final = "…".encode()  # the end of a field that was longer
Log = Callable[[str, str, str], object]  # records an action: its name, its object, the answer
OF_USERS: Final = ("users",)  # the choices of users have a stream of their own


@dataclass(frozen=True, slots=True)
class Action:
    """One action. who: a login, or the name of a token. address: the client's; a command's host. of: the object."""

    at: datetime
    who: str
    address: str
    action: str
    of: str
    answer: str


def record_action(  # noqa: PLR0917 - one entry
    redis: Any, who: str, address: str, action: str, of: str, answer: str
) -> None:
    """Write an entry in one partition, even if Redis is full: actions are done then too.

    address: '' for this host. Raises RedisUnusableError if no partition answers.
    """
    entry = action_entry(who, address or socket.gethostname(), action, of, answer)
    words = ("MAXLEN", "~", KEPT, "*", *(word for field in entry.items() for word in field))
    Partitions.around(redis).ask_any(lambda at: run(at, write("XADD", redis_key("actions"), *words)))


@contextmanager
def logged(log: Log, action: str, of: str) -> Iterator[list[str]]:
    """Log the action of the block, with the words that the block adds to the list, even if Ctrl-C or Redis stops it."""
    words: list[str] = []
    try:
        yield words
    except (RedisUnusableError, KeyboardInterrupt) as error:
        why = f"not everywhere: {error}" if isinstance(error, RedisUnusableError) else "interrupted"
        with suppress(RedisUnusableError):  # the caller needs the error of the action
            log(action, of, "; ".join([why, *words]))
        raise
    log(action, of, "; ".join(words))


def action_entry(who: str, address: str, action: str, of: str, answer: str) -> dict[str, bytes]:
    fields = {"who": who, "address": address, "action": action, "of": of, "answer": answer}
    return {name: _cut(value.encode(errors="replace")) for name, value in fields.items()}


def _cut(text: bytes) -> bytes:
    if len(text) <= LONGEST:
        return text
    return text[: LONGEST - len(CUT)].decode(errors="ignore").encode() + CUT


def read_actions(redis: Any, most: int, of: Sequence[str] = ()) -> list[Action]:
    """Return the newest actions, the last first. of: OF_USERS for the choices of users. Raises as `record_action`."""

    def find() -> Exchange[Any]:
        return (yield Commands(lambda pipe: pipe.xrevrange(redis_key("actions", *of), count=most)))[0]

    found = []
    for entry_id, fields in (each for entries in ask_all(Partitions.around(redis), find).all for each in entries):
        text = {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
        at = datetime.fromtimestamp(int(entry_id.partition(b"-")[0]) / 1000, tz=UTC)
        found.append(Action(at, *(text.get(name, "") for name in ("who", "address", "action", "of", "answer"))))
    return sorted(found, key=lambda each: each.at, reverse=True)[:most]
