"""Sender: one leased job in, one settlement out. Decides what the providers' answers mean for the notification."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import structlog

from notifier.dispatch.calls import EXPIRED, DeadToken, Leased, Settlement, State
from notifier.dispatch.history import Handed, Reply
from notifier.errors import InvalidNotificationError
from notifier.notification import Notification, route
from notifier.notification.job import FUNCTION, decode_data, encode_reason
from notifier.notification.notification import at_service
from notifier.providers.answers import MINUTE_US
from notifier.providers.contract import Answer, Dispatch, Outcome, Provider
from notifier.rules.policy import Category
from notifier.units import mask
from workers.capacity import Capacity
from workers.deadlines import Deadlines
from workers.numbers import Numbers
from workers.proofs import Silence, Unproven

CLOSING_S: Final = 3.0
MAX_CRASHES: Final = 3
SUSPECT: Final = MAX_CRASHES - 1  # one with which so many workers died is sent alone
FINAL: Final = frozenset({Outcome.DELIVERED, Outcome.REJECTED, Outcome.DEAD_TOKEN})
REACHED: Final = frozenset({Outcome.DELIVERED, Outcome.UNKNOWN})
# Outcomes for which a device is tried again without an attempt being spent: the message had no part in them.
FREE: Final = frozenset({Outcome.UNSENT, Outcome.FAULT, Outcome.BUSY, Outcome.FULL})
REFUSED: Final = frozenset({Outcome.REJECTED.value, Outcome.DEAD_TOKEN.value, Outcome.REFUSED.value})
NOT_CONFIGURED: Final = "the notification names an app that this worker has not: add it to every worker's providers"
SHUT: Final = Answer(Outcome.UNSENT, reason="Shut")  # the route's circuit is open, and another route was not


class Asked(NamedTuple):
    """A provider's answer, whether what was not sent waits for its route, and both for the history, if it was asked."""

    answer: Answer
    waits: bool
    reply: Reply | None


class PoisonError(InvalidNotificationError):
    """Several workers died while they sent it, so it is not tried again."""


