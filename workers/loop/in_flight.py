"""Flights: one worker's sends under way, and the settlements that Redis does not have yet."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from secrets import token_hex
from typing import Any, Final, TypeAlias

import structlog
from redis.exceptions import RedisError

from notifier.queue import calls
from notifier.queue.calls import Measured, Settlement, Worker
from notifier.queue.in_flight import renew
from notifier.rules.category import Category
from notifier.rules.policies import Policies
from notifier.scripts.loader import Call, run_async
from notifier.scripts.records import Leased
from notifier.scripts.rule_table import RuleTable
from workers.loop.parts import Parts, RqJob
from workers.sending.proofs import Proofs, Unproven
from workers.sending.sender import NotOursError
from workers.sending.settlements import broken_off, end_unsent, failed, is_deferred, log_fields, returned

RENEWALS: Final = 3  # in each lease time
AGAIN_S: Final = 0.2  # after a renewal that failed
CLOSING_S: Final = 1.0  # how long sends may take to end once their providers are closed, and again once cancelled
SWEEP_S: Final = 0.25
# A send is abandoned after this many sweeps that found it overdue. Sweeps are counted, not timed: after a pause of the
# whole process, the event loop has its turns between them, in which overdue sends are cancelled and end.
SWEEPS: Final = 5
# A call to Redis is written within this many turns of the event loop. The sends begin only then, so that Redis works
# on the call while this process is busy with them.
TURNS: Final = 3
Backlog: TypeAlias = tuple[str, str]  # a user, and a category
Result: TypeAlias = Settlement | Unproven


class Flight:
    """A send. leased_at, due_at: by the loop's clock; due_at is None if unknown. sweeps: how many found it overdue."""

    __slots__ = ("backlog", "due_at", "leased", "leased_at", "sweeps")

    def __init__(self, leased: Leased, leased_at: float, due_at: float | None) -> None:
        self.leased, self.leased_at, self.due_at = leased, leased_at, due_at
        self.backlog: Backlog = leased.user, leased.category
        self.sweeps = 0


