"""Flights: what one worker has in flight, the sends under way and the settlements that Redis has not been told yet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog
from redis.exceptions import RedisError

from notifier.limiter import lines
from notifier.limiter.lines import Leased, Settlement, State
from notifier.limiter.rule_table import RuleTable
from notifier.limiter.scripts import run_async
from notifier.policies import Policies
from workers.circuits import Circuits
from workers.sender import NotOursError, Sender, broken_off, failed

CLOSING_S: Final = 1.0  # for the sends to answer once their providers were closed, and again once they were cancelled
SWEEP_S: Final = 0.25
# So many sweeps in a row must find a send past its time before it is left. They are counted, not timed: after a stop of
# the whole process the event loop has its turns between them, in which sends are cancelled and end.
SWEEPS: Final = 5


@dataclass(frozen=True, slots=True)
class Tuning:
    """How much at once, in jobs, and how long, in microseconds."""

    batch: int
    in_flight: int
    lease_us: int
    timeout_us: int
    grace_us: int
    keep_failed_us: int
    keep_delivered_us: int
    keep_feedback_us: int


@dataclass(frozen=True, slots=True)
class Foreign:
    """A job under this worker's lease that *admit* knows nothing of; user and category are empty, or its permit's."""

    job_id: str
    permit: str
    user: str = ""
    category: str = ""

    def settlement(self, state: State, word: str = "", detail: str = "") -> Settlement:
        """The settlement that moves it to `state`."""
        return Settlement(self.job_id, self.permit, self.user, self.category, False, state, word, detail)


class Flights:
    """Begins sends, gathers what became of them, and settles it in batches.

    foreign: jobs that turned out to be of another function. wake: is set whenever a send has ended.
    """

    def __init__(
        self, *, redis: Any, worker: str, sender: Sender, circuits: Circuits, tuning: Tuning, wake: asyncio.Event
    ) -> None:
        self._redis = redis
        self._worker = worker
        self._sender = sender
        self._circuits = circuits
        self._tuning = tuning
        self._wake = wake
        self._sending: dict[asyncio.Task[Settlement], tuple[Leased, float]] = {}
        self._sweeping = False
        self._overdue: dict[asyncio.Task[Settlement], int] = {}  # how many sweeps in a row found it past its time
        self._settlements: list[Settlement] = []
        self._log = structlog.get_logger("notifier.worker").bind(worker=worker)
        self.foreign: list[Foreign] = []
        self.delivered = 0
        self.failed = 0

    def use(self, policies: Policies, rules: RuleTable) -> None:
        """Follow these rules."""
        self._policies = policies
        self._rules = rules

    @property
    def busy(self) -> bool:
        """Whether anything is in flight."""
        return bool(self._sending or self._settlements)

    def __len__(self) -> int:
        """How many sends are under way."""
        return len(self._sending)

    def begin(self, leased: Leased, send_by: float) -> None:
        """Begin to send; see `Dispatch` for `send_by`."""
        category = self._policies.category(leased.category)
        loop = asyncio.get_running_loop()
        task = loop.create_task(self._sender.send(leased, category, send_by))
        self._sending[task] = leased, send_by
        task.add_done_callback(self._ended)
        if not self._sweeping:
            self._sweeping = True
            loop.call_later(SWEEP_S, self._sweep)

    def _sweep(self) -> None:
        """Leave what is past its lease: the sender has cancelled it, and it did not even hear that."""
        loop = asyncio.get_running_loop()
        latest = loop.time() - self._tuning.timeout_us / 1e6
        past = [task for task, (_, send_by) in self._sending.items() if send_by < latest]
        self._overdue = {task: self._overdue.get(task, 0) + 1 for task in past}
        self._leave([task for task, sweeps in self._overdue.items() if sweeps >= SWEEPS])
        self._sweeping = bool(self._sending)
        if self._sweeping:
            loop.call_later(SWEEP_S, self._sweep)

    def _leave(self, tasks: Sequence[asyncio.Task[Settlement]]) -> None:
        for task in tasks:
            leased, _ = self._sending.pop(task)
            self._log.error("provider_broke", job_id=leased.job_id, reason="it cannot be cancelled")
            self._settlements.append(broken_off(leased))
            self._wake.set()

    def _ended(self, task: asyncio.Task[Settlement]) -> None:
        if task not in self._sending:
            return  # it was left
        leased, _ = self._sending.pop(task)
        if task.cancelled():
            self._settlements.append(broken_off(leased))
        elif (error := task.exception()) is None:
            self._settlements.append(task.result())
        elif isinstance(error, NotOursError):
            self.foreign.append(Foreign(leased.job_id, leased.permit, leased.user, leased.category))
        else:
            self._log.error("sender_broke", job_id=leased.job_id, exc_info=error)
            self._settlements.append(failed(leased, f"the worker's own fault: {type(error).__name__}"))
        self._wake.set()

    def begin_to_settle(self) -> asyncio.Task[None] | None:
        """Settle what has ended, beside the next look: Redis has the one to do while this process has the other."""
        return asyncio.create_task(self._settle()) if self._settlements else None

    async def _settle(self) -> None:
        batch = self._settlements[: self._tuning.batch]
        await self._circuits.tell()
        await self.settle(batch)
        del self._settlements[: len(batch)]

    async def settle(self, batch: Sequence[Settlement]) -> list[bool]:
        """Settle these; returns for each whether its lease was still this worker's."""
        call = lines.settle(
            batch,
            self._rules,
            worker=self._worker,
            keep_failed_us=self._tuning.keep_failed_us,
            keep_delivered_us=self._tuning.keep_delivered_us,
            keep_feedback_us=self._tuning.keep_feedback_us,
        )
        mine = await run_async(self._redis, call)
        for settlement, settled in zip(batch, mine, strict=True):
            if not settled:
                self._log.warning("lease_lost", user=settlement.user, job_id=settlement.job_id)
            elif settlement.state == "delivered":
                self.delivered += 1
            elif settlement.state in {"failed", "dropped"}:
                self.failed += 1
        return mine

    async def give_back_foreign(self) -> None:
        """Put the foreign jobs back into their queues."""
        if self.foreign:
            # Each goes to the head of its queue, so the last goes first.
            await self.settle([foreign.settlement("queue") for foreign in reversed(self.foreign)])
            self.foreign.clear()

    async def drain(self) -> None:
        """Wait until nothing is in flight, and all is settled."""
        while self.busy:
            if self._settlements:
                await self._settle()
            else:
                await asyncio.wait(self._sending, timeout=SWEEP_S, return_when=asyncio.FIRST_COMPLETED)

    async def end(self, unbegun: Sequence[Settlement], hurry: asyncio.Event) -> None:
        """Finish what is in flight within the grace time or until `hurry`, break off the rest, and settle it all."""
        self._settlements += unbegun
        await self._ended_or_hurry(hurry)
        await self._sender.close()
        if self._sending:
            await asyncio.wait(self._sending, timeout=CLOSING_S)
        for task in list(self._sending):
            task.cancel()
        if self._sending:
            await asyncio.wait(self._sending, timeout=CLOSING_S)
            self._leave(list(self._sending))
        try:
            while self._settlements:
                await self._settle()
            await self.give_back_foreign()
        except RedisError as error:
            self._log.error("not_settled", jobs=len(self._settlements), reason=str(error))

    async def _ended_or_hurry(self, hurry: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._tuning.grace_us / 1e6
        hurried = asyncio.create_task(hurry.wait())
        while self._sending and not hurry.is_set() and (left := until - loop.time()) > 0:
            await asyncio.wait([*self._sending, hurried], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if self._settlements:
                with contextlib.suppress(RedisError):  # what could not be settled is tried once more at the end
                    await self._settle()
        hurried.cancel()
