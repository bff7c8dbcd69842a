"""The actions of pages and API: cancel, pause, change rates, enqueue. All but previews and sends are logged."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Final

import structlog
from starlette.requests import Request

from notifier.errors import NotReplicatedError, OverloadedError, RedisUnusableError
from notifier.forecast.expected import find_record
from notifier.notification.files import notification_of
from notifier.operations.action_log import logged, record_action
from notifier.operations.pause import PauseError, check_what, pause_it, resume_it
from notifier.operations.preview.plot import svg
from notifier.operations.preview.recording import RecordingError
from notifier.operations.preview.report import compare
from notifier.producer.jobs import JOB_ID
from notifier.queue.circuits import paused_words
from notifier.queue.walk import Kind
from notifier.rules.preferences import among
from notifier.server.answers import ProblemError
from notifier.server.guard import WHO
from notifier.server.html import Html
from notifier.server.state import State
from notifier.settings import Settings
from notifier.settings.loading import parse_rates
from notifier.settings.rates import change_to
from notifier.store.exchange import exchange
from notifier.store.pipelining import on_all
from notifier.store.published import HOLDS_IN_US, publish
from notifier.store.published import withdraw as take_back
from notifier.units import parse_duration

OF_KIND: Final = ("category", "collapse_id", "tag")  # the fields that select a user's notifications to cancel
PASTED: Final = "the new rates"
KEY_FORM: Final = "an Idempotency-Key is 1 to 200 printable ASCII characters"
LONGEST_KEY: Final = 200
LONGEST_MESSAGE: Final = 200


@dataclass(frozen=True, slots=True)
class Asked:
    """A requested action. who, address: the caller, for the log. given: its fields. key: its Idempotency-Key."""

    who: str
    address: str
    given: dict[str, Any]
    key: str | None

    @classmethod
    def of(cls, request: Request, given: dict[str, Any]) -> Asked:
        address = request.client.host if request.client else ""
        return cls(request.scope.get(WHO, ""), address, given, request.headers.get("idempotency-key"))

    def text(self, name: str) -> str:
        """A text field, '' if it is missing. Raises ProblemError."""
        value = self.given.get(name, "")
        if not isinstance(value, str):
            raise ProblemError(422, "Not valid", f"{name}: must be text", field=name)
        return value

    def flag(self, name: str) -> bool:
        """A boolean field; a form sends "1" for true. Raises ProblemError."""
        value = self.given.get(name, False)
        if value != "1" and not isinstance(value, bool):
            raise ProblemError(422, "Not valid", f"{name}: must be true or false", field=name)
        return bool(value)


def cancel(state: State, asked: Asked) -> dict[str, Any]:
    job_id = asked.text("id")
    if not JOB_ID.fullmatch(job_id):
        raise ProblemError(404, "Unknown", "a job id is 1 to 64 letters, digits, '_' and '-'")
    with logged(partial(_log, state, asked), "cancel", job_id) as words:
        words.append(answer := state.notifier().cancel(job_id))
    return {"job_id": job_id, "answer": answer}


def cancel_of(state: State, asked: Asked) -> dict[str, Any]:
    kind = {name: asked.text(name) for name in OF_KIND if name in asked.given}
    user = asked.text("user")
    with logged(partial(_log, state, asked), "cancel of user", f"{user} {Kind(**kind)}".rstrip()) as words:
        words.append(str(done := state.notifier().cancel(user=user, **kind)))
    return {"user": user, "cancelled": done.cancelled, "too_late": list(done.too_late)}


def cancel_if_sure(state: State, asked: Asked) -> dict[str, Any]:
    """As `cancel_of`, for a form: if `sure` is missing, only count the user's backlogs."""
    user = asked.text("user")
    if asked.flag("sure"):
        return cancel_of(state, asked)
    with state.redis.at(user) as redis:
        waiting = exchange(redis, find_record(user)).waiting
    return {"user": user, "waiting": sum(waiting.values())}


def pause(state: State, asked: Asked) -> dict[str, Any]:
    name, reason = _pause_name(asked, state.in_force.read().settings), asked.text("reason")
    try:
        lasts_us = parse_duration(asked.text("for"), least_us=1) if "for" in asked.given else 0
    except ValueError as error:
        raise ProblemError(422, "Not valid", f"for: {error}", field="for") from None
    pause_it(state.redis, name, asked.who, reason, lasts_us, partial(_log, state, asked))
    return {"what": paused_words(name), "paused": True}


def resume(state: State, asked: Asked) -> dict[str, Any]:
    name = _pause_name(asked)
    resumed = resume_it(state.redis, name, asked.who, partial(_log, state, asked))
    return {"what": paused_words(name), "resumed": resumed}


def _pause_name(asked: Asked, settings: Settings | None = None) -> str:
    try:
        return check_what(asked.text("what"), settings)
    except PauseError as error:
        raise ProblemError(422, "Not valid", f"what: {error}", field="what") from None


