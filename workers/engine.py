"""The engine: pull, admit, send, settle, round after round, in one event loop.

It knows nothing of RQ's worker class: what it does not handle itself, jobs of other functions, it hands to
`stock`. Redis's scripts decide everything that must be atomic; the engine decides when to call them.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from notifier.limiter import lines
from notifier.limiter.lines import Leased, RuleTable, Settlement, State
from notifier.limiter.scripts import Call, run_async
from notifier.policy import Policies
from workers.sender import SUSPECT, NotOursError, Sender, broken_off, failed, returned
from workers.watch import Watch

MARGIN_S: Final = 0.5  # between the last moment of an answer and the end of the lease
SUSPENDED_S: Final = 1.0
CLOSING_S: Final = 1.0  # for the sends to answer once their providers were closed
RECONNECT_S: Final = (0.1, 5.0)
# Answers of a Redis that is there but cannot write now: out of memory, failing over, unable to persist.
PASSING: Final = ("OOM", "READONLY", "MISCONF", "NOREPLICAS", "MASTERDOWN", "TRYAGAIN")


class Stock(Protocol):
    """RQ's own path, for the jobs that are not notifications of ours."""

    def inspect(self, foreign: Foreign) -> Settlement:
        """What to do with it: 'held' to have it run, 'line' for a notification that lacked its meta, or 'failed'."""
        ...

    def run(self, job_id: str) -> None:
        """Run it as RQ does; blocks until it has ended."""
        ...

    def drop(self, job_id: str) -> None:
        """Forget an inspected job that another worker has taken over."""
        ...


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


