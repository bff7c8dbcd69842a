"""A limiter's calls of Redis: those of one namespace, built once for the synchronous and the asyncio client."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

from notifier.limiter.answers import Point, RankedKey, Usage
from notifier.limiter.plans import PermitIds, StaleError, id_of, parts_of
from notifier.limiter.protocol import Hold, Permit
from notifier.limiter.requests import (
    HOUR_S,
    MINUTE_US,
    By,
    Mode,
    Request,
    Requests,
    ahead_us,
    check_key,
    check_used,
    in_steps,
    ranks_by,
)
from notifier.scripts.keys import redis_key
from notifier.scripts.loader import Call, script
from notifier.scripts.packed import PackedCall, pack, pack_call
from notifier.units import duration_us

TAKE_NOW: Final = pack([""])
UNSETTLED: Final = object()  # what a reading answers until all is settled: it is to be asked again


class RedisRequests(Requests):
    """Builds the calls for the keys of one namespace."""

    def __init__(self, namespace: str, **options: Any) -> None:
        """options: as of `Requests`."""
        super().__init__(namespace, **options)
        self._ids = PermitIds()
        self._prefix = redis_key("keys", namespace, "{").encode()

    def ask(
        self, requests: Sequence[Request], mode: Mode, ahead: str | timedelta | float | None = 0
    ) -> PackedCall[list[Permit | Hold]]:
        """Ask for these keys. ahead: how long the caller is ready to wait for its permit; None is for ever."""
        timeout = 0 if ahead == 0 else ahead_us(ahead)
        prefix, keys, rest = self._prefix, [], [self._head(mode, timeout)]
        ends = []
        for request in requests:
            ends.append(end := self._ids.end())
            key = request.raw
            keys.append(b"$%d\r\n%b%b}\r\n" % (len(prefix) + len(key) + 1, prefix, key))
            rest.append(b"$2\r\n%b\r\n%b" % (end, request.plan.packed))
        args, by = 1 + 2 * len(keys), script("limit")
        if self._keep_us is not None:
            rest.append(pack([self.namespace, self._keep_us]))
            args, by = args + 2, script("limit_used")
        wire = pack_call(by, len(keys), args, b"".join(keys + rest))

        def decode(reply: list[int]) -> list[Permit | Hold]:
            answers = _answers(requests, ends, reply, timeout)
            if len(answers) < len(requests):
                raise StaleError(reply[0], reply[-1], () if mode == "every" else answers)
            return answers

        return PackedCall(by, wire, decode)

    def _head(self, mode: Mode, timeout: int) -> bytes:
        if mode == "take" and not timeout and not self.clock:
            return TAKE_NOW
        return pack([struct.pack(">QQ", int(self.clock or 0), timeout) + mode[:1].encode()])

    def adjust(self, permit: Permit, cost: int) -> Call[bool]:
        """Give a permit another cost; 0 takes it back. False where it has lapsed or was taken back before."""
        check_used(cost)
        return self._change(permit.key, "cost", *parts_of(permit.id), cost, decode=lambda less: less is not None)

    def block(self, key: str, span: str | timedelta) -> Call[int]:
        """Admit nothing of a key for so long."""
        return self._change(key, "block", duration_us(span))

    def reward(self, key: str, cost: int) -> Call[int]:
        """Take back so much; the reply is how much it was."""
        check_used(cost)
        return self._change(key, "reward", cost)

    def reset(self, key: str) -> Call[int]:
        """Forget a key; the reply is how many sends were forgotten."""
        return self._change(key, "forget")

    def _change(self, key: str, *args: str | bytes | int, decode: Any = int) -> Call[Any]:
        check_key(key)
        return Call(script("limit_change"), [], [self.clock, self.namespace, key, *args], decode)

    def count(self, key: str, *, last: str | timedelta) -> Call[int]:
        """How many sends of a key fall into the span that ends now."""
        check_key(key)
        return self._read(["count", key, duration_us(last)], lambda _now, count: int(count))

    def usage(self, key: str) -> Call[Usage]:
        """Read what is known of a key's use."""
        check_key(key)
        self.need_usage()
        return self._read(["usage", key], lambda now, flat: _usage(key, now, _hash(flat)))

    def top(self, count: int, *, by: By, ascending: bool) -> Call[list[RankedKey]]:
        """The keys of the namespace with the most of something, or the least."""
        self.need_usage()
        args: list[str | bytes | int] = ["top", ranks_by(by, count), count, int(ascending)]
        return self._read(args, lambda _now, *found: [_ranked(entry) for entry in found])

    def series(self, key: str | None, *, last: str | timedelta, step: str | timedelta) -> Call[list[Point]]:
        """How many in each step of the span that ends now; of one key, or of all where that is None."""
        self.need_usage()
        in_steps(0, {}, last, step)  # refuses a wrong span before Redis is asked
        args: list[str | bytes | int] = ["series", "" if key is None else key]
        return self._read(args, lambda now, flat: in_steps(now, _minutes(_hash(flat)), last, step))

    def _read(self, args: Sequence[str | bytes | int], decode: Any) -> Call[Any]:
        whole = [self.clock, self.namespace, *args]
        return Call(script("limit_usage"), [], whole, lambda reply: UNSETTLED if reply[0] < 0 else decode(*reply))


def namespaces_call() -> Call[list[tuple[str, int, int]]]:
    """The namespaces that count usage: the name, how many keys it knows, and the µs of a use within its last minute."""

    def decode(reply: list[Any]) -> list[tuple[str, int, int]]:
        return [(_text(name), int(keys), int(at)) for name, keys, at in reply[1:]]

    return Call(script("limit_usage"), [], ["", "", "namespaces"], decode)


def _answers(
    requests: Sequence[Request], ends: Sequence[bytes], reply: Sequence[int], timeout: int
) -> list[Permit | Hold]:
    """Read what the script said of each key, in order; there may be fewer answers than requests."""
    now, answers = reply[0], []
    for n in range(len(reply) // 5):
        left, rule, remaining, more, narrowest = reply[5 * n + 1 : 5 * n + 6]
        request = requests[n]
        plan = request.plan
        answer: Permit | Hold
        if left > timeout:
            answer = Hold(left, plan.reasons[rule], plan.policy, request.key)
        else:
            at = now + left
            answer = Permit(
                id_of(at, ends[n]),
                request.key,
                plan.cost,
                at,
                None if remaining < 0 else remaining,
                None if more < 0 else more,
                left,
                "" if narrowest < 0 else plan.reasons[narrowest],
            )
        answers.append(answer)
    return answers


def _usage(key: str, now: int, fields: Mapping[str, int]) -> Usage:
    minutes = _minutes(fields)
    this = now // MINUTE_US

    def rate(span: int) -> float:
        return sum(count for minute, count in minutes.items() if minute > this - span) / (span * 60)

    return Usage(
        key=key,
        total=fields.get("total", 0),
        held=fields.get("held", 0),
        first_used_us=fields.get("first"),
        last_used_us=fields.get("last"),
        per_second={"1m": rate(1), "1h": rate(60), "1d": rate(1440)},
    )


def _ranked(entry: list[Any]) -> RankedKey:
    key, _score, total, last, held, in_hour = entry
    return RankedKey(_text(key), int(total), int(last), int(held), int(in_hour) / HOUR_S)


def _minutes(fields: Mapping[str, int]) -> dict[int, int]:
    return {int(name): count for name, count in fields.items() if name.isdigit()}


def _hash(flat: Iterable[Any]) -> dict[str, int]:
    texts = [_text(value) for value in flat]
    return {name: int(value) for name, value in zip(texts[::2], texts[1::2], strict=True)}


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
