"""What a limiter asks of Redis: the calls of one namespace, built once for the synchronous and the asyncio client."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

from notifier.limiter.answers import Point, RankedKey, Usage
from notifier.limiter.protocol import Hold, Permit, describe
from notifier.limiter.rates import Rates, as_policy
from notifier.rules.costs import check_cost
from notifier.rules.policy import Policy
from notifier.scripts.loader import Call, script
from notifier.scripts.rule_table import policy_array
from notifier.units import duration_us

By: TypeAlias = Literal["total", "last_used", "rate", "held"]
Asked: TypeAlias = "tuple[str, Rates] | tuple[str, Rates, int]"
Mode: TypeAlias = Literal["take", "look", "add"]

NAMESPACE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
RANKS: Final[Mapping[By, str]] = {"total": "total", "last_used": "last", "rate": "rate", "held": "held"}
MINUTE_US: Final = 60_000_000
HOUR_S: Final = 3600
MAX_KEY_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Request:
    """One key that is asked for, by which rules, and as how many sends it counts."""

    key: str
    policy: Policy
    cost: int


class Requests:
    """Builds the calls for the keys of one namespace. clock: for tests, µs in place of Redis's clock."""

    def __init__(
        self,
        namespace: str,
        *,
        limits: Mapping[str, Policy] | None = None,
        usage_keep: str | timedelta | None = None,
        clock: str = "",
    ) -> None:
        """usage_keep: how long the use of a key is known after its last; None counts no usage."""
        if not NAMESPACE.fullmatch(namespace):
            raise ValueError(f"namespace {namespace!r} must be 1 to 64 of a-z, 0-9, _ and -, and begin with no sign")
        self.namespace = namespace
        self.limits = limits or {}
        self.clock = clock
        self._keep_us = None if usage_keep is None else duration_us(usage_keep)

    def policy(self, rates: Rates) -> Policy:
        """The rules that rates are; raises as `as_policy`."""
        return as_policy(rates, self.limits)

    def request(self, key: str, rates: Rates, cost: int = 1) -> Request:
        """Check what was asked for, where it enters."""
        check_key(key)
        policy = self.policy(rates)
        check_cost(policy, None, cost)
        return Request(key, policy, cost)

    def added(self, key: str, cost: int, keep: str | timedelta) -> Request:
        """What `add` counts: no rule holds it, and it is known for `keep`."""
        check_key(key)
        policy = Policy(kept_us=duration_us(keep))
        check_cost(policy, None, cost)
        return Request(key, policy, cost)

    def ask(
        self, requests: Sequence[Request], mode: Mode, ahead: str | timedelta | float | None = 0
    ) -> Call[list[Permit | Hold]]:
        """Ask for these keys. ahead: how long the caller is ready to wait for its permit; None is for ever."""
        policies: dict[Policy, int] = {}
        permits = [secrets.token_urlsafe(8) for _ in requests]
        args: list[str | bytes | int] = []
        for request, permit in zip(requests, permits, strict=True):
            index = policies.setdefault(request.policy, len(policies))
            args += (request.key, permit, request.cost, index)
        rules = f"[{','.join(map(policy_array, policies))}]"
        keep = "" if self._keep_us is None else self._keep_us
        head: list[str | bytes | int] = [self.clock, self.namespace, mode, ahead_us(ahead), keep, rules]

        def decode(reply: list[Any]) -> list[Permit | Hold]:
            now, answers = reply[0], reply[1:]
            return [_answer(now, *each) for each in zip(requests, permits, answers, strict=True)]

        return Call(script("limit"), [], [*head, *args], decode)

    def refund(self, permit: Permit) -> Call[bool]:
        """Take a permit back; False where it has lapsed or was taken back before."""
        return Call(script("limit_undo"), [], [self.namespace, permit.key, permit.id, permit.cost], bool)

    def reset(self, key: str) -> Call[int]:
        """Forget a key; the reply is how many sends were forgotten."""
        check_key(key)
        return Call(script("limit_undo"), [], [self.namespace, key, "", 1], int)

    def count(self, key: str, last: str | timedelta) -> Call[int]:
        """How many sends of a key fall into the span that ends now."""
        check_key(key)
        return self._read(["count", key, duration_us(last)], lambda _now, count: int(count))

    def usage(self, key: str) -> Call[Usage]:
        """What is known of a key's use."""
        check_key(key)
        self.need_usage()
        return self._read(["usage", key], lambda now, flat: _usage(key, now, _hash(flat)))

    def top(self, count: int, by: By, *, ascending: bool) -> Call[list[RankedKey]]:
        """The keys of the namespace with the most of something, or the least."""
        self.need_usage()
        args: list[str | bytes | int] = ["top", ranks_by(by, count), count, int(ascending)]
        return self._read(args, lambda _now, *found: [_ranked(entry) for entry in found])

    def series(self, key: str | None, last: str | timedelta, step: str | timedelta) -> Call[list[Point]]:
        """How many in each step of the span that ends now; of one key, or of all where that is None."""
        self.need_usage()
        in_steps(0, {}, last, step)  # refuses a wrong span before Redis is asked
        args: list[str | bytes | int] = ["series", "" if key is None else key]
        return self._read(args, lambda now, flat: in_steps(now, _minutes(_hash(flat)), last, step))

    def _read(self, args: Sequence[str | bytes | int], decode: Any) -> Call[Any]:
        whole = [self.clock, self.namespace, *args]
        return Call(script("limit_usage"), [], whole, lambda reply: decode(*reply))

    def need_usage(self) -> None:
        """Raise ValueError where no usage is counted."""
        if self._keep_us is None:
            raise ValueError("this limiter counts no usage; give it usage_keep, such as usage_keep='30d'")


