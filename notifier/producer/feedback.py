"""The feedback: which tokens are dead, for whoever keeps the users' devices. Written by *settle*, read here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final

from redis import Redis
from redis.exceptions import ResponseError

from notifier.store.connection import ask
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


def read_feedback(redis: Redis, group: str, consumer: str | None, lease: timedelta, *, follow: bool) -> Iterator[Gone]:
    """The dead tokens that this group has not acknowledged; see `Notifier.feedback`."""
    reader = _Reader(redis, group, consumer, lease)
    block = False
    while True:
        entry = reader.next(block=block)
        block = follow and entry is None
        if entry is None:
            if not follow:
                return
            continue
        entry_id, fields = entry
        if fields:  # else it was trimmed away since this consumer was given it
            yield _gone(fields)
        reader.done = entry_id


class _Reader:
    """One consumer of a group. done: the entry to acknowledge along with the next look."""

    def __init__(self, redis: Redis, group: str, consumer: str | None, lease: timedelta) -> None:
        self._redis = redis
        self._group = group
        self._consumer = consumer or ANYONE
        self._lease_ms = max(0, -(-lease // timedelta(milliseconds=1)))
        patience_s = redis.connection_pool.connection_kwargs.get("socket_timeout") or 2 * BLOCK_S
        self._block_ms = max(1, int(min(BLOCK_S, patience_s / 2) * 1000))
        self._left_behind = consumer is not None
        self.done: bytes | None = None

    def next(self, *, block: bool) -> Entry | None:
        """What this consumer left behind, if it has a name; then what is new; then what others left behind.

        The abandoned come last, so that one over which a consumer always breaks holds up no other.
        """
        if self._left_behind:
            if (entry := self._read("0")) is not None:
                return entry
            self._left_behind = False
        return self._read(">", block_ms=self._block_ms if block else None) or self._take_over()

    def _read(self, after: str, block_ms: int | None = None) -> Entry | None:
        def once() -> Any:
            with self._redis.pipeline(transaction=False) as pipe:
                if self.done is not None:
                    pipe.xack(STREAM, self._group, self.done)
                pipe.xreadgroup(self._group, self._consumer, {STREAM: after}, count=1, block=block_ms)
                return pipe.execute()[-1]

        streams = self._ask(once)
        self.done = None
        found: list[Entry] = streams[0][1] if streams else []
        return found[0] if found else None

    def _take_over(self) -> Entry | None:
        """An entry that was given to somebody a lease ago, who has not acknowledged it."""
        cursor = b"0-0"
        while True:
            once = partial(
                self._redis.xautoclaim, STREAM, self._group, self._consumer, self._lease_ms, start_id=cursor, count=1
            )
            cursor, entries = self._ask(once)[:2]
            # Before Redis 7, what was trimmed away since comes as an entry without an id.
            found: list[Entry] = [entry for entry in entries if entry[0] is not None]
            if found:
                return found[0]
            if cursor == b"0-0":
                return None

    def _ask(self, do: Callable[[], Any]) -> Any:
        def in_the_group() -> Any:
            while True:
                try:
                    return do()
                except ResponseError as error:
                    # Nobody has read for this group yet; or the stream has gone, and its groups with it: it lives
                    # as long as its youngest entry is kept.
                    if not any(word in str(error) for word in ("NOGROUP", "UNBLOCKED")):
                        raise
                self._join()

        # What an answer that was lost had given out is given again after the lease.
        return ask(in_the_group)

    def _join(self) -> None:
        """Make the group, before the oldest entry."""
        try:
            self._redis.xgroup_create(STREAM, self._group, id="0", mkstream=True)
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