class Flights:
    """Begins sends, gathers their results, and settles them in batches.

    A send whose answer never came stays in flight until the provider has certainly read it. Sends adopted from a dead
    worker do the same (`adopt`).

    rq_jobs: jobs of other functions. wake: set whenever a send ends. unbegun: how many sends have not begun, so that no
    route counts them yet; all_begun: set while there are none.
    """

    def __init__(self, parts: Parts) -> None:
        self._redis, self._worker, self._tuning = parts.redis, parts.name, parts.tuning
        self._sender, self._circuits, self._tracing = parts.sender, parts.circuits, parts.tracing
        self.wake, self._turns = parts.idle.wake, parts.turns
        self._turns.join(self)
        self.claim_anew()
        self._to_begin: list[tuple[Leased, float, float | None]] = []
        self._queued = 0  # how many sends are in `_behind`
        self.all_begun = asyncio.Event()
        self.all_begun.set()
        self.unbegun = 0
        self._behind: dict[Backlog, deque[Flight] | None] = {}  # the sends that wait behind the one under way
        self._returning: set[Backlog] = set()
        self._sending: dict[Flight, asyncio.Task[None]] = {}
        self._unproven: dict[asyncio.Task[None], tuple[Leased, Unproven]] = {}
        self._given_up: list[tuple[Leased, str]] = []
        self._proofs = Proofs()
        self._renewing: asyncio.Task[None] | None = None
        self._renew_now = asyncio.Event()
        self._hopeful_until = 0.0
        self._sweeping = False
        self._settlements: list[Settlement] = []  # that Redis does not have yet, also those of the next two
        self._with_pull: list[Settlement] = []  # on their way to Redis with the pull under way, or before it
        self._beside_pull: list[Settlement] = []  # on their way to Redis by themselves
        self._settling: asyncio.Task[None] | None = None  # those of `_beside_pull`
        self._numbers: Counter[str] = Counter()  # that Redis does not have yet
        self._log = structlog.get_logger("notifier.worker").bind(worker=parts.name)
        self.rq_jobs: list[RqJob] = []
        self.delivered = 0
        self.failed = 0
        self.run_by_rq = 0

    def claim_anew(self) -> None:
        """Become another claimant (claims.lua): jobs leased by a lost reply keep their place until the lease ends."""
        self.claimant = f"{self._worker} {token_hex(4)}"

    def use(self, policies: Policies, rules: RuleTable) -> None:
        self._policies = policies
        self._rules = rules

    @property
    def hopeful(self) -> bool:
        """Whether proofs are worth waiting for: for a lease time at most, as a healthy provider gives one at once."""
        return bool(self._unproven) and asyncio.get_running_loop().time() < self._hopeful_until

    @property
    def ended(self) -> int:
        """How many jobs ended here."""
        return self.delivered + self.failed + self.run_by_rq

    def left(self, most: int) -> int:
        """How many more jobs may be taken so that at most `most` end here."""
        return max(0, most - self.ended - len(self) - len(self._settlements))

    @property
    def busy(self) -> bool:
        """Whether sends are under way, or to be settled."""
        return bool(self._sending or self._to_begin or self._settlements)

    def __len__(self) -> int:
        """How many sends are under way, or are to begin now."""
        return len(self._sending) + len(self._to_begin) + self._queued

    def begin_soon(self, leased: Leased, leased_at: float, due_at: float | None) -> None:
        """As `begin`, but once the calls to Redis of this turn are written; see TURNS."""
        if not self._to_begin:
            self._begin_in(TURNS)
            self.all_begun.clear()
        self._to_begin.append((leased, leased_at, due_at))
        self.unbegun += 1

    def _begin_in(self, turns: int) -> None:
        loop = asyncio.get_running_loop()
        if turns:
            loop.call_soon(self._begin_in, turns - 1)
            return
        begun, self._to_begin = self._to_begin, []
        for each in begun:
            self.begin(*each)
        loop.call_soon(self._have_begun, len(begun))  # runs after the first step of their tasks

    def _have_begun(self, n: int) -> None:
        self.unbegun -= n
        self._turns.freed()
        if not self.unbegun:
            self.all_begun.set()

    def begin(self, leased: Leased, leased_at: float, due_at: float | None = None) -> None:
        """Begin a send; see `Flight`.

        A send waits for the answer to the one before it in its backlog, or the two could change places: if the provider
        defers the first one, it goes back to its backlog, and the later ones go back behind it.
        """
        flight, under_way = Flight(leased, leased_at, due_at), self._behind
        backlog = flight.backlog
        if backlog in self._returning:
            self.give_back(leased)
        elif backlog not in under_way:
            under_way[backlog] = None
            self._start(flight)
        else:
            if (behind := under_way[backlog]) is None:
                behind = under_way[backlog] = deque()
            behind.append(flight)
            self._queued += 1

    def give_back(self, leased: Leased) -> None:
        """Return a job unsent to its backlog; later leases of this backlog follow it."""
        self._returning.add((leased.user, leased.category))
        self._settlements.append(returned(leased))
        self.wake.set()

    def _start(self, flight: Flight) -> None:
        leased, loop = flight.leased, asyncio.get_running_loop()
        category = self._policies.category(leased.category)
        if flight.due_at is not None and not leased.dropped and (leased.left_us is None or leased.left_us > 0):
            self._sender.numbers.late[category.name].append(loop.time() - flight.due_at)
        self._sending[flight] = loop.create_task(self._send(flight, category))
        if not self._sweeping:
            self._sweeping = True
            loop.call_later(SWEEP_S, self._sweep)

    async def _send(self, flight: Flight, category: Category) -> None:
        send = partial(self._sender.send, flight.leased, category, flight.leased_at, self._circuits)
        result: Result | BaseException
        try:
            result = await (send() if self._tracing is None else self._tracing.around(flight.leased, send))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - `_ended` says which
            result = error
        # Not by a callback of the task: that would take one more turn of the loop.
        if self._sending.pop(flight, None) is not None:  # else `_leave` has abandoned it
            self._ended(flight, result)

    def _ended(self, flight: Flight, result: Result | BaseException) -> None:
        leased, taken = flight.leased, True
        if isinstance(result, Settlement):
            self._settlements.append(result)
            taken = result.state != "backlog" or not is_deferred(result)
        elif isinstance(result, Unproven):
            self._await_proof(leased, result)
        elif isinstance(result, asyncio.CancelledError):
            self._given_up.append((leased, ""))
        elif not isinstance(result, NotOursError):
            self._log.error("sender_broke", **log_fields(leased), exc_info=result)
            why = f"an error in the worker: {type(result).__name__}"
            self._settlements.append(failed(leased, why, reached=True))  # the message may have left
        elif (unsent := end_unsent(leased, partial(self._log.bind, **log_fields(leased)))) is not None:
            self._settlements.append(unsent)
        else:
            self.rq_jobs.append(RqJob(leased.job_id, leased.permit, leased.user, leased.category))
        self._follow(flight, taken=taken)
        self.wake.set()
        if self._settling is None:
            self._settle_beside_pull()

    def _follow(self, flight: Flight, *, taken: bool) -> None:
        """Begin the backlog's next send. taken: False if the provider deferred this one; then the others go back."""
        behind = self._behind[flight.backlog]
        if not taken:
            self._returning.add(flight.backlog)
            self._give_back_behind(behind)
        if behind:
            self._queued -= 1
            self._start(behind.popleft())
        else:
            del self._behind[flight.backlog]
        self._turns.freed()

    def _give_back_behind(self, behind: deque[Flight] | None) -> None:
        if behind:
            self._settlements += [returned(flight.leased) for flight in behind]
            self._queued -= len(behind)
            behind.clear()

    def _sweep(self) -> None:
        """Abandon overdue sends: the sender has cancelled them, and they ignored it."""
        loop = asyncio.get_running_loop()
        latest = loop.time() - self._tuning.send_within_s - self._tuning.timeout_us / 1e6
        past = [flight for flight in self._sending if flight.leased_at < latest]
        for flight in past:
            flight.sweeps += 1
        self._leave([flight for flight in past if flight.sweeps >= SWEEPS])
        self._sweeping = bool(self._sending)
        if self._sweeping:
            loop.call_later(SWEEP_S, self._sweep)

    def _leave(self, flights: Sequence[Flight]) -> None:
        for flight in flights:
            del self._sending[flight]
            self._log.error("provider_broke", **log_fields(flight.leased), reason="it cannot be cancelled")
            self.adopt([flight.leased])
            self._follow(flight, taken=True)

    def adopt(self, orphans: Iterable[Leased], after_s: float = 0.0) -> None:
        """Return jobs that a worker may have sent to their backlogs, once their providers have certainly read them.

        after_s: no sooner than in so many seconds.
        """
        for orphan in orphans:
            silences = self._sender.silences(orphan, self._policies.category(orphan.category))
            self._await_proof(orphan, Unproven(broken_off(orphan), silences), after_s)

    def _await_proof(self, leased: Leased, unproven: Unproven, after_s: float = 0.0) -> None:
        loop = asyncio.get_running_loop()
        self._hopeful_until = loop.time() + self._tuning.lease_us / 1e6
        task = loop.create_task(self._proofs.of(unproven.silences, after_s))
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
                self._log.error("proof_broke", **log_fields(leased), exc_info=error)
            self._settlements.append(unproven.settlement)
        self.wake.set()

    async def _renew(self) -> None:
        """Renew the leases of unproven sends, and date their permits ahead, while there are any."""
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
                await run_async(self._redis, renew(flights[n : n + size], lease_us=lease_us, claimant=self.claimant))
        except RedisError:  # the engine logs the outage
            return False
        return True

    async def settle_returned(self) -> None:
        """Settle the jobs that go back to their backlogs before the next pull: later jobs would overtake them."""
        if self._returning:
            await self.all_begun.wait()
            while any(settlement.state == "backlog" for settlement in self._settlements):
                await self._settle()
            self._returning.clear()

    async def settling(self) -> Call[list[bool]] | None:
        """Return the call that settles a batch of ended sends, or None. Decoding its reply notes the result."""
        await self._circuits.tell()  # first: messages of an open circuit that go back must not be pulled again at once
        self._with_pull = self._without(self._beside_pull)[: self._tuning.batch]
        return self._call_for(self._with_pull, counts=not self._beside_pull) if self._with_pull else None

    def _settle_beside_pull(self) -> None:
        """Settle a whole batch while a pull is under way: Redis works on it until the next pull comes."""
        # What goes back to its backlog, and what Redis must hear first, waits for the next pull: see `settling`.
        has_batch = len(self._settlements) >= len(self._with_pull) + self._tuning.batch
        if has_batch and self._turns.takes(self) and not (self._returning or self._circuits.has_news):
            self._beside_pull = self._without(self._with_pull)[: self._tuning.batch]
            call = self._call_for(self._beside_pull, counts=not self._with_pull)
            self._settling = asyncio.create_task(self._run_beside_pull(call))

    async def _run_beside_pull(self, call: Call[list[bool]]) -> None:
        try:
            with contextlib.suppress(RedisError):  # the next round settles them
                await run_async(self._redis, call)
        finally:
            self._settling, self._beside_pull = None, []
            self.wake.set()
        self._settle_beside_pull()

    def _without(self, these: Sequence[Settlement]) -> list[Settlement]:
        known = set(map(id, these))
        return [each for each in self._settlements if id(each) not in known]

    def _call_for(self, batch: Sequence[Settlement], *, counts: bool) -> Call[list[bool]]:
        call = self._settle_call(batch, counts=counts)

        def settled(reply: Any) -> list[bool]:
            self._settlements = self._without(batch)
            if batch is self._with_pull:
                self._with_pull = []
            return self._note(batch, call.decode(reply), counts=counts)

        return replace(call, decode=settled)

    async def _settle(self) -> None:
        if self._settling is not None:
            await asyncio.wait([self._settling])
        if (call := await self.settling()) is not None:
            await run_async(self._redis, call)

    async def settle_rq_job(self, settlement: Settlement) -> bool:
        """Settle a job of another function. Returns whether its lease was still this worker's."""
        call = self._settle_call([settlement])
        (mine,) = self._note([settlement], await run_async(self._redis, call))
        return mine

    def _note(self, batch: Sequence[Settlement], mine: list[bool], *, counts: bool = True) -> list[bool]:
        if counts:
            self._numbers.clear()
        for settlement, settled in zip(batch, mine, strict=True):
            if not settled:
                self._log.warning("lease_lost", **log_fields(settlement))
            elif settlement.state == "delivered":
                self.delivered += 1
            elif settlement.state in {"failed", "dropped"}:
                self.failed += 1
        return mine

    def _settle_call(self, batch: Sequence[Settlement], *, counts: bool = True) -> Call[list[bool]]:
        """counts: take along the numbers; of the calls under way one does."""
        numbers = {}
        if counts:
            self._numbers.update(self._sender.numbers.take())
            numbers = dict(self._numbers)
        if poison := len([each for each in batch if each.poison]):
            numbers["e|poison"] = poison
        labels = [f"{self._policies.category(each.category).name}|{each.route}" for each in batch]
        measured = Measured(labels, numbers, asyncio.get_running_loop().time())
        return calls.settle(batch, self._rules, Worker(name=self._worker, keep=self._tuning.keep), measured)

    def return_rq_jobs(self) -> Call[list[bool]]:
        """Return the call that puts the jobs of other functions back where they were."""
        # Each goes to the head of its queue, so the last goes first.
        return self._settle_call([rq_job.given_back() for rq_job in reversed(self.rq_jobs)], counts=False)

    async def drain(self) -> None:
        """Wait until each send has ended or awaits its proof, and all settlements are in Redis."""
        while self.busy:
            if self._settlements:
                await self._settle()
            elif self._to_begin:
                await self.all_begun.wait()
            else:
                await asyncio.wait(self._sending.values(), timeout=SWEEP_S, return_when=asyncio.FIRST_COMPLETED)

    async def end(self, unbegun: Sequence[Settlement], stop_now: asyncio.Event) -> None:
        """Finish what is in flight within the grace time or until `stop_now`, settle it, and give up the rest.

        A send that is given up stays in flight: another worker finds it at once, and waits for its proof instead.
        """
        self._settlements += unbegun
        await self.all_begun.wait()
        for behind in self._behind.values():
            self._give_back_behind(behind)
        await self._ended_or_stopped(stop_now)
        await self._sender.close()
        closing = asyncio.get_running_loop().time() + CLOSING_S
        while (left := closing - asyncio.get_running_loop().time()) > 0 and (tasks := self._in_flight()):
            await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        for task in self._sending.values():
            task.cancel()
        if self._sending:
            await asyncio.wait(self._sending.values(), timeout=CLOSING_S)
            self._leave(list(self._sending))
        await self.give_up_unproven()
        try:
            while self._settlements:
                await self._settle()
            if self.rq_jobs:
                await run_async(self._redis, self.return_rq_jobs())
        except RedisError as error:
            self._log.error("not_settled", jobs=len(self._settlements), reason=str(error))

    async def give_up_unproven(self) -> None:
        """Leave unproven sends, which stay in flight, to the next worker that pulls."""
        while self._unproven:
            for task in list(self._unproven):
                task.cancel()
            await asyncio.wait(self._unproven, timeout=SWEEP_S)  # a task that ignores it is cancelled again
        if self._given_up and await self._lease(self._given_up, 0):
            self._given_up.clear()

    def _in_flight(self) -> list[asyncio.Task[Any]]:
        return [*self._sending.values(), *self._unproven]

    async def _ended_or_stopped(self, stop_now: asyncio.Event) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self._tuning.grace_us / 1e6
        stopped = asyncio.create_task(stop_now.wait())
        while (tasks := self._in_flight()) and not stop_now.is_set() and (left := until - loop.time()) > 0:
            await asyncio.wait([*tasks, stopped], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if self._settlements:
                with contextlib.suppress(RedisError):  # `end` settles the rest
                    await self._settle()
        stopped.cancel()
