"""How many notifications wait, and for what: as `waits.lua` has counted it when it was decided."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from notifier.queue.history import describe_why
from notifier.units import counts_in

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS: Final = {"due": "due", "?": "due"}  # by what waits.lua says beside history.lua's words
IN_QUEUE: Final = "a worker: in the queue still"
WORDS: Final = {"due": "a worker: they may go now", "sending": "one before them that is being sent"}


class Waits(NamedTuple):
    """So many notifications wait for something. kind: as in a history, or 'due'. what: for people."""

    kind: str
    what: str
    waiting: int


def describe_waits(field: str) -> tuple[str, str]:
    """Return the kind and the words of a field of `waits`."""
    mark, _, category = field.partition(" ")
    kind, what = (KINDS[mark], "") if mark in KINDS else describe_why(mark, category)
    return kind, WORDS.get(kind, what)


def decode_waits(fields: Mapping[bytes, bytes]) -> list[Waits]:
    """Return the fields of `waits`, the largest number first."""
    found: Counter[tuple[str, str]] = Counter()
    for field, n in counts_in(fields).items():
        found[describe_waits(field)] += n
    return [Waits(kind, what, n) for (kind, what), n in found.most_common() if n > 0]
