"""Guard: asks for a request's limits, writes headers, refuses, and gives permits back, in every framework."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field
from datetime import timedelta
from http import HTTPStatus
from typing import Any, Final, TypeAlias

from notifier.errors import LimiterUnreachableError
from notifier.limiter.aio import AsyncKeyLimiter
from notifier.limiter.answers import LimitExceeded
from notifier.limiter.base import KeyLimiter, is_async
from notifier.limiter.middleware.headers import (
    PROBLEM_JSON,
    as_json,
    familiar,
    item_name,
    limit_item,
    no_answer,
    policy_items,
    quota_exceeded,
    whole_seconds,
    wrong_cost,
)
from notifier.limiter.middleware.keys import Key, client_address, digest
from notifier.limiter.middleware.request import WebRequest
from notifier.limiter.protocol import UNREACHABLE, Hold, Permit
from notifier.limiter.rates import Rates
from notifier.rules.policy import check_fits_all

AnyLimiter: TypeAlias = KeyLimiter | AsyncKeyLimiter
SERVER_ERRORS: Final = range(500, 600)
MAX_KEY: Final = 200  # characters; a longer key, or one that cannot be printed, is hashed: a client may have chosen it
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class WebLimit:
    """One limit of a web program: `WebLimit("login", "5/minute; 100/day")`.

    name: appears in the headers; limits with the same name share their counts.
    rates: as for `Limiter.acquire`, or a function of the request.
    key: a function of the request that says for whom it counts; if it returns None, the request is not limited.
    cost: how many a request counts as, or a function of the request.
    exempt: a function of the request; if it returns true, this limit does not apply.
    not_counted: the statuses of responses whose permit is given back, such as SERVER_ERRORS.
    """

    name: str
    rates: Rates | Callable[[WebRequest], Rates]
    _: KW_ONLY
    key: Key = field(default_factory=client_address)
    cost: int | Callable[[WebRequest], int] = 1
    exempt: Callable[[WebRequest], bool] | None = None
    not_counted: Collection[int] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise ValueError(f"the name of a limit is 1 to 64 letters, digits, '.', '_' and '-', not {self.name!r}")
        if not (callable(self.key) and callable(self.exempt or callable) and isinstance(self.not_counted, Collection)):
            raise TypeError("key and exempt are functions, not_counted is a list of statuses")
        if any(map(is_async, (self.key, self.exempt, self.rates, self.cost))):
            raise TypeError(f"what {self.name!r} asks of a request are plain functions, not async ones")

    def asked(self, request: WebRequest) -> tuple[str, Rates, int] | None:
        """Return the key, rates and cost to ask for; None if this limit does not apply to the request."""
        if self.exempt is not None and self.exempt(request):
            return None
        key = self.key(request)
        if key is None:
            return None
        if not isinstance(key, str):
            raise TypeError(f"the key of {self.name!r} is text, not {key!r}")
        rates = self.rates(request) if callable(self.rates) else self.rates
        cost = self.cost(request) if callable(self.cost) else self.cost
        # In braces, so that all limits by the same key have one hash tag, and are at one node of a cluster.
        fits = 0 < len(key) < MAX_KEY - len(self.name) and not key.startswith("}") and key.isprintable()
        return f"{self.name}:{{{key if fits else f'#{digest(key)}'}}}", rates, cost


AskedLimit: TypeAlias = tuple[WebLimit, tuple[str, Rates, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class WebAnswer:
    """Changes to how a program answers. Without them, it sends the headers of the draft and the problem of RFC 9457.

    x_headers: send X-RateLimit-Limit, -Remaining and -Reset too, for the rule that leaves the fewest requests.
    body: a function of the request and the problem that returns the body of a 429: text, or a dict for JSON.
    on_refused: a function that is called for each 429 with the request and the names of the used-up rules, for metrics.
    """

    x_headers: bool = False
    body: Callable[[WebRequest, dict[str, Any]], str | dict[str, Any]] | None = None
    on_refused: Callable[[WebRequest, Sequence[str]], object] | None = None

    def __post_init__(self) -> None:
        if any(map(is_async, (self.body, self.on_refused))):
            raise TypeError("body and on_refused are plain functions, not async ones")


@dataclass(frozen=True, slots=True)
class Refusal:
    """The response in place of the program's. problem: text, or a dict for JSON."""

    status: int
    headers: Sequence[tuple[str, str]]
    problem: str | dict[str, Any]

    @property
    def reason(self) -> str:
        return HTTPStatus(self.status).phrase

    @property
    def body(self) -> bytes:
        return self.problem.encode() if isinstance(self.problem, str) else as_json(self.problem)

    @property
    def detail(self) -> str:
        """The reason of the refusal, in one line."""
        return self.reason if isinstance(self.problem, str) else str(self.problem.get("detail", self.reason))


