"""Records a trace as it happens: *enqueue* copies what it accepts into the stream `trace` while there is one.

The stream is there while somebody records: made here, kept alive by every look at it, and gone LAPSE_MS after the
last, with all that stands in it. So recording that is off costs *enqueue* one look for a key a call, and recording
that was killed ends by itself. It sees what `Notifier` accepts; a plain RQ producer's jobs do not pass *enqueue*.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator
from typing import Any, Final, Self

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from notifier.errors import NotifierError
from notifier.scripts.keys import redis_key
from notifier.store.connection import ask, unusable
from notifier.units import moment

GROUP: Final = "recorder"  # read by nobody: with it an empty stream can be made
LAPSE_MS: Final = 30_000
BATCH: Final = 5_000


class RecordingError(NotifierError):
    """A trace cannot be recorded, or not any further; the text says why."""


class Recorder:
    """Reads what is accepted from now on, until it is closed. One at a time on a Redis.

    began_us: when the trace began, µs on Redis's clock.
    """

    def __init__(self, redis: Redis, *, hash_users: bool = False) -> None:
        """hash_users: by a key that nobody learns, so that no list of names leads back to them.

        Raise RecordingError where somebody records already, RedisUnusableError if Redis does not answer.
        """
        self._redis = redis
        self._name: Callable[[str], str] = _hasher("u") if hash_users else str
        self._collapse_id = _hasher("c")  # which are the same is all that matters; a producer may have put a text there
        self._last = b"0-0"
        try:
            with redis.pipeline(transaction=True) as pipe:
                pipe.xgroup_create(redis_key("trace"), GROUP, id="$", mkstream=True)
                pipe.pexpire(redis_key("trace"), LAPSE_MS)
                pipe.time()
                seconds, us = pipe.execute()[-1]
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise unusable(error) from error
            raise RecordingError(
                f"another recording is running, or was {LAPSE_MS // 1000} s ago; there can be one at a time"
            ) from None
        except RedisError as error:
            raise unusable(error) from error
        self.began_us = seconds * 1_000_000 + us
        self._first = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        ask(lambda: self._redis.delete(redis_key("trace")))

    def read(self) -> Iterator[str]:
        """What was accepted since the last time, as lines of a trace.

        Raise RecordingError where the stream has gone meanwhile: what came since then is not known.
        """
        while entries := self._next():
            for _, fields in entries:
                yield self._line({name.decode(): value.decode() for name, value in fields.items()})
            self._last = entries[-1][0]

    def _next(self) -> list[tuple[bytes, dict[bytes, bytes]]]:
        def once() -> tuple[Any, bool]:
            with self._redis.pipeline(transaction=True) as pipe:
                pipe.xtrim(redis_key("trace"), minid=self._last, approximate=True)
                pipe.xrange(redis_key("trace"), min=b"(" + self._last, count=BATCH)
                pipe.pexpire(redis_key("trace"), LAPSE_MS)
                _, entries, alive = pipe.execute()
                return entries, bool(alive)

        entries, alive = ask(once)
        if not alive:
            raise RecordingError(
                "the recording broke off, because its stream in Redis is gone; what came since is missing"
            )
        return list(entries)

    def _line(self, entry: dict[str, str]) -> str:
        meta = json.loads(entry["meta"])
        event = {"at": max(0, int(float(entry["at"])) - self.began_us) / 1_000_000, "user": self._name(meta["user"])}
        event["category"] = meta["category"]
        event |= {name: meta[name] for name in ("priority", "zone") if name in meta}
        if entry["expires"]:
            event["expires_in"] = int(entry["expires"]) / 1_000_000
        if self._first:
            self._first = False
            event["began"] = moment(self.began_us).isoformat()
        if "collapse_id" in meta:
            event["collapse_id"] = self._collapse_id(meta["collapse_id"])
        return json.dumps(event, ensure_ascii=False) + "\n"


def _hasher(letter: str) -> Callable[[str], str]:
    key = secrets.token_bytes(32)
    return lambda name: letter + hashlib.blake2b(name.encode(), key=key, digest_size=8).hexdigest()
