"""What every binding does with a request: it asks for the limits, writes headers, refuses, and gives permits back."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final, ParamSpec, TypeAlias, TypeVar

from notifier.errors import LimiterUnreachableError
from notifier.limiter.aio import AsyncLimiter
from notifier.limiter.memory import MemoryLimiter
from notifier.limiter.middleware.headers import (
    PROBLEM_JSON,
    as_json,
    item_name,
    limit_item,
    no_answer,
    policy_items,
    quota_exceeded,
    whole_seconds,
)
from notifier.limiter.middleware.keys import Key, client_address, digest
from notifier.limiter.middleware.request import WebRequest
from notifier.limiter.protocol import Hold, Permit
from notifier.limiter.rates import Rates
from notifier.limiter.sync import UNREACHABLE, KeyLimiter

P = ParamSpec("P")
T = TypeVar("T")
AnyLimiter: TypeAlias = KeyLimiter | AsyncLimiter
SERVER_ERRORS: Final = range(500, 600)
MAX_KEY: Final = 200  # characters; what a client chose may be longer, and is then hashed
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class WebLimit:
    """One limit of a web program: `WebLimit("login", "5/minute; 100/day")`.

    name: of its budget, and in its headers; limits of one name share one budget. rates: as of `Limiter.acquire`, or
    what makes them of the request. key: whom a request counts for; None from it leaves the request out. cost: as how
    many a request counts. exempt: which requests it does not concern. not_counted: the statuses of responses whose
    permit is given back, such as SERVER_ERRORS.
    """

    name: str
    rates: Rates | Callable[[WebRequest], Rates]
    _: KW_ONLY
    key: Key = field(default_factory=client_address)
    cost: int | Callable[[WebRequest], int] = 1
    exempt: Callable[[WebRequest], bool] | None = None
    not_counted: Collection[int] = ()

    def __post_init__(self) -> None:
        """Raise where a limit cannot be meant."""
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(f"the name of a limit is 1 to 64 letters, digits, '.', '_' and '-', not {self.name!r}")

    def asked(self, request: WebRequest) -> tuple[str, Rates, int] | None:
        """What is asked of the limiter; None where this limit does not concern the request."""
        if self.exempt is not None and self.exempt(request):
            return None
        key = self.key(request)
        if key is None:
            return None
        rates = self.rates(request) if callable(self.rates) else self.rates
        cost = self.cost(request) if callable(self.cost) else self.cost
        whole = f"{self.name}:{key}"
        return whole if len(whole) <= MAX_KEY else f"{self.name}:#{digest(key)}", rates, cost


@dataclass(frozen=True, slots=True)
class Refusal:
    """The response in place of the program's."""

    status: int
    headers: Sequence[tuple[str, str]]
    problem: dict[str, Any]

    @property
    def reason(self) -> str:
        """The words beside the status."""
        return "Too Many Requests" if self.status == 429 else "Service Unavailable"  # noqa: PLR2004

    @property
    def body(self) -> bytes:
        """The problem as JSON."""
        return as_json(self.problem)


@dataclass(slots=True)
class Verdict:
    """What became of a request. headers: for the response, whatever it is. permits: what it took, by which limit."""

    headers: list[tuple[str, str]] = field(default_factory=list)
    refusal: Refusal | None = None
    permits: list[tuple[WebLimit, Permit]] = field(default_factory=list)

    def uncounted(self, status: int) -> list[Permit]:
        """Take out the permits that are to be given back because the response has this status."""
        back = [permit for limit, permit in self.permits if status in limit.not_counted]
        self.permits = [(limit, permit) for limit, permit in self.permits if status not in limit.not_counted]
        return back