@dataclass(slots=True)
class Verdict:
    """The outcome of a request. headers: for the program's response. permits: those taken, with their limits."""

    headers: list[tuple[str, str]] = field(default_factory=list)
    refusal: Refusal | None = None
    permits: list[tuple[WebLimit, Permit]] = field(default_factory=list)

    def uncounted(self, status: int) -> list[Permit]:
        """Remove, and return, the permits that a response of this status gives back."""
        back = [permit for limit, permit in self.permits if status in limit.not_counted]
        self.permits = [(limit, permit) for limit, permit in self.permits if status not in limit.not_counted]
        return back


class Guard:
    """Asks a limiter for several limits of a request. Permits are taken only if all limits admit it.

    If the limiter cannot be asked, its `on_error` decides: "permit" lets the request go, without headers; "raise" and
    "hold" answer 503.
    """

    def __init__(
        self, limiter: AnyLimiter, limits: Iterable[WebLimit], answer: WebAnswer | None = None, *, awaited: bool
    ) -> None:
        """awaited: whether the program calls `ask_async`, and so gives a limiter for asyncio."""
        check_limiter(limiter, awaited=awaited)
        self.limiter: Any = limiter
        self.answer = answer or WebAnswer()
        self.limits = tuple(limits)
        if not self.limits:
            raise ValueError("give at least one WebLimit, such as WebLimit('api', '100/minute')")
        for limit in self.limits:
            if not isinstance(limit, WebLimit):
                raise TypeError(f"limits are WebLimit, not {limit!r}: write WebLimit('api', '100/minute')")
            if not callable(limit.rates):
                # Raise at the program's start, not at its first request.
                check_fits_all(limiter.policy(limit.rates), 1 if callable(limit.cost) else limit.cost)
        names = [limit.name for limit in self.limits]
        if len(set(names)) < len(names):
            raise ValueError(f"each limit needs a name of its own: {', '.join(names)}")

    def ask(self, request: WebRequest) -> Verdict:
        check_limiter(self.limiter, awaited=False)
        asked = self._asked(request)
        if isinstance(asked, Verdict):
            return asked
        try:
            answers = self.limiter._ask_every(one for _, one in asked)  # noqa: SLF001 - headers need each answer
        except LimiterUnreachableError:
            return unreachable()
        return self._verdict(request, asked, answers)

    async def ask_async(self, request: WebRequest) -> Verdict:
        check_limiter(self.limiter, awaited=True)
        asked = self._asked(request)
        if isinstance(asked, Verdict):
            return asked
        try:
            answers = await self.limiter._ask_every(one for _, one in asked)  # noqa: SLF001
        except LimiterUnreachableError:
            return unreachable()
        return self._verdict(request, asked, answers)

    def close(self, verdict: Verdict, status: int) -> None:
        """Give back the permits that a response of this status does not count. If Redis is away, they stay counted."""
        with suppress(LimiterUnreachableError):
            for permit in verdict.uncounted(status):
                self.limiter.refund(permit)

    async def close_async(self, verdict: Verdict, status: int) -> None:
        with suppress(LimiterUnreachableError):
            for permit in verdict.uncounted(status):
                await self.limiter.refund(permit)

    def _asked(self, request: WebRequest) -> list[AskedLimit] | Verdict:
        """Return what each limit asks for; or the verdict, if no limit applies, or one never admits its cost."""
        asked = [(limit, one) for limit in self.limits if (one := limit.asked(request)) is not None]
        for limit, (_, rates, cost) in asked:
            if callable(limit.cost):
                policy = self.limiter.policy(rates)  # a wrong rate is the program's mistake, and raises
                try:
                    check_fits_all(policy, cost)
                except ValueError as error:
                    headers = [("Content-Type", PROBLEM_JSON), ("Cache-Control", "no-store")]
                    return Verdict(refusal=Refusal(400, headers, wrong_cost(limit.name, str(error))))
        return asked or Verdict()

    def _verdict(self, request: WebRequest, asked: Sequence[AskedLimit], answers: Sequence[Permit | Hold]) -> Verdict:
        if any(isinstance(answer, Hold) and answer.rule == UNREACHABLE for answer in answers):
            return unreachable()
        policies: list[str] = []
        items, violated, holds, least = [], [], [], []
        for (limit, (_, rates, _)), answer in zip(asked, answers, strict=True):
            policy = self.limiter.policy(rates)
            if isinstance(answer, Hold):
                violated.append(item_name(limit.name, policy, answer.rule))
                holds.append(answer)
            elif not answer.id:
                continue  # Redis was not asked: see on_error="permit"
            left, after = (answer.remaining, answer.reset_after_us or 0) if answer else (0, answer.time_left_us)
            if left is not None:
                items.append(limit_item(limit.name, policy, answer.rule, left, after))
                least.append((left, -after, policy, answer.rule))
            policies += policy_items(limit.name, policy)
        headers = [("RateLimit-Policy", ", ".join(policies))] if policies else []
        headers += [("RateLimit", ", ".join(items))] if items else []
        if self.answer.x_headers and least:
            remaining, after, policy, rule = min(least, key=lambda each: each[:2])
            headers += familiar(policy, rule, remaining, -after)
        if holds:
            return Verdict(refusal=self._refused(request, headers, violated, holds))
        pairs = zip(asked, answers, strict=True)
        return Verdict(headers, permits=[(limit, one) for (limit, _), one in pairs if isinstance(one, Permit)])

    def _refused(
        self, request: WebRequest, headers: list[tuple[str, str]], names: Sequence[str], holds: Sequence[Hold]
    ) -> Refusal:
        if self.answer.on_refused is not None:
            self.answer.on_refused(request, names)
        refusal = _refusal(429, headers, quota_exceeded(names, holds), _seconds(holds))
        if self.answer.body is None or isinstance(refusal.problem, str):
            return refusal
        body = self.answer.body(request, refusal.problem)
        kind = "text/plain; charset=utf-8" if isinstance(body, str) else "application/json"
        changed = [(name, kind if name == "Content-Type" else value) for name, value in refusal.headers]
        return Refusal(429, changed, body)


