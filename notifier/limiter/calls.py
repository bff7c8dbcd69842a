"""RedisRequests: builds a limiter's calls of Redis, the same for the synchronous and the asyncio client."""

from __future__ import annotations

import itertools
import re
import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from notifier.limiter.answers import Point, RankedKey, Usage
from notifier.limiter.plans import PermitIds, StaleError, id_of, parts_of
from notifier.limiter.protocol import Hold, Permit
from notifier.limiter.requests import (
    HOUR_S,
    Asked,
    By,
    Mode,
    Request,
    Requests,
    Use,
    ahead_us,
    check_key,
    check_used,
    in_steps,
    ranks_by,
)
from notifier.scripts.keys import PREFIX
from notifier.scripts.loader import Call, script
from notifier.units import duration_us

_TAG: Final = re.compile(rb"\{([^}]*)\}")
_ANSWER: Final = struct.Struct(">qhqqh")  # the reply of *limit* for one key
_PREFIX: Final = re.compile(r"[A-Za-z0-9_{}]+")  # `redis.prefix`, also with a hash tag in braces
_NO_TAG: Final = b"7d"  # the hash tag for keys that begin with a closing brace
UNSETTLED: Final = object()  # the answer while usage is left to settle: the caller asks again


class RedisRequests(Requests):
    """Builds the calls for the keys of one namespace."""

    def __init__(self, namespace: str, *, prefix: str = PREFIX, in_cluster: bool = False, **options: Any) -> None:
        """in_cluster: each key is in the slot of its own hash tag. options: those of `Requests`."""
        super().__init__(namespace, **options)
        if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
            raise ValueError(f"prefix {prefix!r} must be letters, digits and _, as redis.prefix is")
        self._ids = PermitIds()
        # The limiter keeps its own prefix, whatever `keys.under` sets. No script of the limiter names a key of RQ.
        self._declared = (f"{prefix}:".encode(),) * 2
        self._begins = b"%bkeys:%b:{" % (self._declared[0], namespace.encode())
        self.in_cluster = in_cluster

    def ask(
        self, requests: Sequence[Request], mode: Mode, ahead: str | timedelta | float | None = 0
    ) -> Call[list[Permit | Hold]]:
        """Build the call that asks for these keys. ahead: how long the caller will wait; None is for ever."""
        timeout = 0 if ahead == 0 else ahead_us(ahead)
        begins, namespace, declared = self._begins, self.namespace, self._declared
        keys: list[bytes] = []
        args: list[str | bytes | int] = [self._head(mode, timeout)]
        ends = []
        for request in requests:
            ends.append(end := self._ids.end())
            key = request.raw
            if self.in_cluster:
                declared, namespace, key = self._apart(key)
                begins = b"%bkeys:%b:{" % (declared[0], namespace.encode())
            keys.append(b"%b%b}" % (begins, key))
            args += (end, request.plan.packed)
        if self.keep_us is not None:
            args += (namespace, self.keep_us)

        def decode(reply: bytes) -> list[Permit | Hold]:
            now = int.from_bytes(reply[:8], "big")
            answers = _answers(requests, ends, now, reply, timeout)
            if len(answers) < len(requests):
                raise StaleError(now, int.from_bytes(reply[-8:], "big"), () if mode == "every" else answers)
            return answers

        return Call(script("limit" if self.keep_us is None else "limit_used"), keys, args, decode, declared)

    def _apart(self, key: bytes) -> tuple[tuple[bytes, bytes], str, bytes]:
        """Return how scripts name a key in a cluster: the two keys to declare, the namespace, and the name in it.

        All keys in Redis begin with the key's hash tag. The namespace is '', so that scripts keep no ranks: those would
        be in other slots.
        """
        tag = tag_of(key)
        ours = b"{%b}%b" % (tag, self._declared[0])
        name = self.namespace.encode() if tag == key else b"%b:%b" % (self.namespace.encode(), key)
        return (ours, ours), "", name

    def first_of(self, requests: Sequence[Request], most: int) -> Sequence[Request]:
        """Return the first of the requests: as many as one call may ask for."""
        if not self.in_cluster:
            return requests[:most]
        tag = tag_of(requests[0].raw)
        return list(itertools.takewhile(lambda request: tag_of(request.raw) == tag, requests[:most]))

    def every(self, asked: Iterable[Asked]) -> list[Request]:
        """See `Requests.every`. Raises ValueError if the keys may be at several nodes of a cluster."""
        requests = super().every(asked)
        if len(self.first_of(requests, len(requests))) < len(requests):
            raise ValueError(
                "in a Redis Cluster keys that are taken together have one hash tag: write what they share in braces,"
                " such as 'read:{customer:42}' and 'total:{customer:42}'. Limits of one request are by the same key:"
                " give those by another key a middleware or a dependency of their own"
            )
        return requests

    def _head(self, mode: Mode, timeout: int) -> bytes:
        if mode == "take" and not timeout and not self.clock:
            return b""
        return struct.pack(">QQ", int(self.clock or 0), timeout) + mode[:1].encode()

    def adjust(self, permit: Permit, cost: int) -> Call[bool]:
        check_used(cost)
        return self._change(permit.key, "cost", *parts_of(permit.id), cost, decode=lambda less: less is not None)

    def block(self, key: str, span: str | timedelta) -> Call[int]:
        return self._change(key, "block", duration_us(span))

    def reward(self, key: str, cost: int) -> Call[int]:
        check_used(cost)
        return self._change(key, "reward", cost)

    def reset(self, key: str) -> Call[int]:
        return self._change(key, "forget")

    def _change(self, key: str, *args: str | bytes | int, decode: Any = int) -> Call[Any]:
        return self._call("limit_change", check_key(key), *args, decode=decode)

    def count(self, key: str, *, last: str | timedelta) -> Call[int]:
        return self._read(check_key(key), "count", duration_us(last), decode=lambda _now, count: int(count))

    def usage(self, key: str) -> Call[Usage]:
        self.need_usage()
        return self._read(check_key(key), "usage", decode=lambda now, flat: _usage(key, now, _hash(flat)))

    def top(self, count: int, *, by: By, ascending: bool) -> Call[list[RankedKey]]:
        self.need_usage()
        args = ("top", ranks_by(by, count), count, int(ascending))
        return self._read(b"", *args, decode=lambda _now, *found: [_ranked(entry) for entry in found])

    def series(self, key: str | None, *, last: str | timedelta, step: str | timedelta) -> Call[list[Point]]:
        self.need_usage()
        in_steps(0, {}, last, step)  # refuses a wrong span before Redis is asked
        raw = b"" if key is None else check_key(key)
        return self._read(raw, "series", decode=lambda now, flat: in_steps(now, _minutes(_hash(flat)), last, step))

    def _read(self, raw: bytes, *args: str | int, decode: Any) -> Call[Any]:
        return self._call("limit_usage", raw, *args, decode=lambda reply: UNSETTLED if reply[0] < 0 else decode(*reply))

    def _call(self, name: str, raw: bytes, *args: str | bytes | int, decode: Any) -> Call[Any]:
        """Build a call about a key; an empty `raw` means all keys."""
        declared, namespace = self._declared, self.namespace
        if self.in_cluster:
            if not raw:
                raise ValueError("in a Redis Cluster each key's usage is at its own node: ask for a key")
            declared, namespace, raw = self._apart(raw)
        return Call(script(name), [], [self.clock, namespace, raw, *args], decode, declared)