class NotOursError(Exception):
    """The job names another function; it is RQ's own."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential, with jitter: from `first_us` doubled each attempt up to `max_us`, in microseconds."""

    first_us: int
    max_us: int

    def wait_us(self, attempt: int, asked_us: int = 0) -> int:
        """How long to wait after the attempt of this number, from 1: never less than the provider asked for.

        What it asked for is spread by its own size: a thousand that were told "a minute" must not come back together.
        """
        first_us = max(self.first_us, asked_us // 4)
        ceiling = min(self.max_us, first_us * 2 ** min(attempt - 1, 32))
        return asked_us + random.randint(ceiling // 2, ceiling)  # noqa: S311 - spreads retries, keeps no secret


class Observer(Protocol):
    """Who is told how the routes do; see `Circuits`."""

    def record(self, route: str, answer: Answer, refusals: int) -> tuple[Answer, bool]:
        """Judge an answer: what it means, and whether what was not sent waits for the route."""
        ...

    def not_sent(self) -> None:
        """Note that a leased message could not be sent to anybody."""
        ...


class Sender:
    """Hands notifications to their providers, which stand under their routes.

    observer: is told of every answer by a route with a circuit.
    answer_s: how long after `send_by` an answer may come. A provider has timeouts of its own; this is for one that
        does not keep them.
    lease_s: how long after it was leased a notification is handed over at the latest.
    capacity: learns from how long the answers take.
    """

    def __init__(
        self,
        providers: Mapping[str, Provider],
        backoff: Backoff,
        observer: Observer,
        *,
        answer_s: float = 10.0,
        lease_s: float = 10.0,
        capacity: Capacity | None = None,
        numbers: Numbers | None = None,
    ) -> None:
        self.numbers = numbers or Numbers()
        self._providers = dict(providers)
        self._retiring: set[asyncio.Task[None]] = set()
        self._ended = asyncio.Event()
        self._answer_s = answer_s
        self._lasts_s = lease_s + answer_s
        self._deadlines = Deadlines()
        self._backoff = backoff
        self._observer = observer
        self._capacity = capacity or Capacity({})
        self._helped: set[tuple[str, int | None, str]] = set()
        self._log = structlog.get_logger("notifier.worker")

    async def send(self, leased: Leased, category: Category, send_by: float) -> Settlement | Unproven:
        """Send what is leased. send_by: see `Dispatch`. Raises NotOursError for a job of another function."""
        log = partial(self._bound, leased)  # most sends have nothing to say, and a bound logger costs as much as they
        try:
            check_crashes(leased.crashes)
            notification = counted(decode(leased), category, leased.stands_for)
        except InvalidNotificationError as error:
            poison = isinstance(error, PoisonError)
            log().error("poison", crashes=leased.crashes) if poison else log().warning("malformed", reason=str(error))
            self._observer.not_sent()
            return _failed(leased, "failed", f"malformed: {error}", reached=False)._replace(poison=poison)

        app = notification.app or category.app
        by = self._routes_of(notification, app)
        answered = _read_answers(leased.answered)
        if (ended := _end_unsent(leased, answered, log)) is not None:
            return ended._replace(route=by)
        asked, handed = await self._hand_over(leased, notification, app, answered, send_by)
        if self._log.is_enabled_for(logging.DEBUG):
            log().debug("sent", outcomes=[answer.outcome.value for answer, *_ in asked.values()])
        if not answered and all(answer.outcome is Outcome.DELIVERED for answer, *_ in asked.values()):  # nearly always
            return _delivered(leased, reached=True, route=by)._replace(handed=handed)
        answers = {device: answer for device, (answer, *_) in asked.items()}
        alone = any(not waits and answer.outcome in FREE for answer, waits, _ in asked.values())
        settlement = self._settlement(leased, category, notification, answered, answers, log, alone=alone)
        settlement = settlement._replace(
            gone=_dead_tokens(notification, app, answers), route=by, handed=handed if handed.replies else None
        )
        silent = {i: a.passed for i, a in answers.items() if a.outcome is Outcome.UNKNOWN and a.status is None}
        silences = self._silences(notification, app, silent)
        return Unproven(settlement, silences, json.dumps(answered)) if silences else settlement

    async def _hand_over(
        self, leased: Leased, notification: Notification, app: str | None, answered: Mapping[str, str], send_by: float
    ) -> tuple[dict[int, Asked], Handed]:
        """Send it to the devices that have not answered for good; what became of that, by the devices' places."""
        waiting = [i for i in range(len(notification.devices)) if str(i) not in answered]
        dispatches = [
            Dispatch(leased.job_id, notification.devices[i], notification, leased.left_us, send_by) for i in waiting
        ]
        began = asyncio.get_running_loop().time()
        if len(dispatches) == 1:  # nearly always; a gather would cost a task more
            found = [await self._one(dispatches[0], app, leased)]
        else:
            found = await asyncio.gather(*(self._one(dispatch, app, leased) for dispatch in dispatches))
        handed = Handed(began, [asked.reply for asked in found if asked.reply is not None])
        return dict(zip(waiting, found, strict=True)), handed

    def _routes_of(self, notification: Notification, app: str | None) -> str:
        """The routes of all devices, for the numbers: anybody may invent an app."""
        found: dict[str, None] = {}
        for device in notification.devices:
            by = route(device.platform, app)
            found[by if by in self._providers else f"{device.platform}/unknown"] = None
        return "+".join(found)

    def silences(self, orphan: Leased, category: Category) -> tuple[Silence, ...]:
        """Whom a worker that died may have sent this to; a service that this worker does not know cannot be asked."""
        try:
            notification = decode(orphan)
        except (InvalidNotificationError, NotOursError):
            return ()
        answered = _read_answers(orphan.answered)
        silent = {i: None for i in range(len(notification.devices)) if str(i) not in answered}
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
        """Send by these from now on; those in whose place they come are closed when none of their sends can last."""
        old = {by: self._providers[by] for by in providers}
        self._providers.update(providers)
        task = asyncio.create_task(self._retire(old))
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _retire(self, providers: Mapping[str, Provider]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._lasts_s):
                await self._ended.wait()
        await self._close(providers)

    async def close(self) -> None:
        """Close the providers: what is under way answers now, UNKNOWN or UNSENT. One that does not end is left."""
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
        return self._log.bind(user=leased.user, job_id=leased.job_id, category=leased.category)

    async def _one(self, dispatch: Dispatch, app: str | None, leased: Leased) -> Asked:
        by = route(dispatch.device.platform, app)
        circuit = at_service(by, dispatch.device.host)
        if circuit in leased.shut:
            return Asked(SHUT, True, None)
        clock = asyncio.get_running_loop().time
        began = clock()
        answer, waits = self._observer.record(circuit, await self._ask(by, dispatch), leased.refusals)
        reply = Reply(by, answer.status, clock() - began, answer.outcome.value, answer.reason)
        if answer.help:
            self._tell_help(by, dispatch, answer)
        return Asked(answer, waits, reply)

    def _tell_help(self, by: str, dispatch: Dispatch, answer: Answer) -> None:
        """Say what to repair: once, whatever follows. A route that nobody configured is told under its platform."""
        what = (by if by in self._providers else dispatch.device.platform, answer.status, answer.help)
        if what not in self._helped:
            self._helped.add(what)
            self._log.error(
                "message_fault",
                route=by,
                status=answer.status,
                reason=answer.reason,
                user=dispatch.notification.user,
                job_id=dispatch.job_id,
                help=f"{answer.help}; reported once",
            )

    async def _ask(self, by: str, dispatch: Dispatch) -> Answer:
        provider = self._providers.get(by)
        if provider is None:
            reason = f"no provider is configured for {by}"
            if dispatch.notification.app:  # anybody may invent one
                return Answer(Outcome.REFUSED, reason=reason, retry_after_us=MINUTE_US, help=NOT_CONFIGURED)
            return Answer(Outcome.FAULT, reason=reason)
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            answer = self._deadlines.wait(provider.send(dispatch), dispatch.send_by + self._answer_s)
            return await self._capacity.measure(at_service(by, dispatch.device.host), answer)
        except Exception:  # noqa: BLE001 - whatever a driver raises, and that it never answers
            # A provider's fault is not the worker's end. What left is not known, so the permit stays spent.
            self._log.exception("provider_broke", route=by, job_id=dispatch.job_id)
            return Answer(Outcome.UNKNOWN, reason="the provider's client broke")
        finally:
            self.numbers.answered(by, clock() - began)

    def _settlement(  # noqa: PLR0917 - all of one send
        self,
        leased: Leased,
        category: Category,
        notification: Notification,
        answered: dict[str, str],
        answers: Mapping[int, Answer],
        log: Callable[[], Any],
        *,
        alone: bool,  # whether something of it waits for a time of its own, not for a route
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
                # What is free says nothing of this message: the circuit of its route is what people are told of.
                say = log().debug if answer.outcome in FREE else log().warning
                say(answer.outcome.value, status=answer.status, reason=answer.reason)

        if not again:
            if Outcome.DELIVERED.value in answered.values():
                return _delivered(leased, reached=reached)
            word = "rejected" if REFUSED.issuperset(answered.values()) else "failed"
            reasons = "; ".join(sorted({_describe(answer) for answer in answers.values()}))
            return _failed(leased, word, f"{reasons} (attempt {attempt} of {category.attempts})", reached=reached)

        so_far = json.dumps(answered) if answered else ""
        free = all(answer.outcome in FREE for answer in again)
        if free and not alone:  # to its place: *admit* knows when its route is up
            log().debug("returned")
            fault = any(answer.outcome is Outcome.FAULT for answer in again)
            return _settled(leased, "backlog", "returned", "fault" if fault else "", so_far, reached=reached)
        asked = max(answer.retry_after_us or 0 for answer in again)
        if free:
            wait_us = self._backoff.wait_us(leased.refusals + 1, asked)
            log().info("returned", time_left_ms=wait_us // 1000, attempt=attempt)
            return _settled(leased, "wait", "returned", wait_us, so_far, reached=reached)
        wait_us = self._backoff.wait_us(attempt, asked)
        log().info("retry", time_left_ms=wait_us // 1000, attempt=attempt)
        return _settled(leased, "later", "retried", wait_us, so_far, reached=reached)


def _end_unsent(leased: Leased, answered: Mapping[str, str], log: Callable[[], Any]) -> Settlement | None:
    """The end of what is dropped or has expired; None for what is to be sent."""
    if leased.dropped:
        log().info("dropped")
        return _settled(leased, "dropped", "dropped", leased.dropped, reached=False)
    if leased.left_us is None or leased.left_us > 0:
        return None
    if Outcome.DELIVERED.value in answered.values():  # one device took it before; the others had no time left
        return _delivered(leased, reached=False)
    log().info("expired")
    return _failed(leased, "expired", EXPIRED, reached=False)


def _dead_tokens(notification: Notification, app: str | None, answers: Mapping[int, Answer]) -> tuple[DeadToken, ...]:
    return tuple(
        DeadToken(notification.devices[i], app, answer.reason, answer.gone_at_us)
        for i, answer in answers.items()
        if answer.outcome is Outcome.DEAD_TOKEN
    )


def _is_final(answer: Answer, category: Category, attempt: int) -> bool:
    """Whether a device is not tried again: it answered for good, or what the category allows is used up."""
    if answer.outcome in FREE:
        return False
    give_up = answer.outcome is Outcome.UNKNOWN and category.on_unknown == "give_up"
    return answer.outcome in FINAL or give_up or attempt >= category.attempts


def decode(leased: Leased) -> Notification:
    """The notification of a leased job.

    Raises InvalidNotificationError if it is malformed, NotOursError if it is a job of another function.
    """
    function, kwargs = decode_data(leased.data)
    if function != FUNCTION:
        raise NotOursError
    notification = Notification.from_kwargs(kwargs)
    if notification.user != leased.user:
        raise InvalidNotificationError("user", "is not the user named in the job's meta")
    return notification


def _read_answers(written: bytes | None) -> dict[str, str]:
    """What the devices have answered finally, by their places; nothing where somebody else has written there."""
    if not written:
        return {}
    try:
        read = json.loads(written)
    except (ValueError, RecursionError):
        return {}
    return {place: str(word) for place, word in read.items()} if isinstance(read, dict) else {}


def counted(notification: Notification, category: Category, count: int) -> Notification:
    """The notification with `{count}` in its title and body replaced, where its category collapses or sums up."""
    if not category.counts:
        return notification
    of = category.digest if category.digest and count > 1 else notification
    title, body = (text and text.replace("{count}", str(count)) for text in (of.title, of.body))
    return replace(notification, title=title, body=body)


def check_crashes(crashes: int) -> None:
    """Raise PoisonError for a job on which so many workers died that another should not try it."""
    if crashes >= MAX_CRASHES:
        raise PoisonError("job", f"set aside as poison: {crashes} workers died while sending it")


def returned(leased: Leased) -> Settlement:
    """Back to its place at the head of its backlog: it was not begun, so its permit is refunded."""
    return _settled(leased, "backlog", reached=False)


def broken_off(leased: Leased) -> Settlement:
    """Back to its place at the head of its backlog. It may have been sent, so its permit stays; no attempt is spent."""
    return _settled(leased, "backlog", reached=True)


def failed(leased: Leased, reason: str) -> Settlement:
    """The end of a job that can never be sent."""
    return _failed(leased, "failed", reason, reached=False)


def _delivered(leased: Leased, *, reached: bool, route: str = "") -> Settlement:
    return _settled(leased, "delivered", "delivered", reached=reached, route=route)


def _describe(answer: Answer) -> str:
    return " ".join(str(part) for part in (answer.outcome.value, answer.status, answer.reason) if part)


def _failed(leased: Leased, word: str, reason: str, *, reached: bool) -> Settlement:
    return _settled(leased, "failed", word, encode_reason(reason), reached=reached)


def _settled(
    leased: Leased,
    state: State,
    word: str = "",
    detail: str | int = "",
    answered: str = "",
    *,
    reached: bool,
    route: str = "",
) -> Settlement:
    return Settlement(
        leased.job_id, leased.permit, leased.user, leased.category, reached, state, word, detail, answered, (), route
    )
