"""The engine: pull, send, settle, round after round, in one event loop.

The engine knows nothing of RQ's worker class: it hands jobs of other functions to `rq_jobs`. Redis's scripts decide
everything that must be atomic; the engine decides when to call them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, Final

import structlog
from redis.backoff import EqualJitterBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError, ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

from notifier.notification.job import targets_in
from notifier.queue import backlogs, calls, in_flight, own_rules
from notifier.queue.calls import Room, Worker
from notifier.queue.writes import write
from notifier.rules.policies import Policies
from notifier.rules.zones import check_zone, zone_or
from notifier.scripts.keys import job_key
from notifier.scripts.loader import Call, run_async, run_together
from notifier.scripts.records import Leased, Pulled
from notifier.scripts.rule_table import RuleTable, decoded
from notifier.store.connection import is_away, is_forbidden, is_passing, unusable
from notifier.texts import readable
from workers.loop.in_flight import Flights
from workers.loop.mending import Mender
from workers.loop.parts import Parts, RqJob
from workers.sending.sender import SUSPECT
from workers.sending.settlements import returned

SUSPENDED_S: Final = 1.0
PATIENCE_S: Final = 1.0  # after which jobs of other functions go back to their queues, if one before them still runs
UNREADABLE_S, MAX_UNREADABLE = 0.02, 8  # the back-off after a script's error, and how often it doubles at most
LONGEST_RECONNECT_S: Final = 5.0
RECONNECTS: Final = EqualJitterBackoff(cap=LONGEST_RECONNECT_S, base=0.1)  # in seconds, by the number of failures
FEW: Final = 2  # sends; so few begin before the next pull is written: they delay it by less than it would delay them
MANY: Final = 10  # failures; more make no wait longer
REFUSED_S: Final = 0.5  # between attempts to settle while Redis refuses this worker's user


class Engine:
    """One worker's loop. `run` returns after `stop`; a burst also ends when nothing is due any more."""

    def __init__(self, parts: Parts, policies: Policies, version: str = "") -> None:
        """version: that of the policies; '' if they never change."""
        self._call = partial(run_async, parts.redis)
        self._redis, self._idle, self._circuits = parts.redis, parts.idle, parts.circuits
        self._turns, self._rq_jobs, self._tuning = parts.turns, parts.rq_jobs, parts.tuning
        self._worker, self._lanes = parts.name, list(parts.lanes)
        self.flights = Flights(parts)
        self._follow(policies, self._table(policies, version), version)
        self._suspects: list[tuple[Leased, float]] = []
        self._handing_over: Call[bool] | None = None  # goes with the next pull
        self.look_at_rates: Callable[[], Awaitable[None]] | None = None  # takes up the published rates
        self.rates = b""  # the published version that this engine saw last
        self._most = sys.maxsize  # `max_jobs` of `run`
        self._stopping = asyncio.Event()
        self._may_look = True  # False while another idle worker leads, which pulls
        self._stop_now = asyncio.Event()
        self._outage = self._unreadable = 0
        self._all_back_at = 0.0  # when the other workers too have come back from the last outage
        self.is_away = False  # Redis does not answer; a shutdown then makes no call, as each may last a whole timeout
        self.mender = Mender(parts.redis, parts.name, list(parts.lanes))
        self._is_full = False
        self._due_at: float | None = None
        self._looked_at: float | None = None
        self._redis_ahead_us = 0.0  # Redis's clock less the loop's clock
        self._log = structlog.get_logger("notifier.worker").bind(worker=parts.name)
        self.suspended_us = 0  # when the worker was suspended, by Redis's clock; 0 if it is not

    @property
    def looked_us(self) -> int | None:
        """When this engine last looked for work, in µs by Redis's clock; None before Redis's first answer."""
        return None if self._looked_at is None else round(self._looked_at * 1e6 + self._redis_ahead_us)

    async def take_up(self, policies: Policies, version: str) -> None:
        """Publish which users have rules of their own, then follow the rules, also if Redis does not answer."""
        rules = self._table(policies, version)
        with contextlib.suppress(RedisError):
            await own_rules.publish(self._redis, rules, self._worker)
        self._follow(policies, rules, version)

    def _table(self, policies: Policies, version: str) -> RuleTable:
        lead_us, partitions = self._tuning.lease_us, self._tuning.partitions
        return RuleTable(policies, self._lanes, lead_us=lead_us, version=version, partitions=partitions)

    def _follow(self, policies: Policies, rules: RuleTable, version: str) -> None:
        """Use these rules from the next pull on. version: theirs in Redis; '' if they never change."""
        self._rq_jobs.version = version
        self._rules = rules
        self._zone = policies.zone
        self._knows = policies.knows
        self.flights.use(policies, self._rules)

    def stop(self) -> None:
        """Pull no more, and finish what is in flight within the grace time."""
        self._stopping.set()
        self._idle.wake.set()

    def stop_now(self) -> None:
        """End the grace time at once, after `stop`."""
        self._stop_now.set()

    async def run(self, *, burst: bool = False, max_jobs: int | None = None, max_idle_s: float | None = None) -> None:
        """Work until stopped. burst: return when nothing is due; max_jobs and max_idle_s bound it as in RQ."""
        loop = asyncio.get_running_loop()
        last_worked = loop.time()
        begun, refused = False, None
        self._most = sys.maxsize if max_jobs is None else max_jobs
        while not self._stopping.is_set():
            try:
                if not begun:
                    await self.mender.take_over()
                    await self._circuits.begin()
                    begun = True
                worked = await self._round(wait=not burst or self.flights.hopeful)
                self._note_reachable()
            except (RedisConnectionError, RedisTimeoutError, ResponseError) as error:
                if is_forbidden(error):
                    refused = error
                    await self._finish(error)
                    break
                await self._wait_for_redis(error)
                continue
            if worked or self.flights.busy or self.flights.hopeful or self._awaits_turn:
                last_worked = loop.time()
            elif burst or (max_idle_s is not None and loop.time() - last_worked >= max_idle_s):
                break
            if self.flights.ended >= self._most:
                break
        await self._end(refused)

    async def _end(self, refused: RedisError | None) -> None:
        if not self.is_away:
            with contextlib.suppress(RedisError):
                await self._hand_over(self._idle.hand_over())  # first, as the sends in flight may take long
        await self.flights.end([returned(leased) for leased, _ in self._suspects], self._stop_now)
        if refused is not None:
            await self.mender.mark()
            raise unusable(refused) from refused

    async def _round(self, *, wait: bool) -> bool:
        """Settle and pull once. Returns whether anything moved; if nothing did, waits for something to do.

        wait: wait even if nothing is in flight; a burst ends then.
        """
        self._note_look()
        await self.flights.settle_returned()
        moved = self._may_look and await self._look()
        if self._suspects or self.flights.rq_jobs:
            await self._hand_over(self._idle.hand_over())  # even if it does not lead: it may have been called to lead
        elif not moved:
            await self._hand_over()  # no pull follows at once to take the call along
        if self._suspects:
            await self._try_suspects()
            moved = True
        if self.flights.rq_jobs:
            await self._run_rq_jobs()
            moved = True
        if not moved and (wait or self.flights.busy or self._awaits_turn):
            await self._wait()
        return moved

    async def _look(self) -> bool:
        """Settle the sends that ended, and pull, in one round trip. Returns whether anything moved."""
        if not (room := self._room()):
            await self.flights.all_begun.wait()  # until a send begins, it reserves room on every route
            room = self._room()
        self._is_full = not room
        settling = await self.flights.settling()
        before = [call for call in (self._handing_over, settling) if call is not None]
        self._handing_over = None
        if not room:
            _raise_first(await run_together(self._redis, before))
            return settling is not None
        rooms = self._turns.rooms(self.flights, room)
        with self._turns.taking(self.flights, 0 if self._outage else room):
            return await self._take(room, rooms, before) or settling is not None

    async def _hand_over(self, call: Call[bool] | None = None) -> None:
        """Wake an idle worker: by this call, else by the one that waits for the next pull."""
        call, self._handing_over = call or self._handing_over, None
        if call is not None:
            await self._call(call)

    async def _take(self, room: int, rooms: dict[str, int], before: Sequence[Call[Any]]) -> bool:
        """Make the calls of `before`, then pull, in one round trip."""
        called, self._idle.called = self._idle.called, b""
        asked_at = asyncio.get_running_loop().time()
        pull = calls.pull(self._caller(), Room(room, rooms), self._rules)
        *others, pulled = await run_together(self._redis, [*before, pull])
        if not isinstance(pulled, Exception):  # its sends begin even if another call failed
            self._take_up(pulled, asked_at)
            if pulled.leased and not self.flights.unbegun:
                await asyncio.sleep(0)  # the first step of the few that have begun
        _raise_first([*others, pulled])
        if pulled.rates is not None:
            if self.look_at_rates is not None:
                await self.look_at_rates()
            self.rates = pulled.rates
            return True
        rooms |= pulled.rooms
        self._turns.lack(self.flights, (route for route, left in rooms.items() if left <= 0))
        is_full = len(pulled.leased) >= room or (pulled.taken > 0 and pulled.queued > 0)
        lacks_room, met = not all(rooms.values()), pulled.leased or pulled.taken or pulled.idle
        if is_full or (lacks_room and met):
            # More is due than this worker can take, in all or by one route: an idle worker should pull as well.
            self._handing_over = self._idle.hand_over()
        elif lacks_room and (call := self._idle.pass_on(called)):
            self._handing_over = call
        if pulled.unread:
            await self._call(
                backlogs.steer([(job.job_id, self._rq_jobs.read(job, self._knows)) for job in pulled.unread])
            )
        asks = pulled.asked or pulled.chosen or pulled.unpublished
        await self._tell(pulled)
        return bool(pulled.leased or pulled.taken or pulled.unread or pulled.orphans or asks)

    async def _tell(self, pulled: Pulled) -> None:
        """Write to Redis the rules and zones of users that *pull* asked for."""
        if pulled.unpublished:
            await own_rules.publish(self._redis, self._rules, self._worker)
        for job_id, _, zone in pulled.asked:
            if zone:
                await self._tell_zone(zone, job_id, pulled.now_us)
        await own_rules.write_down(self._redis, self._rules, pulled.chosen)
        for user, text in pulled.chosen:
            if why_not := decoded(text).unknown_zone:
                self._log.warning("unknown_zone", user=user, reason=readable(why_not), followed=self._zone)
        # The scripts cannot read the targets of plain producers' jobs.
        if targets := {job_id: targets_in(data) for job_id, data, zone in pulled.asked if not zone}:
            await self._call(backlogs.aim(targets))

    def _take_up(self, pulled: Pulled, asked_at: float) -> None:
        """Note the reply of a pull, and begin the sends that it leased."""
        # Leases and expiries are counted from before the call, so that they end here no later than in Redis.
        self._redis_ahead_us = pulled.now_us - asked_at * 1e6
        now = asyncio.get_running_loop().time()
        if self._outage or self._looked_at is None:  # one that starts knows of no outage
            # Other workers may wait before they connect again, and then settle what was in flight with them.
            self._all_back_at = now + LONGEST_RECONNECT_S
        self._note_look()
        self._note_suspended(pulled)
        self._circuits.use(pulled.shut)
        self.flights.adopt(pulled.orphans, self._all_back_at - now)
        left = self._turns.left
        few = len(pulled.leased) <= FEW and not self.flights.unbegun  # earlier leases begin first
        begin = self.flights.begin if few else self.flights.begin_soon
        for leased in pulled.leased:
            due_at = asked_at if leased.since_us is None else (leased.since_us - self._redis_ahead_us) / 1e6
            if leased.crashes == SUSPECT:
                self._suspects.append((leased, asked_at))
            elif left > 0:
                begin(leased, asked_at, due_at)
                left -= 1
            else:
                self.flights.give_back(leased)
        self._due_at = None if pulled.next_us is None else asked_at + (pulled.next_us - pulled.now_us) / 1e6
        self.flights.rq_jobs += [RqJob(job_id, permit) for job_id, permit in pulled.rq_jobs]

    @property
    def _awaits_turn(self) -> bool:
        return self._is_full and not self._circuits.away_s()

    def _room(self) -> int:
        """How many more may be taken now; see `Turns.room`."""
        return 0 if self._circuits.away_s() else min(self._turns.room(self.flights), self.flights.left(self._most))

    def _caller(self) -> Worker:
        return Worker(
            name=self._worker,
            lanes=self._lanes,
            lease_us=self._tuning.lease_us,
            claimant=self.flights.claimant,
            keep=self._tuning.keep,
            leads=self._idle.leads,
            rates=self.rates,
        )

    async def _tell_zone(self, name: str, job_id: str, now_us: int) -> None:
        """Write a zone's offsets for the scripts. A job that names an unknown zone follows the configured one."""
        try:
            check_zone(name)
        except ValueError as error:
            self._log.warning("unknown_zone", reason=readable(str(error)), followed=self._zone)
            await self._redis.hdel(job_key(job_id), "push_zone")
        else:
            await self._call(write("HSET", self._rules.zones, name, zone_or(name, self._zone, now_us).encode()))

    async def _try_suspects(self) -> None:
        """Send the jobs on which workers died one at a time: if this worker dies too, the job under way is to blame."""
        while self._suspects and not self._stopping.is_set():
            self._note_look()
            await self.flights.drain()
            leased, leased_at = self._suspects[0]
            mine = await self._call(in_flight.begin(leased.job_id, leased.permit))
            del self._suspects[0]  # not earlier: if the call fails, it is made again
            if mine:
                self.flights.begin(leased, leased_at)
        await self.flights.drain()

    async def _run_rq_jobs(self) -> None:
        # RQ's own path blocks the event loop, as it blocks every RQ worker; so nothing is in flight meanwhile.
        began = asyncio.get_running_loop().time()
        await self.flights.drain()
        while self.flights.rq_jobs and not self._stopping.is_set() and self.flights.left(self._most):
            settlement = self._rq_jobs.inspect(self.flights.rq_jobs[0])
            mine = await self.flights.settle_rq_job(settlement)
            del self.flights.rq_jobs[0]
            if settlement.state != "handed_to_rq":
                continue
            if not mine:
                self._rq_jobs.drop(settlement.job_id)
                continue
            await self.flights.give_up_unproven()
            # This job may outlast the leases of those behind it: so they go back, for a free worker to take.
            leased_s = asyncio.get_running_loop().time() - began
            patience_s = min(PATIENCE_S, self._tuning.lease_us / 2e6 - leased_s)
            self.flights.run_by_rq += 1
            if self._rq_jobs.run(settlement.job_id, self.flights.return_rq_jobs(), patience_s):
                self.flights.rq_jobs.clear()

    async def _wait(self) -> None:
        wake, follows, self._may_look = self._idle.wake, not self._may_look, True
        away_s = self._circuits.away_s()
        if self._is_full and (away_s or self._turns.is_full):
            idle = self._idle  # another worker should pull meanwhile
            await self._hand_over(idle.hand_over() if idle.leads else idle.pass_on(idle.called))
        if self.suspended_us or self._is_full:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(wake.wait(), min(away_s or SUSPENDED_S, SUSPENDED_S))
            wake.clear()
            return
        due_in = None if self._due_at is None else self._due_at - asyncio.get_running_loop().time()
        if follows or due_in is None or due_in > 0:
            yields = self._idle.leads and not wake.is_set() and self._circuits.was_in_vain()
            self._idle.in_trouble = self._circuits.in_trouble
            self._may_look = await self._idle.wait(due_in, yields=yields)

    async def _wait_for_redis(self, error: RedisError) -> None:
        if isinstance(error, ResponseError) and not is_passing(error):
            await self.mender.mend(error)
            self._unreadable = min(self._unreadable + 1, MAX_UNREADABLE)
            await asyncio.sleep(UNREADABLE_S * 2**self._unreadable)
            return
        self.flights.claim_anew()
        self._outage += 1
        wait = RECONNECTS.compute(min(self._outage, MANY))
        if self._outage == 1:
            self._log.warning("limiter_unreachable", reason=str(unusable(error)))
        self.is_away = is_away(error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), wait)

    async def _finish(self, refused: RedisError) -> None:
        """Try to settle what is in flight within the grace time: Redis may grant the missing permission again."""
        if self.flights.busy:
            self._log.warning("limiter_unreachable", reason=str(unusable(refused)))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._tuning.grace_us / 1e6):
                while self.flights.busy and not self._stop_now.is_set():
                    with contextlib.suppress(RedisError):
                        await self.flights.drain()
                    await asyncio.sleep(REFUSED_S)
        self.stop_now()

    def _note_look(self) -> None:
        if self._redis_ahead_us:
            self._looked_at = asyncio.get_running_loop().time()

    def _note_reachable(self) -> None:
        if self._outage:
            self._log.info("limiter_reachable")
        self._outage = self._unreadable = 0
        self.is_away = False

    def _note_suspended(self, pulled: Pulled) -> None:
        if pulled.suspended != bool(self.suspended_us):
            self._log.info("suspended" if pulled.suspended else "resumed")
        self.suspended_us = (self.suspended_us or pulled.now_us) if pulled.suspended else 0


def _raise_first(answers: Sequence[Any]) -> None:
    for answer in answers:
        if isinstance(answer, Exception):
            raise answer