def tag_of(key: bytes) -> bytes:
    """The hash tag of a key in a cluster: the text in its first braces, or else all of it up to a closing brace."""
    found = _TAG.search(key)
    return (found and found[1]) or key.partition(b"}")[0] or _NO_TAG


def _answers(
    requests: Sequence[Request], ends: Sequence[bytes], now: int, reply: bytes, timeout: int
) -> list[Permit | Hold]:
    """Read the script's reply for each key. It ends before a key whose plan has stale dates."""
    answers: list[Permit | Hold] = []
    for n in range((len(reply) - 8) // _ANSWER.size):
        left, rule, remaining, more, narrowest = _ANSWER.unpack_from(reply, 8 + n * _ANSWER.size)
        request = requests[n]
        plan = request.plan
        if left > timeout:
            answers.append(Hold(left, plan.reasons[rule], plan.policy, request.key))
            continue
        room = (None if remaining < 0 else remaining, None if more < 0 else more)
        at, fewest = now + left, plan.reasons[narrowest]
        answers.append(Permit(id_of(at, ends[n]), request.key, plan.cost, at, *room, left, fewest))
    return answers


def _usage(key: str, now: int, fields: Mapping[str, int]) -> Usage:
    counts = fields.get("total", 0), fields.get("held", 0), fields.get("first"), fields.get("last")
    return Use(*counts, minutes=_minutes(fields)).told(key, now)


def _ranked(entry: list[Any]) -> RankedKey:
    key, total, last, held, in_hour = entry
    return RankedKey(_text(key), int(total), int(last), int(held), int(in_hour) / HOUR_S)


def _minutes(fields: Mapping[str, int]) -> Counter[int]:
    return Counter({int(name): count for name, count in fields.items() if name.isdigit()})


def _hash(flat: Iterable[Any]) -> dict[str, int]:
    texts = [_text(value) for value in flat]
    return {name: int(value) for name, value in zip(texts[::2], texts[1::2], strict=True)}


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
