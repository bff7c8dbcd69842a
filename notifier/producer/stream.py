"""A stream in Redis with consumer groups: each group gets each entry, and gets it again until it acknowledges it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any, Final, TypeVar

from redis.exceptions import ResponseError

from notifier.errors import InvalidNotificationError
from notifier.notification.json_values import check_text
from notifier.store.exchange import Commands, Exchange, Item, Search

T = TypeVar("T")
ANYONE: Final = "anyone"  # the one consumer of all readers without a name; after a crash, entries come after the lease
MAX_NAME: Final = 1_024  # bytes of the name of a group, or of a consumer
BLOCK_S: Final = 2.5  # how long one call waits at most for something new

Entry = tuple[bytes, dict[bytes, bytes]]


def check_reader(group: object, consumer: object, lease: object) -> None:
    """Raise InvalidNotificationError for names that Redis cannot have, and for a lease that is no timedelta."""
    check_text("group", group, MAX_NAME)
    check_text("consumer", consumer or ANYONE, MAX_NAME)
    if not isinstance(lease, timedelta):
        raise InvalidNotificationError("lease", f"must be a timedelta, is {type(lease).__name__}")


def find_each(reader: Reader, decode: Callable[[Entry], T], *, follow: bool) -> Search[T]:
    """Yield the entries that the reader's group has not acknowledged, until none is left, or for ever.

    An entry is acknowledged when the loop asks for the next one. reader: it gives one entry at a time.
    """
    return _find(reader, partial(_readable, decode), follow=follow)


def find_batches(reader: Reader, decode: Callable[[Entry], T]) -> Search[list[T]]:
    """As `find_each`, but yield lists of all entries that the reader gives at a time, until none is left."""
    return _find(reader, lambda entries: filter(None, [list(_readable(decode, entries))]), follow=False)


def _readable(decode: Callable[[Entry], T], entries: list[Entry]) -> Iterator[T]:
    """Decode these. An entry that cannot be decoded is skipped: it would hold up all later ones."""
    for entry in entries:
        if entry[1]:  # an entry without fields was trimmed after this consumer got it
            with suppress(KeyError, ValueError, OverflowError):
                yield decode(entry)


def _find(reader: Reader, items: Callable[[list[Entry]], Iterable[T]], *, follow: bool) -> Search[T]:
    block = False
    while (entries := (yield from reader.next(block=block))) or follow:
        for item in items(entries):
            yield Item(item)
        reader.done = [entry_id for entry_id, _ in entries]
        block = not entries


class Reader:
    """One consumer of a group. done: the ids of the entries to acknowledge with the next read."""

    def __init__(  # noqa: PLR0917 - a consumer, and what it reads
        self,
        stream: str,
        group: str,
        consumer: str | None,
        lease: timedelta,
        timeout_s: float | None = None,
        max_entries: int = 1,
    ) -> None:
        """timeout_s: of the connection. max_entries: how many are given at a time."""
        self._stream = stream
        self._max_entries = max_entries
        self._group = group
        self._consumer = consumer or ANYONE
        self._lease_ms = lease // timedelta(milliseconds=1)
        self._block_ms = max(1, int(min(BLOCK_S, (timeout_s or 2 * BLOCK_S) / 2) * 1000))
        self._left_behind = consumer is not None
        self.done: list[bytes] = []

    def next(self, *, block: bool) -> Exchange[list[Entry]]:
        """Return what this consumer left behind, if it has a name; then new entries; then what others left behind.

        The abandoned entries come last, so that an entry that always breaks its consumer holds up no other.
        """
        if self._left_behind:
            if entries := (yield from self._read("0")):
                return entries
            self._left_behind = False
        new = yield from self._read(">", block_ms=self._block_ms if block else None)
        return new or (yield from self._take_over())

    def _read(self, after: str, block_ms: int | None = None) -> Exchange[list[Entry]]:
        def once(pipe: Any) -> None:
            if self.done:
                pipe.xack(self._stream, self._group, *self.done)
            pipe.xreadgroup(self._group, self._consumer, {self._stream: after}, count=self._max_entries, block=block_ms)

        streams = yield from self._ask(once)
        self.done = []
        return list(streams[0][1]) if streams else []

    def _take_over(self) -> Exchange[list[Entry]]:
        """Claim entries that a consumer got a lease ago and has not acknowledged."""
        cursor = b"0-0"
        while True:

            def once(pipe: Any, start: bytes = cursor) -> None:
                pipe.xautoclaim(
                    self._stream, self._group, self._consumer, self._lease_ms, start_id=start, count=self._max_entries
                )

            cursor, entries = (yield from self._ask(once))[:2]
            # Before Redis 7, an entry that was trimmed meanwhile comes without an id.
            found: list[Entry] = [entry for entry in entries if entry[0] is not None]
            if found or cursor == b"0-0":
                return found

    def _ask(self, queue: Callable[[Any], None]) -> Exchange[Any]:
        """The last reply. If an answer is lost, its entries come again after the lease."""
        while True:
            try:
                return (yield Commands(queue))[-1]
            except ResponseError as error:
                # Nobody has read for this group yet; or the stream has expired, and its groups with it: it lives
                # as long as its youngest entry is kept.
                if not any(word in str(error) for word in ("NOGROUP", "UNBLOCKED")):
                    raise
            yield from self._join()

    def _join(self) -> Exchange[None]:
        """Create the group, so that it begins with the oldest entry."""
        try:
            yield Commands(lambda pipe: pipe.xgroup_create(self._stream, self._group, id="0", mkstream=True))
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):  # another consumer was faster
                raise
