"""Read the data of each page from Redis, which it never changes. The API returns the same data."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Any, Final
from urllib.parse import urlencode

import structlog
from starlette.requests import Request

from notifier.errors import NotifierError, RedisAwayError
from notifier.notification.job import accepted_at
from notifier.notification.json_values import fields_of
from notifier.operations.action_log import read_actions
from notifier.operations.ended_badly import view_bad
from notifier.operations.explain import Inspection, placed
from notifier.operations.history import record_json
from notifier.operations.limit_view import RANKS, view_namespace, view_namespaces
from notifier.operations.route_view import view_routes
from notifier.operations.stats import read_stats
from notifier.operations.throttled import read_throttled
from notifier.producer.jobs import JOB_ID
from notifier.queue.circuits import by_route
from notifier.queue.minutes import UNENDED
from notifier.queue.pauses import find_pauses
from notifier.scripts.keys import job_key, under
from notifier.server.answers import ProblemError
from notifier.server.pages.help import read_help
from notifier.server.pages.problems import OUTCOMES
from notifier.server.state import State
from notifier.settings.checks import check_user
from notifier.settings.schema_processes import MAX_HISTORY
from notifier.settings.yaml_source import write_yaml
from notifier.store.exchange import Commands, Exchange
from notifier.store.pipelining import ask_all
from notifier.store.published import followers, newest
from notifier.units import moment

CHANGES: Final = frozenset(
    {"apply rates", "withdraw rates", "change rates", "pause", "resume", "cancel of user", "cancel of all"}
)
MAX_MINUTES: Final = 180
MAX_ACTIONS: Final = 50
RECORDS: Final = 50  # on the page of a user
MAX_STANDING: Final = 200  # notifications that wait in the backlogs of a user
MAX_USERS: Final = 200  # with rates of their own; if there are more, the rates are not shown
ROUTE_MINUTES: Final = 10


def ready(state: State, _: Request) -> dict[str, Any]:
    """Check that Redis and the configuration can be used. Anybody may ask, so only the log has the reason if not."""
    title = "Not usable"
    try:
        state.in_force.read()
        why = state.in_force.refused
    except NotifierError as error:
        why, title = str(error), "Redis does not answer" if isinstance(error, RedisAwayError) else title
    known, state.not_ready = state.not_ready, why
    if why:
        if why != known:  # strangers may ask as often as they like
            structlog.get_logger("notifier.server").warning("not_ready", reason=why)
        raise ProblemError(503, title, "the log of notifier serve says why")
    return {"ready": True}


def stats(state: State, request: Request) -> dict[str, Any]:
    found = state.stats(_number(request, "minutes", 10, range(1, MAX_MINUTES + 1)))
    routes = view_routes(state.redis, state.in_force.read().settings, found.now)
    changes = read_actions(state.redis, MAX_ACTIONS)
    changed = next((asdict(each) for each in changes if each.action in CHANGES), None)
    more = {"throttled": read_throttled(state.redis), "changed": changed}
    return found.as_json() | more | {"routes": routes}


def user(state: State, request: Request) -> dict[str, Any]:
    """The rules for a user and their use, the history, and the waiting notifications with reasons and times."""
    name = _user_of(request)
    known = state.in_force.read()
    with state.redis.at(name) as redis:
        inspection = Inspection(redis, known.policies, name, known.settings.redis.partitions)
        found = placed(inspection.explain(request.query_params.get("category") or None), known)
        outside = inspection.outside()
    waiting = {category: n for category, n in inspection.record.waiting.items() if n}
    categories = sorted({*known.policies.categories, *waiting})
    if found.category not in categories:
        _refuse(request, "category", f"one of {', '.join(categories)}")
    kept = state.notifier().history(name)
    shown = _number(request, "history", RECORDS, range(1, MAX_HISTORY + 1))
    return found.as_json() | {
        "at": state.now(),
        "categories": categories,
        "line": [asdict(each) for each in islice(inspection.backlog(), MAX_STANDING)],
        "waiting_in_all": sum(waiting.values()),
        "outside": outside,
        "history": [record_json(record) for record in kept[:shown]],
        "history_in_all": len(kept),
    }


def _number(request: Request, name: str, default: int, known: range) -> int:
    given = request.query_params.get(name, str(default))
    if given.isascii() and given.isdigit() and len(given) < 9 and int(given) in known:  # noqa: PLR2004
        return int(given)
    _refuse(request, name, f"a number from {known[0]} to {known[-1]}")
    return default


def _refuse(request: Request, name: str, what: str) -> None:
    """Refuse a wrong parameter in the API, so that a mistake gives no empty answer. A page shows what it can."""
    if request.url.path.startswith("/api/"):
        raise ProblemError(422, "Not valid", f"{name}: must be {what}", field=name)


def _user_of(request: Request) -> str:
    name = request.query_params.get("id", "")
    try:
        return check_user(name)
    except ValueError as error:
        raise ProblemError(404, "Unknown", f"{name[:40]!r} {error}") from None


def job(state: State, request: Request) -> dict[str, Any]:
    """Return what became of a notification, or why it waits."""
    job_id = request.query_params.get("id", "")
    if not JOB_ID.fullmatch(job_id):
        raise ProblemError(404, "Unknown", "a job id is 1 to 64 letters, digits, '_' and '-'")
    found = state.notifier().status(job_id, request.query_params.get("user") or None)
    if found is None:
        raise ProblemError(404, "Unknown", "no notification of this id is known, or it is no longer kept")

    def find() -> Exchange[Any]:
        (found,) = yield Commands(lambda pipe: pipe.hmget(job_key(job_id), "meta", "enqueued_at", "push_deadline"))
        return found

    every = ask_all(state.redis.of_job(job_id), find).all
    meta, enqueued_at, deadline = next((each for each in every if any(each)), (None, None, None))
    expires = None if deadline is None else moment(float(deadline))
    record = found.record
    of = _of(meta) or ({} if record is None else {"user": record.user, "category": record.category})
    accepted = record.accepted_at if record is not None and record.accepted_at else accepted_at(enqueued_at)
    told = {"record": None if record is None else record_json(record), "accepted_at": accepted}
    return asdict(found) | {"at": state.now(), "expires_at": expires, **told, **of}


def _of(meta: bytes | None) -> dict[str, str]:
    """Return the user and the category that a job's meta names."""
    fields = fields_of(meta)
    return {name: fields[name] for name in ("user", "category") if isinstance(fields.get(name), str)}


