"""Circuits: what this worker sees of each route, told to all the workers, so that a route that is down is left alone.

The state is Redis's (`routes.lua`): the first worker that cannot get through opens a route's circuit, *pull* takes
nothing more that goes by it alone, and now and then one message as a probe, whose answer closes it again.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import structlog

from notifier.notification.notification import platform_of
from notifier.providers.answers import MINUTE_US
from notifier.providers.contract import Answer, Outcome
from notifier.queue.circuits import WORDS, circuit
from notifier.scripts.loader import Call, run_async
from notifier.scripts.records import CircuitFields, Text
from workers.sending.unreached_devices import UnreachedDevices

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from notifier.queue.circuits import Change, Kind

# The provider itself spoke, and not of our credentials; but for DELIVERED only where there is a status: else the answer
# was made here, and nothing was sent.
ANSWERED: Final = frozenset({Outcome.DELIVERED, Outcome.REJECTED, Outcome.DEAD_TOKEN, Outcome.RETRY, Outcome.BUSY})
# Not sent for reasons of this worker's own, or by a server that is well and moves house.
NO_TROUBLE: Final = frozenset({"Closed", "TooLate", "NoStream", "GoAway"})
SERVER_ERROR: Final = 500
APART_S: Final = 10.0  # so soon after the route worked a message's second fault is taken for its own
ITS_OWN: Final = "only this message is refused so, others get through: look at its app, its device and its options"
# A stream is refused now and then by a server whose limit has just fallen; by one that is at its end, each of them.
REFUSED: Final = "RefusedStream"
FAILURES: Final = 10  # without an answer, one after the other: then the provider is failing
# To the first probe, then half as long again each time, to the most. What is unreachable may be back soon; a wrong key
# needs a person.
PROBE_US: Final[dict[Kind, tuple[int, int]]] = {
    "unreachable": (1_000_000, 10_000_000),
    "failing": (1_000_000, 10_000_000),
    "fault": (10_000_000, 60_000_000),
    "full": (MINUTE_US, 10 * MINUTE_US),
}
JITTER: Final = (0.8, 1.0)
LATER: Final = (1.0, 1.25)  # the same, where the provider said how long: never less than that
TELL_S: Final = 2.0  # how often a worker tells that it gets through
STEP_BACK_S: Final = (1.0, 60.0)
MAX_KNOWN: Final = 1000


class Circuits:
    """One worker's part: `record` notes what it sees, `tell` tells it.

    routes: that are configured. Others are push services under a `*.`, which strangers name: one has a circuit once it
    has delivered something here, so that nobody can invent circuits.
    """

    def __init__(self, redis: Any, worker: str, routes: Iterable[str], keys: Mapping[str, str] | None = None) -> None:
        self._redis = redis
        self._unreached = UnreachedDevices(redis, keys or {})
        self._routes = frozenset(routes)
        self._worker = worker
        self._shut: frozenset[str] = frozenset()
        self._down: dict[str, tuple[Kind, str, int]] = {}  # why, and how long to wait at least, in microseconds
        self._up: set[str] = set()
        self._next: set[str] = set()
        self._worked: dict[str, float] = {}
        self._told_up: dict[str, float] = {}
        self._failures: Counter[str] = Counter()
        self._steps_back = 0
        self._back_at = 0.0
        self._was_in_vain = False
        self._troubled: set[str] = set()  # routes by which nothing has gone since there was trouble
        self._log = structlog.get_logger("notifier.worker").bind(worker=worker)

    def use(self, shut: frozenset[str] | None) -> None:
        """Know the routes whose circuit is open, as of the last look; None where that did not tell."""
        if shut is not None:
            self._shut = shut

    def record(self, route: str, answer: Answer, refusals: int = 0, device: str = "") -> tuple[Answer, bool]:
        """Note a provider's answer to a message that was refused so often before without spending an attempt.

        device: its token. Returns what the answer means in the light of the others, and whether what was not sent waits
        for the route; else it waits for itself.
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
            # Its own fault says little of the route, and what was never sent says nothing: another is to probe it.
            if route in self._shut:
                self._next.add(route)
        elif route in self._shut and self._unreached.is_no_proof(route, device, answer):
            self._next.add(route)
        elif (kind := self._trouble(route, answer, device, now)) is not None:
            self._up.discard(route)
            status = "" if answer.status is None else f"{answer.status} "
            told = (kind, answer.seen or f"{status}{answer.reason or WORDS[kind]}", answer.retry_after_us or 0)
            if kind == "full":
                self._down[route] = max(self._down.get(route, told), told, key=lambda seen: (seen[0] == kind, seen[2]))
            else:
                self._down.setdefault(route, told)
        return answer, answer.outcome is not Outcome.BUSY

    def not_sent(self) -> None:
        """Note that a leased message could not be sent to anybody: where it was a probe, another one is to go."""
        self._next |= self._shut

    def _has_circuit(self, route: str) -> bool:
        return "@" not in route or route in self._routes or route in self._worked or route in self._shut

    def _worked_again(self, route: str, now: float) -> None:
        if len(self._worked) > MAX_KNOWN:
            self._worked.clear()
        self._failures[route] = 0
        self._worked[route] = now
        self._troubled.discard(route)
        if route in self._down:
            if self._down[route][0] == "full":
                return  # what was under way when the provider said that it is full may still be taken
            del self._down[route]
        if route in self._shut or now >= self._told_up.get(route, -TELL_S) + TELL_S:
            self._up.add(route)

    def _trouble(self, route: str, answer: Answer, device: str, now: float) -> Kind | None:
        if answer.outcome is Outcome.FAULT:
            return "fault"
        if answer.outcome is Outcome.FULL:
            return "full"
        if answer.outcome is Outcome.UNSENT and answer.reason != REFUSED:
            # One with a status comes from a server that was reached, and wants a newer token, which there is by now.
            return None if answer.status is not None or answer.reason in NO_TROUBLE else "unreachable"
        if self._unreached.is_own_trouble(route, device, now):
            return None
        self._failures[route] += 1
        return "failing" if route in self._shut or self._failures[route] >= FAILURES else None

    async def tell(self) -> None:
        """Tell what was seen since the last time, before messages go back to backlogs, or they come at once."""
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
            if self._down.get(route) is seen:  # `record` may have noted otherwise meanwhile: that is for the next time
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
        if kind != "full":  # for all workers alike
            self._troubled.add(route)
        if change == "opened":
            # Whatever waits for the route is told by this one line; what is ours to mend is shouted.
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
        """For how long this worker leaves the work to the others, who get through; 0 is not at all."""
        return max(0.0, self._back_at - asyncio.get_running_loop().time())

    @property
    def in_trouble(self) -> bool:
        """Whether this worker cannot get through by some route, as far as it knows."""
        return bool(self._troubled)

    def was_in_vain(self) -> bool:
        """Whether this worker could not get through by some route since it was asked last: another is to try."""
        was, self._was_in_vain = self._was_in_vain, False
        return was

    async def begin(self) -> None:
        """Have the routes that are held probed at once: this worker may have been started to mend one."""
        await self._unreached.begin(self._routes)
        await self._probe(self._routes)

    async def probe(self, platform: str) -> None:
        """Have the routes of a platform that are held probed at once: a new key of it may have mended one."""
        self._unreached.forget(platform)
        await self._probe(by for by in self._routes | self._shut if platform_of(by) == platform)

    async def _probe(self, routes: Iterable[str]) -> None:
        for route in routes:
            await run_async(self._redis, self._seen(route, "retry"))


def _of_one_that_exists(answer: Answer) -> Answer:
    """The answer where a server was not reached of which the provider did not know whether it exists: this one does."""
    if answer.outcome is Outcome.RETRY and answer.status is None:
        return replace(answer, outcome=Outcome.UNSENT, retry_after_us=None)
    return answer


def _was_sent(answer: Answer) -> bool:
    """Whether a refusal comes from the provider; one without a status was made here."""
    return answer.status is not None or answer.outcome not in {Outcome.REJECTED, Outcome.DEAD_TOKEN, Outcome.REFUSED}
