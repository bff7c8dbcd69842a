"""Circuits: each worker reports what it sees of the routes, so that all workers leave a route that is down alone.

The state is in Redis (`routes.lua`). The first worker that cannot get through opens the route's circuit. From then on
*pull* leases no message that can go by this route alone, but now and then one as a probe, whose answer closes it again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import structlog

from notifier.notification.notification import platform_of
from notifier.providers.answers import MINUTE_US
from notifier.providers.contract import Answer, Outcome
from notifier.queue.circuits import WORDS, Change, Kind, circuit
from notifier.scripts.loader import Call, run_async
from notifier.scripts.records import CircuitFields, Text
from workers.sending.unreached_devices import UnreachedDevices

# The provider itself answered, and not about our credentials. For the answers that our client made, see `_was_sent`.
ANSWERED: Final = frozenset({Outcome.DELIVERED, Outcome.REJECTED, Outcome.DEAD_TOKEN, Outcome.RETRY, Outcome.BUSY})
# The reasons of an unsent message that lie in this worker, or in a healthy server that is busy or closes a connection.
NO_TROUBLE: Final = frozenset({"Closed", "TooLate", "NoStream", "GoAway"})
SERVER_ERROR: Final = 500
APART_S: Final = 10.0  # if the route worked this recently, a message's second fault counts as its own
ITS_OWN: Final = "only this message is refused so, others get through: look at its app, its device and its options"
# A server that has just lowered its limit refuses a stream now and then; a failing server refuses each of them.
REFUSED: Final = "RefusedStream"
FAILURES: Final = 10  # in a row: then the provider is failing
# The wait for the first probe, which grows by half each time, and the longest wait. An unreachable server may be back
# soon; a wrong key needs a person.
PROBE_US: Final[dict[Kind, tuple[int, int]]] = {
    "unreachable": (1_000_000, 10_000_000),
    "failing": (1_000_000, 10_000_000),
    "fault": (10_000_000, 60_000_000),
    "full": (MINUTE_US, 10 * MINUTE_US),
}
JITTER: Final = (0.8, 1.0)
LATER: Final = (1.0, 1.25)  # the same, if the provider said how long to wait: never less than that
TELL_S: Final = 2.0  # how often a worker reports that it gets through
STEP_BACK_S: Final = (1.0, 60.0)
MAX_KNOWN: Final = 1000


class Circuits:
    """One worker's view of the routes: `record` notes an answer, `tell` reports to Redis.

    routes: those that are configured. Clients name further push services under a `*.`. A service gets a circuit once it
    has delivered something for this worker, so that nobody can invent circuits.
    """

    def __init__(self, redis: Any, worker: str, routes: Iterable[str], keys: Mapping[str, str] | None = None) -> None:
        self._redis = redis
        self._unreached = UnreachedDevices(redis, keys or {})
        self._routes = frozenset(routes)
        self._worker = worker
        self._shut: frozenset[str] = frozenset()
        self._down: dict[str, tuple[Kind, str, int]] = {}  # kind, reason, and the wait the provider asked for, in µs
        self._up: set[str] = set()
        self._next: set[str] = set()
        self._worked: dict[str, float] = {}
        self._told_up: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        self._steps_back = 0
        self._back_at = 0.0
        self._was_in_vain = False
        self._troubled: set[str] = set()  # routes that have not worked since their last trouble
        self._log = structlog.get_logger("notifier.worker").bind(worker=worker)

    def use(self, shut: frozenset[str] | None) -> None:
        """Note the routes whose circuit is open, from the reply of a pull; None if the reply does not say."""
        if shut is not None:
            self._shut = shut

    def record(self, route: str, answer: Answer, refusals: int = 0, device: str = "") -> tuple[Answer, bool]:
        """Note a provider's answer. refusals: how often it refused this message before without spending an attempt.

        device: the token. Returns what the answer means in the light of other messages' answers, and whether an unsent
        message waits for the route; else it waits for a time of its own.
        """
        now = asyncio.get_running_loop().time()
        not_sent = answer.outcome is Outcome.UNSENT and answer.status is None
        self._was_in_vain |= not_sent and answer.reason != "Closed"
        if answer.outcome is Outcome.DELIVERED:
            self._unreached.delivered(route, device, now)
            self._worked_again(route, now)
            return answer, True
        # While the circuit is open, nothing has got through since this message was refused.
        alone = refusals and route not in self._shut and now < self._worked.get(route, -APART_S) + APART_S
        if answer.outcome is Outcome.FAULT and (alone or self._unreached.is_own_fault(route, device, now)):
            # The route works for others, so the fault is this message's own. A first fault proves nothing: the key may
            # have been revoked just now.
            answer = replace(answer, outcome=Outcome.REFUSED, help=ITS_OWN)
        if not self._has_circuit(route):
            return answer, False
        answer = _of_one_that_exists(answer)
        if answer.outcome in ANSWERED and (answer.status or 0) < SERVER_ERROR and _was_sent(answer):
            self._worked_again(route, now)
        elif answer.outcome is Outcome.REFUSED or not _was_sent(answer):
            # A message's own fault says little about the route, an unsent message nothing: another one must probe.
            if route in self._shut:
                self._next.add(route)
        elif route in self._shut and self._unreached.is_no_proof(route, device, answer):
            self._next.add(route)
        elif (kind := self._trouble(route, answer, device, now)) is not None:
            self._up.discard(route)
            status = "" if answer.status is None else f"{answer.status} "
            down = (kind, answer.seen or f"{status}{answer.reason or WORDS[kind]}", answer.retry_after_us or 0)
            if kind == "full":
                self._down[route] = max(self._down.get(route, down), down, key=lambda seen: (seen[0] == kind, seen[2]))
            else:
                self._down.setdefault(route, down)
        return answer, answer.outcome is not Outcome.BUSY

    def not_sent(self) -> None:
        """Note that a leased message was sent to nobody: if it was a probe, another message must probe."""
        self._next |= self._shut

    def _has_circuit(self, route: str) -> bool:
        return "@" not in route or route in self._routes or route in self._worked or route in self._shut

    def _worked_again(self, route: str, now: float) -> None:
        if len(self._worked) > MAX_KNOWN:  # clients name services, so there may be any number
            for known in (self._worked, self._told_up, self._failures, self._troubled):
                known.clear()
        self._failures[route] = 0
        self._worked[route] = now
        self._troubled.discard(route)
        if route in self._down:
            if self._down[route][0] == "full":
                return  # the provider may still take sends that were under way when it said that it is full
            del self._down[route]
        if route in self._shut or now >= self._told_up.get(route, -TELL_S) + TELL_S:
            self._up.add(route)

    def _trouble(self, route: str, answer: Answer, device: str, now: float) -> Kind | None:
        if answer.outcome is Outcome.FAULT:
            return "fault"
        if answer.outcome is Outcome.FULL:
            return "full"
        if answer.outcome is Outcome.UNSENT and answer.reason != REFUSED:
            # With a status, the server was reached and wanted a newer token, which the client has by now.
            return None if answer.status is not None or answer.reason in NO_TROUBLE else "unreachable"
        if self._unreached.is_own_trouble(route, device, now):
            return None
        self._failures[route] += 1
        return "failing" if route in self._shut or self._failures[route] >= FAILURES else None

    @property
    def has_news(self) -> bool:
        """Whether `tell` has something to report about a route."""
        return bool(self._up or self._next or self._down)

    async def tell(self) -> None:
        """Report to Redis what this worker saw since the last report."""
        await self._unreached.tell()
        for route in list(self._up):
            change = await run_async(self._redis, self._seen(route, "up"))
            self._up.discard(route)
            self._told_up[route] = asyncio.get_running_loop().time()
            self._steps_back = 0
            if change == "closed":
                self._log.info("circuit_closed", route=route)
        for route in list(self._next):
            self._next.discard(route)
            await run_async(self._redis, self._seen(route, "next"))
        for route, seen in list(self._down.items()):
            await self._tell_down(route, *seen)
            if self._down.get(route) is seen:  # else `record` has replaced it meanwhile, for the next report
                del self._down[route]

    async def _tell_down(self, route: str, kind: Kind, reason: str, asked_us: int) -> None:
        first_us, max_us = PROBE_US[kind]
        if kind == "full":
            first_us = max(first_us, asked_us)
        share = random.uniform(*(LATER if kind == "full" else JITTER))  # noqa: S311 - jitter
        probe = {"kind": kind, "first_us": first_us, "max_us": max_us, "share": round(share * 1000)}
        change = await run_async(self._redis, self._seen(route, "down", reason=reason, **probe))
        self._failures[route] = 0
        self._told_up.pop(route, None)
        self._was_in_vain = True
        if kind != "full":  # a project is full for all workers alike
            self._troubled.add(route)
        if change == "opened":
            # This one line stands for all messages that wait for the route. It is an error if a person must act.
            log = self._log.error if kind == "fault" else self._log.warning
            log("circuit_opened", route=route, kind=kind, reason=reason)
        elif change == "alone":
            self._step_back(route, reason)

    def _seen(self, route: str, seen: str, **more: Text) -> Call[Change]:
        return circuit(CircuitFields("", self._worker, route, seen, **more))

    def _step_back(self, route: str, reason: str) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._back_at:
            return
        first, most = STEP_BACK_S
        wait = random.uniform(*JITTER) * min(most, first * 2**self._steps_back)  # noqa: S311 - jitter
        self._steps_back = min(self._steps_back + 1, 16)
        self._back_at = now + wait
        self._log.warning("stepped_back", route=route, reason=reason, wait_ms=round(wait * 1000))

    def away_s(self) -> float:
        """How long this worker still leaves the work to other workers, which get through; 0 if it does not."""
        return max(0.0, self._back_at - asyncio.get_running_loop().time())

    @property
    def in_trouble(self) -> bool:
        """Whether this worker cannot get through by some route, as far as it knows."""
        return bool(self._troubled)

    def was_in_vain(self) -> bool:
        """Whether this worker failed to get through by some route since the last call: then another one should try."""
        was, self._was_in_vain = self._was_in_vain, False
        return was

    async def begin(self) -> None:
        """Have held routes probed at once: somebody may have started this worker to repair one."""
        await self._unreached.begin(self._routes)
        await self._probe(self._routes)

    async def probe(self, platform: str) -> None:
        """Have a platform's held routes probed at once: a new key may have repaired one."""
        self._unreached.forget(platform)
        await self._probe(by for by in self._routes | self._shut if platform_of(by) == platform)

    async def _probe(self, routes: Iterable[str]) -> None:
        for route in routes:
            await run_async(self._redis, self._seen(route, "retry"))


def _of_one_that_exists(answer: Answer) -> Answer:
    """Make RETRY for an unreached server UNSENT: the client did not know that the server exists, but it does."""
    if answer.outcome is Outcome.RETRY and answer.status is None:
        return replace(answer, outcome=Outcome.UNSENT, retry_after_us=None)
    return answer


def _was_sent(answer: Answer) -> bool:
    """Whether a refusal comes from the provider; our client made one that has no status."""
    return answer.status is not None or answer.outcome not in {Outcome.REJECTED, Outcome.DEAD_TOKEN, Outcome.REFUSED}
