"""The events: how each notification ended. The scripts write them if `events.keep` is set; this module reads them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, Literal, cast

from notifier.notification.job import decode_reason
from notifier.notification.json_values import fields_of
from notifier.producer.stream import Entry
from notifier.store.tags import number_of

ENCODED: Final = frozenset({"rejected", "failed", "expired"})  # their reason is encoded as RQ stores it

Outcome = Literal["delivered", "rejected", "expired", "superseded", "dropped", "failed", "cancelled"]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a notification ended.

    event_id: different for each event; the same if an event comes again.
    at: when, by Redis's clock, to the millisecond.
    reason: why it was not delivered, or ''.
    superseded_by: the job that took its place, or ''.
    ref: the text in its `data` under ``ref``, or None.
    """

    event_id: str
    job_id: str
    user: str
    category: str
    outcome: Outcome
    at: datetime
    reason: str = ""
    superseded_by: str = ""
    ref: str | None = None


def read_ended(partitions: int, entry: Entry) -> Ended:
    """Read an entry of the stream `events`. partitions: how many the fleet has; each has a stream of its own."""
    entry_id, fields = entry
    text = {name.decode(): value.decode(errors="replace") for name, value in fields.items()}
    meta = fields_of(text["meta"].encode())  # a plain producer's may be anything
    told = {name: value for name, value in meta.items() if isinstance(value, str | int | float)}
    outcome, detail = text["outcome"], text["detail"]
    if outcome in ENCODED and detail:
        with suppress(ValueError):
            detail = decode_reason(detail.encode())
    user = str(told.get("user", ""))
    stream = f"p{number_of(user, partitions):02}-" if partitions > 1 else ""
    shown = "" if outcome in {"delivered", "superseded"} else detail
    return Ended(
        event_id=stream + entry_id.decode(),
        job_id=text["job_id"],
        user=user,
        category=str(told.get("category", "default")),
        outcome=cast("Outcome", outcome),
        at=datetime.fromtimestamp(int(entry_id.partition(b"-")[0]) / 1000, tz=UTC),
        reason=shown,
        superseded_by=detail if outcome == "superseded" else "",
        ref=ref if isinstance(ref := told.get("ref"), str) else None,
    )