def preview(state: State, asked: Asked) -> dict[str, Any]:
    """Preview what new rates would change, on the recorded traffic if there is any. Change and log nothing."""
    with _alone(state):
        known = state.in_force.read()
        settings = parse_rates(asked.text("rates"), state.path, name=PASTED)
        old, new = known.settings.rates_version, settings.rates_version
        change = change_to(known.settings.rates, settings.rates)
        report, plot = None, ""
        if trace := state.traffic.trace():
            chosen = among(state.notifier().users.export(), trace)
            before, after = known.policies.under(chosen), settings.policies().under(chosen)
            report, sent_at = compare(trace, before, after, begins_us=trace.began_us or 0)
            plot = svg(sent_at, {"old": old, "new": new})
    return {
        "version": new,
        "before": old,
        "changes": change.lines,
        "lost": change.lost,
        "report": report,
        "plot": Html(plot),
        "rates": asked.text("rates"),
    }


@contextmanager
def _alone(state: State) -> Iterator[None]:
    """Let one request at a time parse rates, because the rates of many users take much memory. Raises ProblemError."""
    if not state.previewing.acquire(blocking=False):
        raise ProblemError(409, "Busy", "somebody previews or applies rates; try again when that is done")
    try:
        yield
    finally:
        state.previewing.release()


def apply(state: State, asked: Asked) -> dict[str, Any]:
    """Publish rates to all workers. before: the version in force when the caller previewed them."""
    with _alone(state):
        known = state.in_force.read()
        settings = parse_rates(asked.text("rates"), state.path, name=PASTED)
        before, now = asked.text("before"), known.settings.rates_version
        if before != now:
            why = f"the rates in force are {now} and not {before or 'named in the field before'}: preview again"
            raise ProblemError(409, "Changed meanwhile", why)
        change = change_to(known.settings.rates, settings.rates)
        if change.lost and not asked.flag("replace"):
            why = f"the new rates have no {' and no '.join(change.lost)}, but such rates are in force; give replace"
            raise ProblemError(409, "Rates would be lost", why)
        message = asked.text("message")[:LONGEST_MESSAGE]
        with logged(partial(_log, state, asked), "apply rates", f"{now} to {settings.rates_version}") as words:
            words.extend(filter(None, [message, *change.lines]))
            published = on_all(state.redis, lambda redis: publish(redis, settings.rates, HOLDS_IN_US))[0]
    return {"version": published.version, "before": now, "at_us": published.at_us}


def withdraw(state: State, asked: Asked) -> dict[str, Any]:
    with logged(partial(_log, state, asked), "withdraw rates", "") as words:
        taken = take_back(state.redis)
        words.append("taken back" if taken else "none were applied")
    return {"withdrawn": taken}


def record(state: State, asked: Asked) -> dict[str, Any]:
    """Record accepted notifications for the given minutes; 0 ends the recording."""
    given = str(asked.given.get("minutes", ""))
    if not re.fullmatch("[0-5]?[0-9]|60", given):
        raise ProblemError(422, "Not valid", "minutes: must be a number from 0 to 60", field="minutes")
    minutes = int(given)
    if minutes == 0:
        state.traffic.stop()
    else:
        try:
            state.traffic.start(minutes * 60)
        except RecordingError as error:
            raise ProblemError(409, "Recording", str(error)) from None
    _log(state, asked, "record traffic", f"{minutes} min", "begun" if minutes else "ended")
    return asdict(state.traffic.now())


def enqueue(state: State, asked: Asked) -> dict[str, Any]:
    """Accept a notification, as `Notifier.send`. If its key was used before, return the earlier job id."""
    fields, key = dict(asked.given), asked.key
    job_id = fields.pop("job_id", None)
    if key is not None:
        if not 0 < len(key) <= LONGEST_KEY or not key.isascii() or not key.isprintable():
            raise ProblemError(400, "Not valid", KEY_FORM)
        if "dedupe_key" in fields or job_id is not None:
            raise ProblemError(400, "Not valid", "give an Idempotency-Key, or a dedupe_key or job_id; not both")
        fields["dedupe_key"] = f"http:{key}"
    try:
        accepted = state.notifier().send(notification_of(fields), job_id=job_id)
    except OverloadedError as error:
        limit = error.refused[0].limit
        raise ProblemError(429 if limit == "user" else 503, "Overloaded", str(error), limit=limit) from None
    except NotReplicatedError as error:
        raise ProblemError(503, "Not replicated", str(error), job_id=error.job_ids[0]) from None
    return {"job_id": accepted}


def _log(state: State, asked: Asked, action: str, of: str, answer: str) -> None:
    """Log an action in this process, and in Redis if Redis takes it."""
    log = structlog.get_logger("notifier.server")
    log.info("action", who=asked.who, address=asked.address, action=action, of=of, answer=answer)
    try:
        record_action(state.redis, asked.who, asked.address, action, of, answer)
    except RedisUnusableError as error:
        log.warning("action_not_recorded", action=action, of=of, reason=str(error))
