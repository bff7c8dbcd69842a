"""The feedback: which tokens are dead, for whoever keeps the users' devices. Written by *settle*, read here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from redis.exceptions import ResponseError

from notifier.store.exchange import Commands, Exchange, Item, Search
from notifier.units import mask

STREAM: Final = "notifier:feedback"
ANYONE: Final = "anyone"  # the consumer of all who give no name; whose crash it was, the lease tells
BLOCK_S: Final = 2.5  # how long one call waits at most for something new
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Entry = tuple[bytes, dict[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Gone:
    """A token to which nothing must be sent any more: its provider called it dead.

    gone_at: since when, by the provider if it says so (APNs does), else when the answer came. A device that your
    users registered after that lives again: compare before you remove it. app, user, job_id: of the notification
    that found it out. reason: the provider's own word.
    """

    token: str
    platform: str
    app: str | None
    user: str
    reason: str
    gone_at: datetime
    job_id: str

    def __repr__(self) -> str:
        return (
            f"Gone({self.platform!r}, {mask(self.token)!r}, app={self.app!r}, user={self.user!r}, "
            f"reason={self.reason!r}, gone_at={self.gone_at.isoformat()!r})"
        )


def find_gone(
    group: str, consumer: str | None, lease: timedelta, *, follow: bool, timeout_s: float | None
) -> Search[Gone]:
    """The dead tokens that this group has not acknowledged; see `Notifier.feedback`. timeout_s: of the connection."""
    reader = _Reader(group, consumer, lease, timeout_s)
    block = False
    while True:
        entry = yield from reader.next(block=block)
        block = follow and entry is None
        if entry is None:
            if not follow:
                return
            continue
        entry_id, fields = entry
        if fields:  # else it was trimmed away since this consumer was given it
            yield Item(_gone(fields))
        reader.done = entry_id


class _Reader:
    """One consumer of a group. done: the entry to acknowledge along with the next look."""

    def __init__(self, group: str, consumer: str | None, lease: timedelta, timeout_s: float | None) -> None:
        self._group = group
        self._consumer = consumer or ANYONE
        self._lease_ms = max(0, -(-lease // timedelta(milliseconds=1)))
        self._block_ms = max(1, int(min(BLOCK_S, (timeout_s or 2 * BLOCK_S) / 2) * 1000))
        self._left_behind = consumer is not None
        self.done: bytes | None = None

    def next(self, *, block: bool) -> Exchange[Entry | None]:
        """What this consumer left behind, if it has a name; then what is new; then what others left behind.

        The abandoned come last, so that one over which a consumer always breaks holds up no other.
        """
        if self._left_behind:
            if (entry := (yield from self._read("0"))) is not None:
                return entry
            self._left_behind = False
        new = yield from self._read(">", block_ms=self._block_ms if block else None)
        return new or (yield from self._take_over())

    def _read(self, after: str, block_ms: int | None = None) -> Exchange[Entry | None]:
        def once(pipe: Any) -> None:
            if self.done is not None:
                pipe.xack(STREAM, self._group, self.done)
            pipe.xreadgroup(self._group, self._consumer, {STREAM: after}, count=1, block=block_ms)

        streams = yield from self._ask(once)
        self.done = None
        found: list[Entry] = streams[0][1] if streams else []
        return found[0] if found else None

    def _take_over(self) -> Exchange[Entry | None]:
        """An entry that was given to somebody a lease ago, who has not acknowledged it."""
        cursor = b"0-0"
        while True:

            def once(pipe: Any, start: bytes = cursor) -> None:
                pipe.xautoclaim(STREAM, self._group, self._consumer, self._lease_ms, start_id=start, count=1)

            cursor, entries = (yield from self._ask(once))[:2]
            # Before Redis 7, what was trimmed away since comes as an entry without an id.
            found: list[Entry] = [entry for entry in entries if entry[0] is not None]
            if found:
                return found[0]
            if cursor == b"0-0":
                return None

    def _ask(self, queue: Callable[[Any], None]) -> Exchange[Any]:
        """The last reply. What an answer that was lost had given out is given again after the lease."""
        while True:
            try:
                return (yield Commands(queue))[-1]
            except ResponseError as error:
                # Nobody has read for this group yet; or the stream has gone, and its groups with it: it lives
                # as long as its youngest entry is kept.
                if not any(word in str(error) for word in ("NOGROUP", "UNBLOCKED")):
                    raise
            yield from self._join()

    def _join(self) -> Exchange[None]:
        """Make the group, before the oldest entry."""
        try:
            yield Commands(lambda pipe: pipe.xgroup_create(STREAM, self._group, id="0", mkstream=True))
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):  # another consumer was faster
                raise


def _gone(fields: dict[bytes, bytes]) -> Gone:
    text = {name.decode(): value.decode() for name, value in fields.items()}
    return Gone(
        token=text["token"],
        platform=text["platform"],
        app=text["app"] or None,
        user=text["user"],
        reason=text["reason"],
        gone_at=EPOCH + timedelta(microseconds=int(text["gone_at"])),
        job_id=text["job_id"],
    )