class Engine:
    """One worker's work. `run` returns after `stop`, or in burst when nothing is due any more."""

    def __init__(
        self,
        *,
        redis: Any,
        watch: Watch,
        worker: str,
        lanes: Sequence[str],
        policies: Policies,
        sender: Sender,
        stock: Stock,
        tuning: Tuning,
    ) -> None:
        self._redis = redis
        self._watch = watch
        self._worker = worker
        self._lanes = list(lanes)
        self._policies = policies
        self._rules = RuleTable(policies, lanes)
        self._sender = sender
        self._stock = stock
        self._tuning = tuning
        self._sending: dict[asyncio.Task[Settlement], Leased] = {}
        self._settlements: list[Settlement] = []
        self._foreign: list[Foreign] = []
        self._suspects: list[tuple[Leased, float]] = []
        self._stopping = False
        self._hurry = asyncio.Event()
        self._outage = 0
        self._due_at: float | None = None
        self._log = structlog.get_logger("notifier.worker").bind(worker=worker)
        self.delivered = 0
        self.failed = 0
        self.suspended = False

    @property
    def busy(self) -> bool:
        """Whether anything is in flight."""
        return bool(self._sending or self._settlements)

    def use(self, policies: Policies) -> None:
        """Follow other rules from the next look on."""
        self._policies = policies
        self._rules = RuleTable(policies, self._lanes)

    def stop(self) -> None:
        """Take nothing more, and finish what is in flight within the grace time."""
        self._stopping = True
        self._watch.wake.set()

    def hurry(self) -> None:
        """Wait no longer for what is in flight, once stopped."""
        self._hurry.set()

    async def run(self, *, burst: bool = False, most_jobs: int | None = None, most_idle_s: float | None = None) -> None:
        """Work until stopped. burst: return when nothing is due; most_jobs and most_idle_s bound it as in RQ."""
        loop = asyncio.get_running_loop()
        last_worked = loop.time()
        while not self._stopping:
            try:
                worked = await self._round(wait=not burst)
                self._outage = 0
            except (RedisConnectionError, RedisTimeoutError, ResponseError) as error:
                await self._wait_for_redis(error)
                continue
            if worked or self.busy:
                last_worked = loop.time()
            elif burst or (most_idle_s is not None and loop.time() - last_worked >= most_idle_s):
                break
            if most_jobs is not None and self.delivered + self.failed >= most_jobs:
                break
        await self._finish()

    async def _round(self, *, wait: bool) -> bool:
        """Look, take, settle, once. Returns whether anything moved; waits for something to do where nothing did.

        wait: also for what is not in flight yet.
        """
        settling = self._begin_to_settle()
        try:
            moved = await self._take()
        finally:
            if settling is not None:
                await settling
        moved = moved or settling is not None
        if self._suspects:
            await self._try_suspects()
            moved = True
        if self._foreign:
            await self._run_foreign()
            moved = True
        if not moved and (wait or self.busy):
            await self._wait()
        return moved

    async def _take(self) -> bool:
        room = min(self._tuning.in_flight - len(self._sending), self._tuning.batch)
        if room <= 0:
            return False
        asked_at = asyncio.get_running_loop().time()
        pulled = await self._call(
            lines.pull(
                most=self._tuning.batch,
                lease_us=self._tuning.lease_us,
                on_watch=self._watch.kept,
                lanes=self._lanes,
            )
        )
        self._note_suspended(pulled.suspended)
        self._due_at = None if pulled.next_us is None else asked_at + (pulled.next_us - pulled.now_us) / 1e6
        self._foreign += [Foreign(job_id, permit) for job_id, permit in pulled.stock]
        if not pulled.users:
            return bool(pulled.taken)
        if len(pulled.users) >= self._tuning.batch or pulled.taken >= self._tuning.batch:
            # More than this worker takes at once: somebody idle shall look as well.
            await self._watch.call()
        await self._admit(pulled.users, room)
        return True

    async def _admit(self, users: Sequence[tuple[str, str]], room: int) -> None:
        loop = asyncio.get_running_loop()
        # The lease is counted from before the call, so that it ends here no later than it ends in Redis.
        send_by = loop.time() + (self._tuning.lease_us - self._tuning.timeout_us) / 1e6 - MARGIN_S
        admitted = await self._call(
            lines.admit(
                users, self._rules, most=room, lease_us=self._tuning.lease_us, worker=self._worker, lanes=self._lanes
            )
        )
        for leased in admitted.leased:
            if leased.crashes == SUSPECT:
                self._suspects.append((leased, send_by))
            else:
                self._send(leased, send_by)
        for held in admitted.waiting:
            self._log.debug(
                "deferred",
                user=held.user,
                job_id=held.job_id,
                category=held.category,
                time_left_ms=-(-held.time_left_us // 1000),
            )

    def _send(self, leased: Leased, send_by: float) -> None:
        category = self._policies.category(leased.category)
        task = asyncio.get_running_loop().create_task(self._sender.send(leased, category, send_by))
        self._sending[task] = leased
        task.add_done_callback(self._sent)

    async def _try_suspects(self) -> None:
        """Send those with which workers died, each alone: if this worker dies too, that one is to blame."""
        while self._suspects and not self._stopping:
            await self._drain()
            leased, send_by = self._suspects.pop(0)
            if await self._call(lines.begin(leased.job_id, leased.permit)):
                self._send(leased, send_by)
        await self._drain()

    def _sent(self, task: asyncio.Task[Settlement]) -> None:
        leased = self._sending.pop(task)
        if task.cancelled():
            self._settlements.append(broken_off(leased))
        elif (error := task.exception()) is None:
            self._settlements.append(task.result())
        elif isinstance(error, NotOursError):
            self._foreign.append(Foreign(leased.job_id, leased.permit, leased.user, leased.category))
        else:
            self._log.error("sender_broke", job_id=leased.job_id, exc_info=error)
            self._settlements.append(failed(leased, f"the worker's own fault: {type(error).__name__}"))
        self._watch.wake.set()

    def _begin_to_settle(self) -> asyncio.Task[None] | None:
        # Beside the next look: Redis has the one to do while this process has the other.
        return asyncio.create_task(self._settle()) if self._settlements else None

    async def _settle(self) -> None:
        batch = self._settlements[: self._tuning.batch]
        await self._settle_all(batch)
        del self._settlements[: len(batch)]

    async def _settle_all(self, batch: Sequence[Settlement]) -> list[bool]:
        mine: list[bool] = await self._call(
            lines.settle(
                batch,
                self._rules,
                worker=self._worker,
                keep_failed_us=self._tuning.keep_failed_us,
                keep_delivered_us=self._tuning.keep_delivered_us,
            )
        )
        for settlement, settled in zip(batch, mine, strict=True):
            if not settled:
                self._log.warning("lease_lost", user=settlement.user, job_id=settlement.job_id)
            elif settlement.state == "delivered":
                self.delivered += 1
            elif settlement.state == "failed":
                self.failed += 1
        return mine

    async def _run_foreign(self) -> None:
        # RQ's own path blocks the event loop, as it blocks every RQ worker; so nothing is in flight meanwhile.
        await self._drain()
        while self._foreign and not self._stopping:
            settlement = self._stock.inspect(self._foreign[0])
            mine = await self._settle_all([settlement])
            del self._foreign[0]
            if settlement.state != "held":
                continue
            if not mine[0]:
                self._stock.drop(settlement.job_id)
                continue
            with contextlib.suppress(RedisError):
                # It may outlast our leases on those behind it, and our watch: whoever is free takes them over.
                await self._give_back_foreign()
                await self._watch.call()
            self._stock.run(settlement.job_id)

    async def _give_back_foreign(self) -> None:
        if self._foreign:
            # Each goes to the head of its queue, so the last goes first.
            await self._settle_all([foreign.settlement("queue") for foreign in reversed(self._foreign)])
            self._foreign.clear()

    async def _drain(self) -> None:
        while self.busy:
            if self._settlements:
                await self._settle()
            else:
                await asyncio.wait(self._sending, return_when=asyncio.FIRST_COMPLETED)

    async def _wait(self) -> None:
        wake = self._watch.wake
        if self.suspended or len(self._sending) >= self._tuning.in_flight:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), SUSPENDED_S)
            wake.clear()
            return
        due_in = None if self._due_at is None else self._due_at - asyncio.get_running_loop().time()
        if due_in is None or due_in > 0:
            await self._watch.wait(due_in)

    async def _finish(self) -> None:
        self._settlements += [returned(leased) for leased, _ in self._suspects]
        await self._ended_or_hurry(asyncio.get_running_loop().time() + self._tuning.grace_us / 1e6)
        await self._sender.close()
        if self._sending:
            await asyncio.wait(self._sending, timeout=CLOSING_S)
        for task in list(self._sending):
            task.cancel()
        if self._sending:
            await asyncio.wait(self._sending)
        try:
            while self._settlements:
                await self._settle()
            await self._give_back_foreign()
        except RedisError as error:
            self._log.error("not_settled", jobs=len(self._settlements), reason=str(error))

    async def _ended_or_hurry(self, until: float) -> None:
        loop = asyncio.get_running_loop()
        hurry = asyncio.create_task(self._hurry.wait())
        while self._sending and not self._hurry.is_set() and (left := until - loop.time()) > 0:
            await asyncio.wait([*self._sending, hurry], timeout=left, return_when=asyncio.FIRST_COMPLETED)
            if self._settlements:
                with contextlib.suppress(RedisError):  # what could not be settled is tried once more at the end
                    await self._settle()
        hurry.cancel()

    async def _wait_for_redis(self, error: RedisError) -> None:
        if isinstance(error, ResponseError) and not any(word in str(error) for word in PASSING):
            raise error
        self._outage += 1
        first, most = RECONNECT_S
        wait = random.uniform(0.5, 1) * min(most, first * 2 ** min(self._outage, 10))  # noqa: S311 - jitter
        if self._outage == 1:
            self._log.warning("limiter_unreachable", reason=str(error))
        await asyncio.sleep(wait)

    def _note_suspended(self, suspended: bool) -> None:
        if suspended != self.suspended:
            self._log.info("suspended" if suspended else "resumed")
        self.suspended = suspended

    async def _call(self, call: Call[Any]) -> Any:
        return await run_async(self._redis, call)