def check_key(key: str) -> None:
    """Raise for what cannot name a key."""
    if not isinstance(key, str):
        raise TypeError(f"a key is text, not {type(key).__name__}")
    if not 1 <= len(key.encode(errors="surrogatepass")) <= MAX_KEY_BYTES:
        raise ValueError(f"a key must be 1 to {MAX_KEY_BYTES} bytes long")


def ahead_us(value: str | timedelta | float | None) -> int:
    """How long a caller is ready to wait, in µs: text, a timedelta, seconds, or None for ever."""
    if value is None:
        return 10**15
    if isinstance(value, int | float):
        return max(0, round(value * 1_000_000))
    return duration_us(value)


def ranks_by(by: By, count: int) -> str:
    """The name under which Redis ranks keys by this; ValueError for another."""
    if by not in RANKS:
        raise ValueError(f"top goes by {', '.join(RANKS)}, not {by!r}")
    if type(count) is not int or count < 1:
        raise ValueError(f"top takes a whole number of keys from 1, not {count!r}")
    return RANKS[by]


def in_steps(now: int, minutes: Mapping[int, int], last: str | timedelta, step: str | timedelta) -> list[Point]:
    """A series by steps of what was counted by the minute. Raises ValueError for a span that has no such steps."""
    last_us, step_us = duration_us(last), duration_us(step)
    if step_us < MINUTE_US or step_us % MINUTE_US:
        raise ValueError("step must be whole minutes: a series is counted by the minute")
    if last_us % step_us:
        raise ValueError("last must be a multiple of step")
    steps, width = last_us // step_us, step_us // MINUTE_US
    first = now // MINUTE_US + 1 - steps * width
    counts = [0] * steps
    for minute, count in minutes.items():
        place = (minute - first) // width
        if 0 <= place < steps:
            counts[place] += count
    return [Point((first + place * width) * MINUTE_US, count) for place, count in enumerate(counts)]


def _answer(now: int, request: Request, permit: str, answer: list[int]) -> Permit | Hold:
    left, admitted, rule, remaining, more, narrowest = answer
    if not admitted:
        return Hold(left, describe("", request.policy, rule).strip(), policy=request.policy, key=request.key)
    return Permit(
        permit,
        request.key,
        None,
        request.cost,
        now + left,
        remaining=None if remaining < 0 else remaining,
        reset_after_us=None if more < 0 else more,
        wait_us=left,
        rule="" if narrowest < 0 else str(request.policy.windows[narrowest - 1]),
    )


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
