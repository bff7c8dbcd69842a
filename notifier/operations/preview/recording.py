"""Records a trace: while the stream `trace` exists, *enqueue* copies each notification that it accepts into the stream.

A recorder creates the stream. Each read puts off the stream's expiry, so the stream is gone LAPSE_MS after the last.
So without a recorder *enqueue* only checks for a key, once a call, and the recording of a killed recorder ends by
itself. Jobs of a plain RQ producer are not recorded, as they do not pass *enqueue*.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final, Self

from redis.exceptions import RedisError, ResponseError

from notifier.errors import NotifierError
from notifier.scripts.keys import redis_key, under
from notifier.store.connection import ask, unusable
from notifier.store.partitions import Partition, Partitions
from notifier.store.pipelining import on_all
from notifier.units import clock_us, moment

GROUP: Final = "recorder"  # nobody reads by it: creating it creates an empty stream
LAPSE_MS: Final = 30_000
BATCH: Final = 5_000
LOOK_EVERY_S: Final = 0.25


class RecordingError(NotifierError):
    """A trace cannot be recorded, or not any further; the text says why."""


class Recorder:
    """Reads notifications that are accepted from now on, until it is closed. A fleet has one at a time.

    began_us: when the trace began, µs on Redis's clock.
    """

    def __init__(self, redis: Any) -> None:
        """Raise RecordingError if another recorder runs, RedisUnusableError if a partition does not answer."""
        self._begun: dict[int, int] = {}  # by partition, µs on its clock
        self._last: dict[int, bytes] = {}
        # A secret key, to hash collapse ids: a producer may use texts as ids, and the trace only shows which are equal.
        self._collapse_key = secrets.token_bytes(32)
        self._at: list[Partition] = []
        with ExitStack() as stack:
            stack.callback(self._end)
            for at in Partitions.around(redis):
                with under(at.prefixes):
                    self._begun[at.number] = _begin(at.client)
                self._at.append(at)
            stack.pop_all()
        self.began_us = self._begun[self._at[0].number]
        self._first = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        on_all(self._at, lambda redis: redis.delete(redis_key("trace")))

    def read(self) -> Iterator[str]:
        """Yield the notifications accepted since the last call, as lines of a trace.

        Raise RecordingError if the stream is gone: the notifications since then are missing.
        """
        for at in self._at:
            while entries := self._next(at):
                for _, fields in entries:
                    fields_of = {name.decode(): value.decode() for name, value in fields.items()}
                    yield self._line(fields_of, self._begun[at.number])
                self._last[at.number] = entries[-1][0]

    def parts(self, seconds: float, wait: Callable[[float], bool]) -> Iterator[list[str]]:
        """Read at intervals until `seconds` have passed, and once after. Raises as `read`.

        wait: waits for the given seconds or fewer; returns whether to end now.
        """
        ends = time.monotonic() + seconds
        while (left := ends - time.monotonic()) > 0 and not wait(min(left, LOOK_EVERY_S)):
            yield list(self.read())
        yield list(self.read())

    def _next(self, at: Partition) -> list[tuple[bytes, dict[bytes, bytes]]]:
        def once() -> tuple[Any, bool]:
            last = self._last.get(at.number, b"0-0")
            with at.client.pipeline(transaction=True) as pipe:
                pipe.xtrim(redis_key("trace"), minid=last, approximate=True)
                pipe.xrange(redis_key("trace"), min=b"(" + last, count=BATCH)
                pipe.pexpire(redis_key("trace"), LAPSE_MS)
                _, entries, alive = pipe.execute()
                return entries, bool(alive)

        with under(at.prefixes):
            entries, alive = ask(once)
        if not alive:
            raise RecordingError(
                "the recording broke off, because its stream in Redis is gone; what came since is missing"
            )
        return list(entries)

    def _line(self, entry: dict[str, str], began_us: int) -> str:
        meta = json.loads(entry["meta"])
        event = {"at": max(0, int(float(entry["at"])) - began_us) / 1_000_000, "user": meta["user"]}
        event["category"] = meta["category"]
        event |= {name: meta[name] for name in ("priority", "zone") if name in meta}
        if entry["expires"]:
            event["expires_in"] = int(entry["expires"]) / 1_000_000
        if self._first:
            self._first = False
            event["began"] = moment(self.began_us).isoformat()
        if "collapse_id" in meta:
            found = hashlib.blake2b(meta["collapse_id"].encode(), key=self._collapse_key, digest_size=8)
            event["collapse_id"] = found.hexdigest()
        return json.dumps(event, ensure_ascii=False) + "\n"


def _begin(redis: Any) -> int:
    """Create the stream for *enqueue*; return the time in µs."""
    try:
        with redis.pipeline(transaction=True) as pipe:
            pipe.xgroup_create(redis_key("trace"), GROUP, id="$", mkstream=True)
            pipe.pexpire(redis_key("trace"), LAPSE_MS)
            pipe.time()
            return clock_us(pipe.execute()[-1])
    except ResponseError as error:
        if "BUSYGROUP" not in str(error):
            raise unusable(error) from error
        raise RecordingError(
            f"another recording is running, or was {LAPSE_MS // 1000} s ago; there can be one at a time"
        ) from None
    except RedisError as error:
        raise unusable(error) from error