class Guard:
    """Asks a limiter for several limits of a request: all of them admit it, or nothing is taken.

    If the limiter cannot be asked, its `on_error` decides: "permit" lets the request go, without headers; "raise" and
    "hold" answer 503.
    """

    def __init__(self, limiter: AnyLimiter, limits: Iterable[WebLimit]) -> None:
        self.limiter = limiter
        self.limits = tuple(limits)
        if not isinstance(limiter, KeyLimiter | AsyncLimiter):
            raise TypeError(f"a limiter is a Limiter, AsyncLimiter or MemoryLimiter, not {type(limiter).__name__}")
        if not self.limits:
            raise ValueError("give at least one WebLimit, such as WebLimit('api', '100/minute')")
        for limit in self.limits:
            if not isinstance(limit, WebLimit):
                raise TypeError(f"limits are WebLimit, not {limit!r}: write WebLimit('api', '100/minute')")
            if not callable(limit.rates):
                limiter.policy(limit.rates)  # a rate that cannot be read is refused at the start
        names = [limit.name for limit in self.limits]
        if len(set(names)) < len(names):
            raise ValueError(f"each limit needs a name of its own: {', '.join(names)}")

    def ask(self, request: WebRequest) -> Verdict:
        """Whether a request may go on; for a limiter that is not awaited."""
        if isinstance(self.limiter, AsyncLimiter):
            raise TypeError("an AsyncLimiter is for asyncio; give Limiter or MemoryLimiter to a program without it")
        asked = self._asked(request)
        if not asked:
            return Verdict()
        try:
            answers = self.limiter.acquire_many(one for _, one in asked)
            self._give_back(taken(answers))
        except LimiterUnreachableError:
            return unreachable()
        return self._verdict(asked, answers)

    async def ask_async(self, request: WebRequest) -> Verdict:
        """Whether a request may go on. A plain `Limiter` is asked in a thread, so that the event loop goes on."""
        if not isinstance(self.limiter, AsyncLimiter):
            return await self._in_thread(self.ask, request)
        asked = self._asked(request)
        if not asked:
            return Verdict()
        try:
            answers = await self.limiter.acquire_many(one for _, one in asked)
            for permit in taken(answers):
                await self.limiter.refund(permit)
        except LimiterUnreachableError:
            return unreachable()
        return self._verdict(asked, answers)

    def close(self, verdict: Verdict, status: int) -> None:
        """Give back what a response of this status does not count. Where Redis is away, it stays counted."""
        try:
            self._give_back(verdict.uncounted(status))
        except LimiterUnreachableError:
            return

    async def close_async(self, verdict: Verdict, status: int) -> None:
        """See `close`."""
        if not isinstance(self.limiter, AsyncLimiter):
            await self._in_thread(self.close, verdict, status)
            return
        try:
            for permit in verdict.uncounted(status):
                await self.limiter.refund(permit)
        except LimiterUnreachableError:
            return

    def _asked(self, request: WebRequest) -> list[tuple[WebLimit, tuple[str, Rates, int]]]:
        return [(limit, one) for limit in self.limits if (one := limit.asked(request)) is not None]

    def _give_back(self, permits: Iterable[Permit]) -> None:
        assert isinstance(self.limiter, KeyLimiter)
        for permit in permits:
            self.limiter.refund(permit)

    async def _in_thread(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        # What is in memory answers at once.
        if isinstance(self.limiter, MemoryLimiter):
            return function(*args, **kwargs)
        return await asyncio.to_thread(function, *args, **kwargs)

    def _verdict(
        self, asked: Sequence[tuple[WebLimit, tuple[str, Rates, int]]], answers: Sequence[Permit | Hold]
    ) -> Verdict:
        if any(isinstance(answer, Hold) and answer.rule == UNREACHABLE for answer in answers):
            return unreachable()
        policies: list[str] = []
        items, violated, holds = [], [], []
        for (limit, (_, rates, _)), answer in zip(asked, answers, strict=True):
            policy = self.limiter.policy(rates)
            if isinstance(answer, Hold):
                items.append(limit_item(limit.name, policy, answer.rule, 0, answer.time_left_us))
                violated.append(item_name(limit.name, policy, answer.rule))
                holds.append(answer)
            elif not answer.id:
                continue  # nobody was asked: see on_error="permit"
            elif answer.remaining is not None:
                items.append(limit_item(limit.name, policy, answer.rule, answer.remaining, answer.reset_after_us or 0))
            policies += policy_items(limit.name, policy)
        headers = [("RateLimit-Policy", ", ".join(policies))] if policies else []
        headers += [("RateLimit", ", ".join(items))] if items else []
        if holds:
            return Verdict(refusal=_refusal(429, headers, quota_exceeded(violated, holds), _seconds(holds)))
        permits = [(limit, answer) for (limit, _), answer in zip(asked, answers, strict=True)]
        return Verdict(headers, permits=[(limit, answer) for limit, answer in permits if isinstance(answer, Permit)])


def taken(answers: Sequence[Permit | Hold]) -> list[Permit]:
    """The permits to give back, since not all were granted."""
    permits = [answer for answer in answers if isinstance(answer, Permit)]
    return [] if len(permits) == len(answers) else permits


def unreachable() -> Verdict:
    """The limiter cannot be asked, so nothing goes."""
    return Verdict(refusal=_refusal(503, [], no_answer(), 1))


def _seconds(holds: Sequence[Hold]) -> int:
    return max(1, *(whole_seconds(hold.time_left_us) for hold in holds))


def _refusal(status: int, headers: Iterable[tuple[str, str]], problem: dict[str, Any], seconds: int) -> Refusal:
    own = [("Content-Type", PROBLEM_JSON), ("Retry-After", str(seconds)), ("Cache-Control", "no-store")]
    return Refusal(status, [*headers, *own], problem)
