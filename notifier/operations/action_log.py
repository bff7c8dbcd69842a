"""What people did through `notifier serve`: who, when, what. No token, text or body of a notification stands in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from notifier.scripts.keys import redis_key
from notifier.store.connection import ask

KEPT: Final = 10_000
LONGEST: Final = 300  # characters of a field
OF_USERS: Final = ("users",)  # what users chose, in a stream of its own


@dataclass(frozen=True, slots=True)
class Action:
    """Something that was done. who: the name that was given with the token. address: from where it was asked."""

    at: datetime
    who: str
    address: str
    action: str
    of: str
    answer: str


def record_action(  # noqa: PLR0917 - one entry
    redis: Any, who: str, address: str, action: str, of: str, answer: str
) -> None:
    """Write an entry. Raises RedisUnusableError."""
    fields = {"who": who, "address": address, "action": action, "of": of, "answer": answer}
    entry = {name: value.encode(errors="replace")[:LONGEST] for name, value in fields.items()}
    ask(lambda: redis.xadd(redis_key("actions"), entry, maxlen=KEPT, approximate=True))


def read_actions(redis: Any, most: int, of: Sequence[str] = ()) -> list[Action]:
    """The newest, the last first. of: OF_USERS for what users chose. Raises RedisUnusableError."""
    found = []
    for entry_id, fields in ask(lambda: redis.xrevrange(redis_key("actions", *of), count=most)):
        text = {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
        at = datetime.fromtimestamp(int(entry_id.partition(b"-")[0]) / 1000, tz=UTC)
        found.append(Action(at, *(text.get(name, "") for name in ("who", "address", "action", "of", "answer"))))
    return found