def check_limiter(limiter: object, *, awaited: bool) -> None:
    """Raise TypeError if a limiter that is awaited is not for asyncio, or one that is not awaited is."""
    kind = AsyncKeyLimiter if awaited else KeyLimiter
    if not isinstance(limiter, kind):
        names = "an AsyncLimiter or AsyncMemoryLimiter" if awaited else "a Limiter or MemoryLimiter"
        raise TypeError(f"here a limiter is {names}, not {type(limiter).__name__}")


def exceeded(error: LimitExceeded) -> Refusal:
    """The response to a `LimitExceeded` that a program raised. It does not name the key."""
    if error.rule == UNREACHABLE:
        return _away()
    hold = Hold(error.time_left // timedelta(microseconds=1), error.rule)
    return _refusal(429, [], quota_exceeded([error.rule], [hold]), _seconds([hold]))


def status_of(error: Exception, known: Mapping[type[Exception], int]) -> int:
    """The status of the response to an error. known: the statuses of the framework's own errors; 500 for all others."""
    if isinstance(error, LimitExceeded):
        return exceeded(error).status
    return next((status for kind, status in known.items() if isinstance(error, kind)), 500)


def unreachable() -> Verdict:
    """The verdict if the limiter cannot be asked: a 503."""
    return Verdict(refusal=_away())


def _away() -> Refusal:
    return _refusal(503, [], no_answer(), 1)


def _seconds(holds: Sequence[Hold]) -> int:
    return max(1, *(whole_seconds(hold.time_left_us) for hold in holds))


def _refusal(status: int, headers: Iterable[tuple[str, str]], problem: dict[str, Any], seconds: int) -> Refusal:
    own = [("Content-Type", PROBLEM_JSON), ("Retry-After", str(seconds)), ("Cache-Control", "no-store")]
    return Refusal(status, [*headers, *own], problem)
