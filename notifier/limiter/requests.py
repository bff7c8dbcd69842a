"""What a limiter asks of Redis: the calls of one namespace, built once for the synchronous and the asyncio client."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Literal, TypeAlias

from notifier.limiter.answers import Point, RankedKey, Usage
from notifier.limiter.plans import MAX_PLANS, PermitIds, Plan, plan_of, send_of
from notifier.limiter.protocol import Hold, Permit, describe
from notifier.limiter.rates import Limits, Rates, as_policy, is_name
from notifier.rules.policy import Policy
from notifier.scripts.keys import redis_key
from notifier.scripts.loader import Call, script
from notifier.scripts.packed import PackedCall, pack, pack_call
from notifier.scripts.rule_table import policy_array
from notifier.units import duration_us

By: TypeAlias = Literal["total", "last_used", "rate", "held"]
Asked: TypeAlias = "tuple[str, Rates] | tuple[str, Rates, int]"
Mode: TypeAlias = Literal["take", "look", "add"]

NAMESPACE: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")
RANKS: Final[Mapping[By, str]] = {"total": "total", "last_used": "last", "rate": "rate", "held": "held"}
MINUTE_US: Final = 60_000_000
HOUR_S: Final = 3600
TAKE_NOW: Final = pack([""])
MAX_KEY_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Request:
    """One key that is asked for, by which rules, and as how many sends it counts. raw: the key as Redis has it."""

    key: str
    raw: bytes
    plan: Plan

    @property
    def policy(self) -> Policy:
        """The rules."""
        return self.plan.policy

    @property
    def cost(self) -> int:
        """As how many it counts."""
        return self.plan.cost


class Requests:
    """Builds the calls for the keys of one namespace. clock: for tests, µs in place of Redis's clock."""

    def __init__(
        self,
        namespace: str,
        *,
        limits: Limits | None = None,
        usage_keep: str | timedelta | None = None,
        clock: str = "",
    ) -> None:
        """limits: policies by name, or what gives those of now.

        usage_keep: how long the use of a key is known after its last; None counts no usage.
        """
        if not NAMESPACE.fullmatch(namespace):
            raise ValueError(f"namespace {namespace!r} must be 1 to 64 of a-z, 0-9, _ and -, and begin with no sign")
        self.namespace = namespace
        self.clock = clock
        self._limits = limits or {}
        self._keep_us = None if usage_keep is None else duration_us(usage_keep)
        self._plans: dict[tuple[Rates, int], Plan] = {}
        self._ids = PermitIds()
        self._prefix = redis_key("keys", namespace, "{").encode()

    def limits(self) -> Mapping[str, Policy]:
        """The policies that have names, as of now."""
        return self._limits() if callable(self._limits) else self._limits

    def policy(self, rates: Rates) -> Policy:
        """The rules that rates are; raises as `as_policy`."""
        return as_policy(rates, self.limits)

    def request(self, key: str, rates: Rates, cost: int = 1) -> Request:
        """Check what was asked for, where it enters."""
        raw = check_key(key)
        try:
            plan = self._plans.get((rates, cost))
        except TypeError:  # a list
            plan = None
        return Request(key, raw, self._plan(rates, cost) if plan is None else plan)

    def _plan(self, rates: Rates, cost: int) -> Plan:
        """Rules that stand for themselves are checked once; what a name stands for may change."""
        policy = self.policy(rates)
        known: Rates = rates if isinstance(rates, str) and not is_name(rates) else policy
        if type(cost) is not int:
            return plan_of(policy, cost)  # True is no 1
        plan = self._plans.get((known, cost))
        if plan is None:
            if len(self._plans) >= MAX_PLANS:
                self._plans.clear()
            plan = self._plans[known, cost] = plan_of(policy, cost)
        return plan

    def added(self, key: str, cost: int, keep: str | timedelta) -> Request:
        """What `add` counts: no rule holds it, and it is known for `keep`."""
        return self.request(key, Policy(kept_us=duration_us(keep)), cost)

    def ask(
        self, requests: Sequence[Request], mode: Mode, ahead: str | timedelta | float | None = 0
    ) -> PackedCall[list[Permit | Hold]]:
        """Ask for these keys. ahead: how long the caller is ready to wait for its permit; None is for ever.

        Where the answers are fewer, the rest is to be asked by `ask_any`.
        """
        timeout = 0 if ahead == 0 else ahead_us(ahead)
        if self._keep_us is not None or any(request.plan.packed is None for request in requests):
            return self.ask_any(requests, mode, ahead)
        prefix, keys, rest = self._prefix, [], [self._head(mode, timeout)]
        ends = []
        for request in requests:
            ends.append(end := self._ids.end())
            key, plan = request.raw, request.plan
            keys.append(b"$%d\r\n%b%b}\r\n" % (len(prefix) + len(key) + 1, prefix, key))
            rest.append(b"$%d\r\n%b\r\n%b" % (len(end), end.encode(), plan.packed or b""))
        wire = pack_call(script("limit"), len(keys), 1 + 2 * len(keys), b"".join(keys + rest))

        def decode(reply: list[int]) -> list[Permit | Hold]:
            return _answers(requests, ends, reply, timeout)

        return PackedCall(script("limit"), wire, decode)

    def _head(self, mode: Mode, timeout: int) -> bytes:
        if mode == "take" and not timeout and not self.clock:
            return TAKE_NOW
        return pack([struct.pack(">QQ", int(self.clock or 0), timeout) + mode[:1].encode()])

    def ask_any(
        self, requests: Sequence[Request], mode: Mode, ahead: str | timedelta | float | None = 0
    ) -> PackedCall[list[Permit | Hold]]:
        """The same for rules of any kind."""
        policies: dict[Policy, int] = {}
        ends = [self._ids.end() for _ in requests]
        args: list[str | bytes | int] = []
        for request, end in zip(requests, ends, strict=True):
            index = policies.setdefault(request.policy, len(policies))
            args += (request.raw, end, request.cost, index)
        rules = f"[{','.join(map(policy_array, policies))}]"
        keep = "" if self._keep_us is None else self._keep_us
        timeout = ahead_us(ahead)
        args = [self.clock, self.namespace, mode, timeout, keep, rules, *args]

        def decode(reply: list[int]) -> list[Permit | Hold]:
            return _answers(requests, ends, reply, timeout)

        return PackedCall(script("limit_any"), pack_call(script("limit_any"), 0, len(args), pack(args)), decode)

    def refund(self, permit: Permit) -> Call[bool]:
        """Take a permit back; False where it has lapsed or was taken back before."""
        return Call(script("limit_undo"), [], [self.namespace, permit.key, send_of(permit.id), permit.cost], bool)

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


