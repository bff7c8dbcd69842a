"""Sender: one leased job in, one settlement out. Decides what the providers' answers mean for the notification."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import structlog

from notifier.errors import InvalidNotificationError
from notifier.notification import Notification, route
from notifier.notification.counted import counted
from notifier.notification.job import FUNCTION, read_notification
from notifier.notification.json_values import fields_of
from notifier.notification.notification import at_service, platform_of, route_of_all
from notifier.notification.rq_call import read_call
from notifier.providers.answers import LONGEST_WAIT_US, MINUTE_US
from notifier.providers.contract import Answer, Dispatch, Outcome, Provider
from notifier.queue.calls import DeadToken, Settlement, State
from notifier.queue.history import Handed, Reply
from notifier.rules.category import Category
from notifier.scripts.records import Leased
from notifier.texts import mask, readable
from workers.sending.capacity import LATE, Capacity
from workers.sending.circuits import Circuits
from workers.sending.deadlines import Deadlines
from workers.sending.numbers import Numbers
from workers.sending.proofs import Silence, Unproven
from workers.sending.settlements import FREE, delivered, expired, failed, log_fields, settled, unsent

CLOSING_S: Final = 3.0
MAX_CRASHES: Final = 3
SUSPECT: Final = MAX_CRASHES - 1  # a job on which this many workers died is sent alone
FINAL: Final = frozenset({Outcome.DELIVERED, Outcome.REJECTED, Outcome.DEAD_TOKEN})
REACHED: Final = frozenset({Outcome.DELIVERED, Outcome.UNKNOWN})
REFUSED: Final = frozenset({Outcome.REJECTED.value, Outcome.DEAD_TOKEN.value, Outcome.REFUSED.value})
NOT_CONFIGURED: Final = "the notification names an app that this worker has not: add it to every worker's providers"
OR_NONE: Final = (int, type(None))
# The types of those fields of an Answer that go to the scripts and the log.
ANSWERED: Final[Mapping[str, type | tuple[type, ...]]] = {
    "reason": str,
    "help": str,
    "seen": str,
    "status": OR_NONE,
    "retry_after_us": OR_NONE,
    "gone_at_us": OR_NONE,
}
SHUT: Final = Answer(Outcome.UNSENT, reason="Shut")  # this route's circuit is open; another route of the job works


# An answer, whether an unsent message waits for its route, and the history's reply if a provider was asked.
Asked = tuple[Answer, bool, Reply | None]


class PoisonError(InvalidNotificationError):
    """Several workers died while sending the job, so no other tries it."""


class NotOursError(Exception):
    """The job names another function, so RQ runs it."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential, with jitter: from `first_us` doubled each attempt up to `max_us`, in microseconds."""

    first_us: int
    max_us: int

    def wait_us(self, attempt: int, asked_us: int = 0) -> int:
        """How long to wait after this attempt, counted from 1: never less than the provider asked for.

        A longer wait is spread over a longer time: a thousand messages told "a minute" must not come back together.
        """
        first_us = max(self.first_us, asked_us // 4)
        doubled = min(max(attempt - 1, 0), 32)  # any program may have written the count
        ceiling = min(self.max_us, first_us * 2**doubled)
        return asked_us + random.randint(ceiling // 2, ceiling)  # noqa: S311 - spreads retries, keeps no secret


class Sender:
    """Hands notifications to the providers of their routes, and every answer to the circuits.

    answer_s: how long after `send_by` an answer may come. A provider has timeouts of its own; this is for one that
        does not keep them.
    lease_s: how long after its lease a notification may be handed over; never after its expiry.
    capacity: learns from how long the answers take.
    engines: how many engines share this sender; the last one's `close` ends the sends under way.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        backoff: Backoff,
        *,
        answer_s: float = 10.0,
        lease_s: float = 10.0,
        capacity: Capacity | None = None,
    ) -> None:
        self.numbers = Numbers()
        self.engines = 1
        self._providers = dict(providers)
        self._retiring: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._answer_s = answer_s
        self._lease_s = lease_s
        self._deadlines = Deadlines()
        self._backoff = backoff
        self._capacity = capacity or Capacity({})
        self._helped: set[tuple[str, int | None, str]] = set()
        self._log = structlog.get_logger("notifier.worker").bind()
        self._tells_all = self._log.is_enabled_for(logging.DEBUG)

    async def send(
        self, leased: Leased, category: Category, leased_at: float, circuits: Circuits
    ) -> Settlement | Unproven:
        """Send a leased job. leased_at: by the loop's clock. Raises NotOursError for another function's job."""
        log = partial(self._bound, leased)  # most sends log nothing, and to bind a logger costs as much as a send
        try:
            check_crashes(leased.crashes)
            notification = counted(decode(leased), category, leased.stands_for)
            check_expiry(notification, leased)
        except InvalidNotificationError as error:
            circuits.not_sent()
            return self._malformed(leased, error)
        app, devices = notification.app or category.app, notification.devices
        routes = [device.platform if app is None else route(device.platform, app) for device in devices]
        by = self._label(routes)
        answered = _read_answers(leased.answered) if leased.answered else {}
        began = asyncio.get_running_loop().time()
        expires_at = math.inf if leased.left_us is None else leased_at + leased.left_us / 1e6
        if leased.dropped or began >= expires_at:
            return unsent(leased, answered, log)._replace(route=by)
        left_us = None if leased.left_us is None else round((expires_at - began) * 1e6)
        send_by = min(leased_at + self._lease_s, expires_at)
        waiting = [i for i in range(len(routes)) if str(i) not in answered] if answered else range(len(routes))
        dispatches = {i: Dispatch(leased.job_id, devices[i], notification, left_us, send_by) for i in waiting}
        sends = [self._one(dispatch, routes[i], leased, began, circuits) for i, dispatch in dispatches.items()]
        found = [await sends[0]] if len(sends) == 1 else await asyncio.gather(*sends)  # gather costs one more task
        handed = Handed(began, [reply for _, _, reply in found if reply is not None])
        if self._tells_all:
            log().debug("sent", outcomes=[answer.outcome.value for answer, *_ in found])
        troubled = [True for answer, _, _ in found if answer.outcome is not Outcome.DELIVERED]
        if not (troubled or answered):  # nearly always
            return delivered(leased, reached=True, route=by, handed=handed)
        answers = {i: answer for i, (answer, *_) in zip(waiting, found, strict=True)}
        alone = any(not waits and answer.outcome in FREE for answer, waits, _ in found)
        settlement = self._settlement(leased, category, notification, answered, answers, log, alone=alone)
        if settlement.word == "returned" and asyncio.get_running_loop().time() >= expires_at:
            circuits.not_sent()
            settlement = expired(leased, answered, log, reached=settlement.reached)
        settlement = settlement._replace(
            gone=_dead_tokens(notification, app, answers), route=by, handed=handed if handed.replies else None
        )
        silent = {i: a.passed for i, a in answers.items() if a.outcome is Outcome.UNKNOWN and a.status is None}
        silences = self._silences(notification, app, silent)
        return Unproven(settlement, silences, json.dumps(answered)) if silences else settlement

    def _malformed(self, leased: Leased, error: InvalidNotificationError) -> Settlement:
        poison, log = isinstance(error, PoisonError), self._bound(leased)
        log.error("poison", crashes=leased.crashes) if poison else log.warning("malformed", reason=readable(str(error)))
        was_taken = poison and Outcome.DELIVERED.value in _read_answers(leased.answered).values()
        settlement = delivered(leased, reached=False) if was_taken else failed(leased, f"malformed: {error}")
        return settlement._replace(poison=poison)

    def _label(self, routes: Sequence[str]) -> str:
        """The routes of all devices, for the numbers. An unknown app is not named, as anybody may invent one."""
        if len(routes) == 1 and routes[0] in self._providers:  # nearly always
            return routes[0]
        return route_of_all(by if by in self._providers else f"{platform_of(by)}/unknown" for by in routes)

    def silences(self, orphan: Leased, category: Category) -> tuple[Silence, ...]:
        """The devices to which a dead worker may have sent this; a route without a provider here cannot be probed."""
        try:
            notification = decode(orphan)
        except (InvalidNotificationError, NotOursError):
            return ()
        answered = _read_answers(orphan.answered)
        # Also devices given up as unknown: a provider may still have to read their sends.
        places = range(len(notification.devices))
        silent = {i: None for i in places if answered.get(str(i), "unknown") == "unknown"}
        return self._silences(notification, notification.app or category.app, silent)

    def _silences(
        self, notification: Notification, app: str | None, silent: Mapping[int, asyncio.Future[bool] | None]
    ) -> tuple[Silence, ...]:
        """silent: the devices' places, and `Silence.passed` of each."""
        return tuple(
            Silence(provider, device, passed)
            for device, passed in ((notification.devices[i], passed) for i, passed in silent.items())
            if (provider := self._providers.get(route(device.platform, app)))
        )

    def replace(self, providers: Mapping[str, Provider]) -> None:
        """Send by these providers from now on. The old ones are closed once none of their sends can be under way."""
        old = {by: self._providers[by] for by in providers}
        self._providers.update(providers)
        task = asyncio.create_task(self._retire(old))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _retire(self, providers: Mapping[str, Provider]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._lease_s + self._answer_s):
                await self._ended.wait()
        await self._close(providers)

    async def close(self) -> None:
        """Close the providers: sends under way end as UNKNOWN or UNSENT. One that does not close is abandoned."""
        self.engines -= 1
        if self.engines > 0:
            return
        self._ended.set()
        await asyncio.gather(*self._retiring, self._close(self._providers))

    async def _close(self, providers: Mapping[str, Provider]) -> None:
        closing = {asyncio.create_task(provider.close()): by for by, provider in providers.items()}
        if not closing:
            return
        done, late = await asyncio.wait(closing, timeout=CLOSING_S)
        for task in late:
            task.cancel()
            self._log.error("provider_broke", route=closing[task], reason="it does not close")
        for task in done:
            if not task.cancelled() and (error := task.exception()) is not None:
                self._log.error("provider_broke", route=closing[task], exc_info=error)

    def _bound(self, leased: Leased) -> Any:
        return self._log.bind(**log_fields(leased))

    async def _one(self, dispatch: Dispatch, by: str, leased: Leased, began: float, circuits: Circuits) -> Asked:
        host = dispatch.device.host
        circuit = at_service(by, host) if host else by
        if circuit in leased.shut:
            return SHUT, True, None
        provider = self._providers.get(by)
        limit = self._capacity.begin(circuit, began)
        task = self._deadlines.begin(dispatch.send_by + self._answer_s)
        answer = None
        try:
            answer = _no_provider(by, dispatch) if provider is None else _checked(await provider.send(dispatch))
        except asyncio.CancelledError:
            late = self._deadlines.has_passed(task)
            if task.cancelling() and not late:
                raise
            why = "it does not answer" if late else "it cancelled the send itself"
            self._bound(leased).exception("provider_broke", route=by, reason=why)
        except Exception:  # noqa: BLE001 - whatever a driver raises
            self._bound(leased).exception("provider_broke", route=by)
        finally:
            self._deadlines.end(task)
            ended = asyncio.get_running_loop().time()
            if limit is not None:
                limit.end_with(answer, began, ended)
        took_s = ended - began
        # A provider that raises must not end the worker. The message may have left, so the permit stays spent.
        answer = answer or Answer(Outcome.UNKNOWN, reason="the provider's client broke")
        spoke = answer.status is not None or answer.outcome is Outcome.DELIVERED
        if spoke or (answer.outcome is Outcome.UNKNOWN and answer.reason in LATE):
            self.numbers.answered[by].append(took_s)  # other sends would make the provider look quick in an outage
        answer, waits = circuits.record(circuit, answer, leased.refusals, dispatch.device.token)
        if answer.help:
            self._tell_help(by, dispatch, answer)
        return answer, waits, Reply(by, answer.status, took_s, answer.outcome, answer.reason)

    def _tell_help(self, by: str, dispatch: Dispatch, answer: Answer) -> None:
        """Log what to repair, once for each route; the routes that nobody configured count as their platform."""
        fault = (by if by in self._providers else dispatch.device.platform, answer.status, answer.help)
        if fault not in self._helped:
            self._helped.add(fault)
            self._log.error(
                "message_fault",
                route=by,
                status=answer.status,
                reason=answer.reason,
                user=dispatch.notification.user,
                job_id=dispatch.job_id,
                help=f"{answer.help}; reported once",
            )

    def _settlement(  # noqa: PLR0917 - all of one send
        self,
        leased: Leased,
        category: Category,
        notification: Notification,
        answered: dict[str, str],
        answers: Mapping[int, Answer],
        log: Callable[[], Any],
        *,
        alone: bool,  # whether a device waits for a time of its own, not for its route
    ) -> Settlement:
        reached = any(answer.outcome in REACHED for answer in answers.values())
        attempt = leased.attempts + 1
        again: list[Answer] = []
        for index, answer in answers.items():
            if _is_final(answer, category, attempt):
                answered[str(index)] = answer.outcome.value
            else:
                again.append(answer)
            if answer.outcome is Outcome.DEAD_TOKEN:
                device = notification.devices[index]
                log().info("dead_token", platform=device.platform, token=mask(device.token), reason=answer.reason)
            elif answer.outcome is not Outcome.DELIVERED:
                # A free outcome says nothing about this message, and the circuit of its route has a log line.
                say = log().debug if answer.outcome in FREE else log().warning
                say(answer.outcome.value, status=answer.status, reason=answer.reason)

        if not again:
            if Outcome.DELIVERED.value in answered.values():
                return delivered(leased, reached=reached)
            word = "rejected" if REFUSED.issuperset(answered.values()) else "failed"
            reasons = "; ".join(sorted({_describe(answer) for answer in answers.values()}))
            return failed(leased, f"{reasons} (attempt {attempt} of {category.attempts})", word, reached=reached)

        so_far = json.dumps(answered) if answered else ""
        free = all(answer.outcome in FREE for answer in again)
        if free and not alone:  # back to its place: *pull* knows when the route works again
            log().debug("returned")
            fault = any(answer.outcome is Outcome.FAULT for answer in again)
            return settled(leased, "backlog", "returned", "fault" if fault else "", so_far, reached=reached)
        asked = max(answer.retry_after_us or 0 for answer in again)
        if free:
            wait_us = self._backoff.wait_us(leased.refusals + 1, asked)
            log().info("returned", time_left_ms=wait_us // 1000, attempt=attempt)
            # If one device took it, its order is lost anyway, so the rest does not hold up the jobs behind it.
            state: State = "wait" if Outcome.DELIVERED.value in answered.values() else "backlog"
            return settled(leased, state, "returned", wait_us, so_far, reached=reached)
        wait_us = self._backoff.wait_us(attempt, asked)
        log().info("retry", time_left_ms=wait_us // 1000, attempt=attempt)
        return settled(leased, "later", "retried", wait_us, so_far, reached=reached)


def _checked(answer: Any) -> Answer:
    """Raise TypeError unless it is an Answer, and bound the wait that it asks for: others write providers, too."""
    if not isinstance(answer, Answer) or not isinstance(answer.outcome, Outcome):
        raise TypeError("the provider's answer is no Answer with an Outcome")
    for name, kind in ANSWERED.items():
        if not isinstance(value := getattr(answer, name), kind):
            raise TypeError(f"the provider's answer has a {name} that is a {type(value).__name__}")
    if answer.retry_after_us is not None:
        answer.retry_after_us = min(max(answer.retry_after_us, 0), LONGEST_WAIT_US)
    return answer


def _no_provider(by: str, dispatch: Dispatch) -> Answer:
    reason = f"no provider is configured for {by}"
    if dispatch.notification.app:  # anybody may invent one
        return Answer(Outcome.REFUSED, reason=reason, retry_after_us=MINUTE_US, help=NOT_CONFIGURED)
    return Answer(Outcome.FAULT, reason=reason)


def _dead_tokens(notification: Notification, app: str | None, answers: Mapping[int, Answer]) -> tuple[DeadToken, ...]:
    return tuple(
        DeadToken(notification.devices[i], app, answer.reason, answer.gone_at_us)
        for i, answer in answers.items()
        if answer.outcome is Outcome.DEAD_TOKEN
    )


def _is_final(answer: Answer, category: Category, attempt: int) -> bool:
    """Whether a device is not tried again: its answer is final, or the category allows no further attempt."""
    if answer.outcome in FREE:
        return False
    give_up = answer.outcome is Outcome.UNKNOWN and category.on_unknown == "give_up"
    return answer.outcome in FINAL or give_up or attempt >= category.attempts


def decode(leased: Leased) -> Notification:
    """The notification of a leased job.

    Raises InvalidNotificationError if it is malformed, NotOursError if it is a job of another function.
    """
    try:
        notification = read_notification(leased.data)
    except InvalidNotificationError:
        if read_call(leased.data).function == FUNCTION:
            raise
        raise NotOursError from None
    if notification is None:
        raise NotOursError
    if notification.user != leased.user:
        raise InvalidNotificationError("user", "is not the user named in the job's meta")
    return notification


def _read_answers(written: bytes | None) -> dict[str, str]:
    """Return the final answers by the devices' places; empty if the field is not as a worker wrote it."""
    return {place: str(word) for place, word in fields_of(written).items()}


def check_expiry(notification: Notification, leased: Leased) -> None:
    """Raise InvalidNotificationError if the data has an expiry that the meta lacks: the scripts read only the meta."""
    if notification.expires_in is not None and leased.left_us is None:
        raise InvalidNotificationError("expires_in", "stands beside a meta that lacks it; write it there")


def check_crashes(crashes: int) -> None:
    """Raise PoisonError for a job on which too many workers died to try it again."""
    if crashes >= MAX_CRASHES:
        raise PoisonError("job", f"set aside as poison: {crashes} workers died while sending it")


def _describe(answer: Answer) -> str:
    return " ".join(str(part) for part in (answer.outcome.value, answer.status, answer.reason) if part)