def routes(state: State, _: Request) -> dict[str, Any]:
    found = read_stats(state.redis, ROUTE_MINUTES)
    together, told = found.together, view_routes(state.redis, state.in_force.read().settings, found.now)
    for each in told:
        answers = together.answers.get(each["route"])
        each["delivered"] = _ended(together.ended, each["route"], delivered=True)
        each["others"] = _ended(together.ended, each["route"], delivered=False)
        each["p99"] = None if answers is None else answers.quantile_s(0.99)
    return {"at": state.now(), "routes": told}


def _ended(ended: Any, route: str, *, delivered: bool) -> int:
    """Count the notifications of a route that were delivered, or that ended otherwise."""
    of = {key: n for key, n in ended.items() if key[2] == route and key[0] not in UNENDED}
    return sum(n for (word, *_), n in of.items() if (word == "delivered") == delivered)


def rates(state: State, _: Request) -> dict[str, Any]:
    known = state.in_force.read()
    published, workers = followers(state.redis)
    settings, applied = known.settings, known.published
    users = len(settings.users)
    return {
        "at": state.now(),
        "version": settings.rates_version,
        "source": "applied" if applied.version else str(state.path),
        "applied_at": moment(applied.at_us) if applied.version else None,
        "published": newest(published).version,
        "counts": {"categories": len(settings.categories), "tiers": len(settings.tiers), "users": users},
        "rates": write_yaml(dict(settings.rates)) if users <= MAX_USERS else None,
        "workers": [asdict(worker) for worker in workers],
        "traffic": asdict(state.traffic.now()),
    }


def pauses(state: State, request: Request) -> dict[str, Any]:
    """Return all pauses, and the `what` of the query, with which the form begins."""
    every = by_route(ask_all(state.redis, find_pauses).all)
    found = [held.as_json() for held in every]
    return {"at": state.now(), "pauses": found, "what": request.query_params.get("what", "")}


def bad(state: State, request: Request) -> dict[str, Any]:
    """Return notifications that ended badly lately. In the query: `part` of an id, an `outcome`, a `page`."""
    query = request.query_params
    part, outcome = query.get("part", "")[:200], query.get("outcome", "").replace("_", " ")
    if outcome not in OUTCOMES:
        _refuse(request, "outcome", f"one of {', '.join(OUTCOMES[1:])}")
    number = _number(request, "page", 0, range(1_000))
    found = view_bad(state.redis, state.in_force.read(), part, outcome, number)
    return found | {"at": state.now(), "part": part, "outcome": outcome, "page": number}


def limits(state: State, request: Request) -> dict[str, Any]:
    """All namespaces that count usage; with `id` in the query, the ranked keys of one and a series."""
    if (name := request.query_params.get("id")) is None:
        with under(state.redis[0].prefixes):  # a program's own limiters count in the first partition
            return {"at": state.now(), "namespaces": view_namespaces(state.redis[0].client)}
    by, key = request.query_params.get("by", "total"), request.query_params.get("key", "")
    if by not in RANKS:
        raise ProblemError(422, "Not valid", f"by: must be one of {', '.join(RANKS)}", field="by")
    try:
        with under(state.redis[0].prefixes):
            found = view_namespace(state.redis[0].client, name, next(rank for rank in RANKS if rank == by), key)
    except ValueError as error:
        raise ProblemError(404, "Unknown", str(error)) from None
    if found is None:
        raise ProblemError(404, "Unknown", "no namespace of this name counts its usage; give its Limiter usage_keep")
    return {"at": state.now(), **found}


def runbook(_: State, request: Request) -> dict[str, Any]:
    return {"text": read_help(request.path_params.get("name", ""))}


def find(state: State, request: Request) -> str:
    """The path of the page for an id: of the job with this id, if there is one, else of the user."""
    given = request.query_params.get("id", "").strip()
    is_job = JOB_ID.fullmatch(given) and state.notifier().status(given) is not None
    return f"/{'job' if is_job else 'user'}?{urlencode({'id': given})}"


def actions(state: State, _: Request) -> dict[str, Any]:
    return {"at": state.now(), "actions": [asdict(each) for each in read_actions(state.redis, MAX_ACTIONS)]}
