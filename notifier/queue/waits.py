"""How many notifications wait for which reason, as `waits.lua` counts them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple

from notifier.notification.json_values import fields_of
from notifier.queue.circuits import FAR_US
from notifier.queue.history import WORDS as WHY
from notifier.queue.history import Why, describe_why
from notifier.queue.minutes import counts_in
from notifier.rules.category import DEFAULT_CATEGORY

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Mapping

KINDS: Final = {"due": "due", "?": "due"}  # marks of waits.lua that history.lua does not have
IN_QUEUE: Final = "a worker: in the queue still"
RESUME: Final = "rq resume"  # the reason in the queue during `rq suspend`
# Fields of a job's hash for `describe_later`.
OF_LATER: Final = ("meta", "push_history", "push_deadline", "push_attempts", "push_refusals")
OTHER_LIMITS: Final = "other limits"
WORDS: Final = {"due": "a worker: they may go now", "sending": "one before them that is being sent"}


class Waits(NamedTuple):
    """How many notifications wait for a reason. kind: as in a history, or 'due'. what: for people."""

    kind: str
    what: str
    waiting: int


def describe_waits(field: str) -> tuple[str, str]:
    """Return the kind and the words of a field of `waits`."""
    mark, _, category = field.partition(" ")
    kind, what = (KINDS[mark], "") if mark in KINDS else describe_why(mark, category)
    return kind, WORDS.get(kind, what)


def describe_later(
    at_us: float, meta: bytes | None, noted: bytes | None, deadline: bytes | None, *tries: bytes | None
) -> tuple[Why, str]:
    """Return the kind and the words of the reason of a job in `later`: its own time, a retry, or a route.

    at_us: its score in `later`; if it waits for a route, this is when it expires. Without a history only this tells.
    """
    mark = (noted or b"").decode(errors="replace").rpartition(" ")[2]
    if mark.startswith("p"):
        return describe_why(mark, str(fields_of(meta).get("category", DEFAULT_CATEGORY)))
    is_retry, ends_us = at_us < FAR_US and any(tries), min(FAR_US, float(deadline or FAR_US))
    kind: Why = "retry" if is_retry else "route" if at_us >= ends_us else "send_at"
    return kind, WHY.get(kind, "a route that is stopped")


def decode_waits(fields: Mapping[bytes, bytes]) -> list[Waits]:
    """The waits in the fields of `waits`, the largest number first."""
    return sum_up(Waits(*describe_waits(field), n) for field, n in counts_in(fields).items())


def sum_up(waits: Iterable[Waits]) -> list[Waits]:
    """Return one for each reason, the largest number first."""
    found: Counter[tuple[str, str]] = Counter()
    for kind, what, n in waits:
        found[kind, what] += n
    return [Waits(kind, what, n) for (kind, what), n in found.most_common() if n > 0]


def with_limits(waits: Iterable[Waits], known: Container[str]) -> list[Waits]:
    """Return the same, with all limits but the known ones as one: users choose limits, so there may be any number."""
    return sum_up(
        each if each.kind != "rule" or each.what in known else each._replace(what=OTHER_LIMITS) for each in waits
    )