def namespaces_call() -> Call[list[tuple[str, int, int]]]:
    """The namespaces that count usage: the name, how many keys it knows, and the µs of a use within its last minute."""

    def decode(reply: list[Any]) -> list[tuple[str, int, int]]:
        return [(_text(name), int(keys), int(at)) for name, keys, at in reply[1:]]

    return Call(script("limit_usage"), [], ["", "", "namespaces"], decode)


def check_key(key: str) -> bytes:
    """Return a key as Redis has it; raise for what cannot name a key."""
    if not isinstance(key, str):
        raise TypeError(f"a key is text, not {type(key).__name__}")
    raw = key.encode()
    if not 1 <= len(raw) <= MAX_KEY_BYTES:
        raise ValueError(f"a key must be 1 to {MAX_KEY_BYTES} bytes long")
    return raw


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


def _answers(
    requests: Sequence[Request], ends: Sequence[str], reply: Sequence[int], timeout: int
) -> list[Permit | Hold]:
    """What the script said of each key, in order; there may be fewer answers than requests."""
    now, answers = reply[0], []
    for n in range(len(reply) // 5):
        left, rule, remaining, more, narrowest = reply[5 * n + 1 : 5 * n + 6]
        request = requests[n]
        plan = request.plan
        answer: Permit | Hold
        if left > timeout:
            reason = plan.reasons[rule] if rule >= 0 else describe("", plan.policy, rule).strip()
            answer = Hold(left, reason, plan.policy, request.key)
        else:
            answer = Permit(
                f"{now + left}{ends[n]}",
                request.key,
                None,
                plan.cost,
                now + left,
                None if remaining < 0 else remaining,
                None if more < 0 else more,
                left,
                "" if narrowest < 0 else plan.names[narrowest - 1],
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
