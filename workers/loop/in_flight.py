"""Flights: what one worker has in flight, the sends under way and the settlements that Redis has not been told yet."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
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
from workers.sending.settlements import broken_off, end_unsent, failed, is_deferred, of_whom, returned

RENEWALS: Final = 3  # in the time of a lease
AGAIN_S: Final = 0.2  # after a renewal that Redis did not take
CLOSING_S: Final = 1.0  # for the sends to answer once their providers were closed, and again once they were cancelled
SWEEP_S: Final = 0.25
# So many sweeps in a row must find a send past its time before it is left. They are counted, not timed: after a stop of
# the whole process the event loop has its turns between them, in which sends are cancelled and end.
SWEEPS: Final = 5
# A call to Redis takes so many turns of the event loop, or fewer, until it is written. What is begun behind it begins
# then: so Redis has something to do while this process is busy with the sends.
TURNS: Final = 3
Backlog: TypeAlias = tuple[str, str]  # a user, and a category
Result: TypeAlias = Settlement | Unproven


class Flight:
    """A send: what was leased, when by the loop's clock, and since when it was due, if known.

    sweeps: how many have found it past its time.
    """

    __slots__ = ("backlog", "due_at", "leased", "leased_at", "sweeps")

    def __init__(self, leased: Leased, leased_at: float, due_at: float | None) -> None:
        self.leased, self.leased_at, self.due_at = leased, leased_at, due_at
        self.backlog: Backlog = leased.user, leased.category
        self.sweeps = 0


class Flights:
    """Begins sends, gathers what became of them, and settles it in batches.

    What got no answer stays in flight, beside those that are under way, until its provider has surely read it. So does
    what was in flight with a worker that died (`adopt`).

    rq_jobs: jobs that turned out to be of another function. wake: is set whenever a send has ended. unbegun: how many
    sends have not begun yet, and are counted nowhere by their routes; all_begun: is set while there are none.
    """

    def __init__(self, parts: Parts) -> None:
        self._redis, self._worker, self._tuning = parts.redis, parts.name, parts.tuning
        self._sender, self._circuits, self._tracing = parts.sender, parts.circuits, parts.tracing
        self.wake, self._turns = parts.idle.wake, parts.turns
        self._turns.join(self)
        self.claim_anew()
        self._to_begin: list[tuple[Leased, float, float | None]] = []
        self._queued = 0  # behind others of their backlogs
        self.all_begun = asyncio.Event()
        self.all_begun.set()
        self.unbegun = 0
        self._behind: dict[Backlog, deque[Flight] | None] = {}  # of each backlog of which a send is under way
        self._returning: set[Backlog] = set()
        self._sending: dict[Flight, asyncio.Task[None]] = {}
        self._unproven: dict[asyncio.Task[None], tuple[Leased, Unproven]] = {}
        self._given_up: list[tuple[Leased, str]] = []
        self._proofs = Proofs()
        self._renewing: asyncio.Task[None] | None = None
        self._renew_now = asyncio.Event()
        self._hopeful_until = 0.0
        self._sweeping = False
        self._settlements: list[Settlement] = []
        self._numbers: Counter[str] = Counter()  # of which Redis has not been told yet
        self._log = structlog.get_logger("notifier.worker").bind(worker=parts.name)
        self.rq_jobs: list[RqJob] = []
        self.delivered = 0
        self.failed = 0
        self.run_by_rq = 0

    def claim_anew(self) -> None:
        """Go on as another claimant, see claims.lua: what a lost answer leased keeps its place until its lease ends."""
        self.claimant = f"{self._worker} {token_hex(4)}"

    def use(self, policies: Policies, rules: RuleTable) -> None:
        self._policies = policies
        self._rules = rules

    @property
    def hopeful(self) -> bool:
        """Whether a proof is to be waited for: a provider that is well gives it at once, so for a lease at the most."""
        return bool(self._unproven) and asyncio.get_running_loop().time() < self._hopeful_until

    @property
    def ended(self) -> int:
        """How many jobs have come to their end here."""
        return self.delivered + self.failed + self.run_by_rq

    def left(self, most: int) -> int:
        """How many more may be taken here, so that no more than `most` come to their end."""
        return max(0, most - self.ended - len(self) - len(self._settlements))

    @property
    def busy(self) -> bool:
        """Whether sends are under way, or to be settled."""
        return bool(self._sending or self._to_begin or self._settlements)

    def __len__(self) -> int:
        """How many sends are under way, or are to begin now."""
        return len(self._sending) + len(self._to_begin) + self._queued

    def begin_soon(self, leased: Leased, leased_at: float, due_at: float | None) -> None:
        """As `begin`, but behind the calls to Redis that are made now."""
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
        loop.call_soon(self._have_begun, len(begun))  # their tasks are first

    def _have_begun(self, n: int) -> None:
        self.unbegun -= n
        self._turns.freed()
        if not self.unbegun:
            self.all_begun.set()

    def begin(self, leased: Leased, leased_at: float, due_at: float | None = None) -> None:
        """Begin to send what was leased at that moment of the loop's clock. due_at: since when it was due, if known.

        What is behind another one of its backlog waits for the answer to that, or they could change places: if the
        provider does not take the first one for now, it goes back to its backlog, and these go back behind it.
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
        """Let it go back to its backlog, and what is leased behind it."""
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
        # No callback of the task does the rest: that takes one more turn of the loop.
        if self._sending.pop(flight, None) is not None:  # else it was left
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
            self._log.error("sender_broke", **of_whom(leased), exc_info=result)
            why = f"an error in the worker: {type(result).__name__}"
            self._settlements.append(failed(leased, why, reached=True))  # nobody knows whether it has left
        elif (unsent := end_unsent(leased, partial(self._log.bind, **of_whom(leased)))) is not None:
            self._settlements.append(unsent)
        else:
            self.rq_jobs.append(RqJob(leased.job_id, leased.permit, leased.user, leased.category))
        self._follow(flight, taken=taken)
        self.wake.set()

    def _follow(self, flight: Flight, *, taken: bool) -> None:
        """Begin what is behind this one, which was sent; or give it back, where this one was not taken for now."""
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
        """Leave what is past its lease: the sender has cancelled it, and it did not even hear that."""
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
            self._log.error("provider_broke", **of_whom(flight.leased), reason="it cannot be cancelled")
            self.adopt([flight.leased])
            self._follow(flight, taken=True)

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
                self._log.error("proof_broke", **of_whom(leased), exc_info=error)
            self._settlements.append(unproven.settlement)
        self.wake.set()

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
                await run_async(self._redis, renew(flights[n : n + size], lease_us=lease_us, claimant=self.claimant))
        except RedisError as error:
            self._log.debug("not_renewed", jobs=len(flights), reason=str(error))  # the engine says so, once
            return False
        return True

    async def settle_returned(self) -> None:
        """Settle what came back to its backlog, before anything else is asked for: that would go before it."""
        if self._returning:
            await self.all_begun.wait()
            while any(settlement.state == "backlog" for settlement in self._settlements):
                await self._settle()
            self._returning.clear()

    async def settling(self) -> Call[list[bool]] | None:
        """The call that settles what has ended; None where nothing has. Its reply is noted when it is read."""
        await self._circuits.tell()  # before messages go back to backlogs, or they come at once
        batch = self._settlements[: self._tuning.batch]
        if not batch:
            return None
        call = self._settle_call(batch, self._numbers_with(batch))

        def settled(reply: Any) -> list[bool]:
            del self._settlements[: len(batch)]
            return self._note(batch, call.decode(reply))

        return replace(call, decode=settled)

    async def _settle(self) -> None:
        if (call := await self.settling()) is not None:
            await run_async(self._redis, call)

    async def settle_rq_job(self, settlement: Settlement) -> bool:
        """Settle this; returns whether its lease was still this worker's."""
        call = self._settle_call([settlement], self._numbers_with([settlement]))
        (mine,) = self._note([settlement], await run_async(self._redis, call))
        return mine

    def _numbers_with(self, batch: Sequence[Settlement]) -> Mapping[str, int]:
        self._numbers.update(self._sender.numbers.take())
        poison = len([each for each in batch if each.poison])
        return {**self._numbers, "e|poison": poison} if poison else self._numbers

    def _note(self, batch: Sequence[Settlement], mine: list[bool]) -> list[bool]:
        self._numbers.clear()
        for settlement, settled in zip(batch, mine, strict=True):
            if not settled:
                self._log.warning("lease_lost", **of_whom(settlement))
            elif settlement.state == "delivered":
                self.delivered += 1
            elif settlement.state in {"failed", "dropped"}:
                self.failed += 1
        return mine

    def _settle_call(self, batch: Sequence[Settlement], numbers: Mapping[str, int]) -> Call[list[bool]]:
        labels = [f"{self._policies.category(each.category).name}|{each.route}" for each in batch]
        measured = Measured(labels, numbers, asyncio.get_running_loop().time())
        return calls.settle(batch, self._rules, Worker(name=self._worker, keep=self._tuning.keep), measured)

    def return_rq_jobs(self) -> Call[list[bool]]:
        """The call that puts the jobs of other functions back where they were."""
        # Each goes to the head of its queue, so the last goes first.
        return self._settle_call([rq_job.given_back() for rq_job in reversed(self.rq_jobs)], {})

    async def drain(self) -> None:
        """Wait until nothing is in flight, and all is settled."""
        while self.busy:
            if self._settlements:
                await self._settle()
            elif self._to_begin:
                await self.all_begun.wait()
            else:
                await asyncio.wait(self._sending.values(), timeout=SWEEP_S, return_when=asyncio.FIRST_COMPLETED)

    async def end(self, unbegun: Sequence[Settlement], stop_now: asyncio.Event) -> None:
        """Finish what is in flight within the grace time or until `stop_now`, settle it, and give up the rest.

        What is given up stays in flight: another worker finds it at once, and waits for the proof in this one's place.
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
        """Leave what is unproven to whoever looks next; each stays in flight meanwhile."""
        while self._unproven:
            for task in list(self._unproven):
                task.cancel()
            await asyncio.wait(self._unproven, timeout=SWEEP_S)  # cancelled again where that was not heard
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
                with contextlib.suppress(RedisError):  # what could not be settled is tried once more at the end
                    await self._settle()
        stopped.cancel()
