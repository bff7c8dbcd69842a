"""Flights: what one worker has in flight, the sends under way and the settlements that Redis has not been told yet."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog
from redis.exceptions import RedisError

from notifier.dispatch import calls
from notifier.dispatch.calls import Leased, Settlement, State
from notifier.dispatch.ends import NOTHING, Ends
from notifier.dispatch.in_flight import renew
from notifier.rules.policies import Policies
from notifier.scripts.loader import run_async
from notifier.scripts.rule_table import RuleTable
from workers.circuits import Circuits
from workers.proofs import Proofs, Unproven
from workers.sender import NotOursError, Sender, broken_off, failed
from workers.tracing import Tracing

RENEWALS: Final = 3  # in the time of a lease
AGAIN_S: Final = 0.2  # after a renewal that Redis did not take
CLOSING_S: Final = 1.0  # for the sends to answer once their providers were closed, and again once they were cancelled
SWEEP_S: Final = 0.25
# So many sweeps in a row must find a send past its time before it is left. They are counted, not timed: after a stop of
# the whole process the event loop has its turns between them, in which sends are cancelled and end.
SWEEPS: Final = 5
# A call to Redis takes so many turns of the event loop, or fewer, until it is written. What is begun behind it begins
# then: so Redis has something to do while this process is busy with the sends.
TURNS: Final = 6


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
    ends: Ends = NOTHING


@dataclass(frozen=True, slots=True)
class RqJob:
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

    What got no answer stays in flight, beside those that are under way, until its provider has surely read it. So does
    what was in flight with a worker that died (`adopt`).

    rq_jobs: jobs that turned out to be of another function. wake: is set whenever a send has ended. unbegun: how many
    sends have not begun yet, and are counted nowhere by their routes.
    """

    def __init__(
        self,
        *,
        redis: Any,
        worker: str,
        sender: Sender,
        circuits: Circuits,
        tuning: Tuning,
        wake: asyncio.Event,
        tracing: Tracing | None = None,
    ) -> None:
        self._redis = redis
        self._tracing = tracing
        self._worker = worker
        self._sender = sender
        self._circuits = circuits
        self._tuning = tuning
        self._wake = wake
        self._to_begin: list[tuple[Leased, float, float | None]] = []
        self._all_begun = asyncio.Event()
        self._all_begun.set()
        self.unbegun = 0
        self._sending: dict[asyncio.Task[Settlement | Unproven], tuple[Leased, float]] = {}
        self._unproven: dict[asyncio.Task[None], tuple[Leased, Unproven]] = {}
        self._given_up: list[tuple[Leased, str]] = []
        self._proofs = Proofs()
        self._renewing: asyncio.Task[None] | None = None
        self._renew_now = asyncio.Event()
        self._hopeful_until = 0.0
        self._sweeping = False
        self._overdue: dict[
            asyncio.Task[Settlement | Unproven], int
        ] = {}  # how many sweeps in a row found it past its time
        self._settlements: list[Settlement] = []
        self._log = structlog.get_logger("notifier.worker").bind(worker=worker)
        self.rq_jobs: list[RqJob] = []
        self.delivered = 0
        self.failed = 0

    def use(self, policies: Policies, rules: RuleTable) -> None:
        """Follow these rules."""
        self._policies = policies
        self._rules = rules

    @property
    def hopeful(self) -> bool:
        """Whether a proof is to be waited for: a provider that is well gives it at once, so for a lease at the most."""
        return bool(self._unproven) and asyncio.get_running_loop().time() < self._hopeful_until

    @property
    def busy(self) -> bool:
        """Whether sends are under way, or to be settled."""
        return bool(self._sending or self._to_begin or self._settlements)

    def __len__(self) -> int:
        """How many sends are under way, or are to begin now."""
        return len(self._sending) + len(self._to_begin)

    def begin_soon(self, leased: Leased, send_by: float, due_at: float | None) -> None:
        """As `begin`, but behind the calls to Redis that are made now."""
        if not self._to_begin:
            self._begin_in(TURNS)
        self._to_begin.append((leased, send_by, due_at))
        self.unbegun += 1
        self._all_begun.clear()

    def _begin_in(self, turns: int) -> None:
        loop = asyncio.get_running_loop()
        if turns:
            loop.call_soon(self._begin_in, turns - 1)
            return
        begun, self._to_begin = self._to_begin, []
        for each in begun:
            self.begin(*each)
        loop.call_soon(self._have_begun, len(begun))  # their tasks are first

    def _have_begun(self, n: int) -> None:
        self.unbegun -= n
        if not self.unbegun:
            self._all_begun.set()

    async def all_begun(self) -> None:
        """Wait until the sends that are to begin soon have begun."""
        await self._all_begun.wait()

    def begin(self, leased: Leased, send_by: float, due_at: float | None = None) -> None:
        """Begin to send; see `Dispatch` for `send_by`. due_at: since when it was due, if that is known."""
        category = self._policies.category(leased.category)
        loop = asyncio.get_running_loop()
        if due_at is not None and not leased.dropped and (leased.left_us is None or leased.left_us > 0):
            self._sender.numbers.late(category.name, loop.time() - due_at)
        send = partial(self._sender.send, leased, category, send_by)
        task = loop.create_task(send() if self._tracing is None else self._tracing.around(leased, send))
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

    def _leave(self, tasks: Sequence[asyncio.Task[Settlement | Unproven]]) -> None:
        for task in tasks:
            leased, _ = self._sending.pop(task)
            self._log.error("provider_broke", job_id=leased.job_id, reason="it cannot be cancelled")
            self.adopt([leased])

    def adopt(self, orphans: Iterable[Leased]) -> None:
        """Put these back, which others may have sent, once their providers have read it."""
        for orphan in orphans:
            silences = self._sender.silences(orphan, self._policies.category(orphan.category))
            self._await_proof(orphan, Unproven(broken_off(orphan), silences))

    def _await_proof(self, leased: Leased, unproven: Unproven) -> None:
        loop = asyncio.get_running_loop()
        self._hopeful_until = loop.time() + self._tuning.lease_us / 1e6
        task = loop.create_task(self._proofs.of(unproven.silences))
        self._unproven[task] = leased, unproven
        task.add_done_callback(self._proven)
        self._renew_now.set()
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())

    def _proven(self, task: asyncio.Task[None]) -> None:
        leased, unproven = self._unproven.pop(task)
        if task.cancelled():
            self._given_up.append((leased, unproven.answered))
        else:
            if (error := task.exception()) is not None:
                self._log.error("proof_broke", job_id=leased.job_id, exc_info=error)
            self._settlements.append(unproven.settlement)
        self._wake.set()

    async def _renew(self) -> None:
        """Hold the leases of what is unproven for as long as there is some, and its permits in the future."""
        wait_s = self._tuning.lease_us / 1e6 / RENEWALS
        try:
            while self._unproven:
                self._renew_now.clear()
                flights = [(leased, "") for leased, _ in self._unproven.values()]
                renewed = await self._lease(flights, self._tuning.lease_us)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._renew_now.wait(), wait_s if renewed else AGAIN_S)
        finally:
            self._renewing = None

    async def _lease(self, flights: Sequence[tuple[Leased, str]], lease_us: int) -> bool:
        size = self._tuning.batch
        try:
            for n in range(0, len(flights), size):
                await run_async(self._redis, renew(flights[n : n + size], lease_us=lease_us, worker=self._worker))
        except RedisError as error:
            self._log.debug("not_renewed", jobs=len(flights), reason=str(error))  # the engine says so, once
            return False
        return True

    def _ended(self, task: asyncio.Task[Settlement | Unproven]) -> None:
        if task not in self._sending:
            return  # it was left
        leased, _ = self._sending.pop(task)
        if task.cancelled():
            self._given_up.append((leased, ""))
        elif (error := task.exception()) is None:
            result = task.result()
            if isinstance(result, Unproven):
                self._await_proof(leased, result)
            else:
                self._settlements.append(result)
        elif isinstance(error, NotOursError):
            self.rq_jobs.append(RqJob(leased.job_id, leased.permit, leased.user, leased.category))
        else:
            self._log.error("sender_broke", job_id=leased.job_id, exc_info=error)
            self._settlements.append(failed(leased, f"an error in the worker: {type(error).__name__}"))
        self._wake.set()

    def begin_to_settle(self) -> asyncio.Task[None] | None:
        """Settle what has ended, beside the next look: Redis has the one to do while this process has the other."""
        return asyncio.create_task(self._settle()) if self._settlements or self._circuits.has_news else None

    async def _settle(self) -> None:
        batch = self._settlements[: self._tuning.batch]
        await self._circuits.tell()
        if batch:
            await self.settle(batch)
        del self._settlements[: len(batch)]

    async def settle(self, batch: Sequence[Settlement]) -> list[bool]:
        """Settle these; returns for each whether its lease was still this worker's."""
        numbers = self._sender.numbers.take()
        poison = sum(each.poison for each in batch)
        call = calls.settle(
            batch,
            self._rules,
            worker=self._worker,
            keep_failed_us=self._tuning.keep_failed_us,
            keep_delivered_us=self._tuning.keep_delivered_us,
            keep_feedback_us=self._tuning.keep_feedback_us,
            ends=self._tuning.ends,
            labels=[f"{self._policies.category(each.category).name}|{each.route}" for each in batch],
            numbers={**numbers, "e|poison": poison} if poison else numbers,
            now_s=asyncio.get_running_loop().time(),
        )
        try:
            mine = await run_async(self._redis, call)
        except BaseException:
            self._sender.numbers.give_back(numbers)
            raise
        for settlement, settled in zip(batch, mine, strict=True):
            if not settled:
                self._log.warning("lease_lost", user=settlement.user, job_id=settlement.job_id)
            elif settlement.state == "delivered":
                self.delivered += 1
            elif settlement.state in {"failed", "dropped"}:
                self.failed += 1
        return mine

    async def give_back_rq_jobs(self) -> None:
        """Put the jobs of other functions back into their queues."""
        if self.rq_jobs:
            # Each goes to the head of its queue, so the last goes first.
            await self.settle([rq_job.settlement("queue") for rq_job in reversed(self.rq_jobs)])
            self.rq_jobs.clear()

    async def drain(self) -> None:
        """Wait until nothing is in flight, and all is settled."""
        while self.busy:
            if self._settlements:
                await self._settle()
            elif self._to_begin:
                await self.all_begun()
            else:
                await asyncio.wait(self._sending, timeout=SWEEP_S, return_when=asyncio.FIRST_COMPLETED)

    async def end(self, unbegun: Sequence[Settlement], stop_now: asyncio.Event) -> None:
        """Finish what is in flight within the grace time or until `stop_now`, settle it, and give up the rest.

        What is given up stays in flight: another worker finds it at once, and waits for the proof in this one's place.
        """
        self._settlements += unbegun
        await self.all_begun()
        await self._ended_or_stopped(stop_now)
        await self._sender.close()
        closing = asyncio.get_running_loop().time() + CLOSING_S
        while (left := closing - asyncio.get_running_loop().time()) > 0 and (tasks := self._in_flight()):
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for task in list(self._sending):
            task.cancel()
        if self._sending:
            await asyncio.wait(self._sending, timeout=CLOSING_S)
            self._leave(list(self._sending))
        await self.give_up_unproven()
        try:
            while self._settlements:
                await self._settle()
            await self.give_back_rq_jobs()
        except RedisError as error:
            self._log.error("not_settled", jobs=len(self._settlements), reason=str(error))

    async def give_up_unproven(self) -> None:
        """Leave what is unproven to whoever looks next; each stays in flight meanwhile."""
        while self._unproven:
            for task in list(self._unproven):
                task.cancel()
            await asyncio.wait(self._unproven, timeout=SWEEP_S)  # cancelled again where that was not heard
        if self._given_up and await self._lease(self._given_up, 0):
            self._given_up.clear()

    def _in_flight(self) -> list[asyncio.Task[Any]]:
        return [*self._sending, *self._unproven]

    async def _ended_or_stopped(self, stop_now: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._tuning.grace_us / 1e6
        stopped = asyncio.create_task(stop_now.wait())
        while (tasks := self._in_flight()) and not stop_now.is_set() and (left := until - loop.time()) > 0:
            await asyncio.wait([*tasks, stopped], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if self._settlements:
                with contextlib.suppress(RedisError):  # what could not be settled is tried once more at the end
                    await self._settle()
        stopped.cancel()
