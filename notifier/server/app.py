"""The application: its routes, and their answers within a time limit."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import replace
from importlib import resources
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import parse_qsl, urlencode

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from notifier.errors import InvalidNotificationError, NotifierError, RedisAwayError, SettingsError
from notifier.notification.files import FIELDS
from notifier.notification.json_values import read_object
from notifier.notification.notification import unknown_field
from notifier.server import actions, page_data
from notifier.server.actions import Asked
from notifier.server.answers import (
    HEADERS,
    REDIS_DOWN,
    ProblemError,
    html_answer,
    json_answer,
    problem,
    tell_unreadable,
)
from notifier.server.connections import Bodies
from notifier.server.guard import MAY_ACT, Guard
from notifier.server.html import Html
from notifier.server.metrics import CONTENT_TYPE
from notifier.server.pages.confirmations import log_page, pauses_page, sure_page
from notifier.server.pages.help import help_page
from notifier.server.pages.job import job_page
from notifier.server.pages.layout import View, link, problem_page
from notifier.server.pages.limits import limits_page
from notifier.server.pages.now import now_page
from notifier.server.pages.problems import bad_page
from notifier.server.pages.rates import preview_page, rates_page
from notifier.server.pages.routes import routes_page
from notifier.server.pages.user import user_page
from notifier.server.state import PREVIEW_S, State

MAX_BYTES: Final = 1_000_000  # of a request's body
MAX_FIELDS: Final = 20
TYPES: Final = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
FILES: Final = ("style.css", "page.js", "live.js", "icon.svg", "uplot/uPlot.css", "uplot/uPlot.js")
ACCEPTED: Final = 202
CANCEL_STATUS: Final = {"cancelled": 200, "unknown": 404}  # else 409

Look = Callable[[State, Request], Any]
Show = Callable[[Any, View], str]
Do = Callable[[State, Asked], dict[str, Any]]
Endpoint = Callable[[Request], Awaitable[Response]]


def build(state: State, token: Callable[[], str], *, is_open: bool) -> ASGIApp:
    """Build the application. token: returns the token, or the lines of its file; '' if callers need none.

    is_open: if there is no token, accept any Host header.
    """

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        if state.webhook is not None:
            state.webhook.start()
        yield
        state.close()

    paths = _Paths(state)
    app = Starlette(
        routes=[*_fixed(state), *_pages(paths), *_api(paths)],
        exception_handlers={HTTPException: _not_here},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # it would redirect to http://, even behind a proxy with TLS
    return Bodies(Guard(app, token, is_open=is_open))


def _pages(at: _Paths) -> list[Route]:
    return [
        at.page("/", page_data.stats, now_page),
        at.page("/user", page_data.user, user_page),
        at.page("/job", page_data.job, job_page),
        at.page("/routes", page_data.routes, routes_page),
        at.page("/rates", page_data.rates, rates_page),
        at.page("/log", page_data.actions, log_page),
        at.page("/problems", page_data.bad, bad_page),
        at.page("/pause", page_data.pauses, pauses_page),
        at.page("/help", page_data.runbook, help_page),
        at.page("/help/{name}", page_data.runbook, help_page),
        at.page("/find", page_data.find, lambda place, _: place),
        at.page("/limits", page_data.limits, limits_page),
        at.form("/job/cancel", actions.cancel, _after_cancel),
        at.form("/user/cancel", actions.cancel_if_sure, _after_cancel_of),
        at.form("/pause", actions.pause, lambda *_: "/pause?done=paused"),
        at.form("/resume", actions.resume, _to("/pause", "resumed", "resumed", "not_paused")),
        at.form("/rates/preview", actions.preview, preview_page, seconds=PREVIEW_S),
        at.form("/rates/apply", actions.apply, lambda *_: "/rates?done=applied"),
        at.form("/rates/withdraw", actions.withdraw, _to("/rates", "withdrawn", "withdrawn", "none")),
        at.form("/rates/record", actions.record, _to("/rates", "is_running", "recording", "stopped")),
    ]


def _api(at: _Paths) -> list[Route]:
    return [
        at.json("/readyz", page_data.ready),
        at.json("/api/v1/stats", page_data.stats),
        at.json("/api/v1/routes", page_data.routes),
        at.json("/api/v1/users", page_data.user),
        at.json("/api/v1/jobs", page_data.job),
        at.json("/api/v1/rates", page_data.rates),
        at.json("/api/v1/limits", page_data.limits),
        at.json("/api/v1/actions", page_data.actions),
        at.json("/api/v1/pauses", page_data.pauses),
        at.json("/api/v1/problems", page_data.bad),
        at.act("/api/v1/jobs/cancel", actions.cancel, ("id",), lambda told: CANCEL_STATUS.get(told["answer"], 409)),
        at.act("/api/v1/users/cancel", actions.cancel_of, ("user", *actions.OF_KIND)),
        at.act("/api/v1/pause", actions.pause, ("what", "for", "reason")),
        at.act("/api/v1/resume", actions.resume, ("what",)),
        at.act("/api/v1/rates/preview", actions.preview, ("rates",), seconds=PREVIEW_S),
        at.act("/api/v1/rates/apply", actions.apply, ("rates", "before", "replace", "message")),
        at.act("/api/v1/rates/withdraw", actions.withdraw, ()),
        at.act("/api/v1/traffic", actions.record, ("minutes",)),
        at.act("/api/v1/notifications", actions.enqueue, {*FIELDS, "job_id"}, lambda _: ACCEPTED),
    ]


class _Paths:
    """Makes the routes. Each reads or acts in a thread within a time limit, and answers with a page or with JSON."""

    def __init__(self, state: State) -> None:
        self._state = state

    def page(self, path: str, look: Look, show: Show) -> Route:
        """Serve a page, or a redirect. The thread makes the HTML too, so that the event loop stays free."""

        async def answer(request: Request, view: View) -> Response:
            def made() -> Response:
                told = look(self._state, request)  # may read the configuration again, which sets `refused`
                return _answered(show(told, replace(view, refused=self._state.in_force.refused)))

            return await self._state.in_time(made)

        return self._as_page(path, answer)

    def json(self, path: str, look: Look) -> Route:
        async def answer(request: Request) -> Response:
            return await self._state.in_time(lambda: json_answer(look(self._state, request)))

        return _as_json(path, answer)

    def form(
        self, path: str, do: Do, then: Callable[[dict[str, Any], View], str], *, seconds: float | None = None
    ) -> Route:
        """Serve a form of a page. then: returns the path to redirect to, or the page that shows the result."""

        async def answer(request: Request, view: View) -> Response:
            request.state.given = _form(await _body(request)) | dict(parse_qsl(request.url.query))
            asked = Asked.of(request, request.state.given)
            try:
                told = await self._state.in_time(lambda: do(self._state, asked), seconds)
            except SettingsError as error:
                return await self._wrong_rates(request, view, asked, str(error))
            return _answered(then(told | {"back": asked.given}, view))

        return self._as_page(path, answer, "POST")

    async def _wrong_rates(self, request: Request, view: View, asked: Asked, why: str) -> Response:
        """Show the page Rates again, with the pasted rates and their mistakes."""

        def show() -> Response:
            told = page_data.rates(self._state, request)
            return html_answer(rates_page(told, view, given=asked.text("rates"), problem=why), 422)

        return await self._state.in_time(show)

    def act(
        self,
        path: str,
        do: Do,
        known: Collection[str],
        status: Callable[[dict[str, Any]], int] = lambda _: 200,
        *,
        seconds: float | None = None,
    ) -> Route:
        """Serve an action as JSON. An answer of 202 has the path of the accepted job in its Location.

        known: the accepted fields. Others are refused: an ignored filter, if misspelt, would let all be cancelled.
        """

        async def answer(request: Request) -> Response:
            given = await _json_body(request)
            if others := given.keys() - set(known):
                name = min(others)[:100]
                raise ProblemError(422, "Not valid", f"{name}: {unknown_field(name, known)}", field=name)
            asked = Asked.of(request, given)
            try:
                told = await self._state.in_time(lambda: do(self._state, asked), seconds)
            except SettingsError as error:
                raise ProblemError(422, "Not valid", str(error), errors=str(error).splitlines()) from None
            answered = json_answer(told, status(told))
            if answered.status_code == ACCEPTED:
                answered.headers["Location"] = f"/api/v1/jobs?id={told['job_id']}"
            return answered

        return _as_json(path, answer, "POST")

    def _as_page(self, path: str, answer: Callable[[Request, View], Awaitable[Response]], method: str = "GET") -> Route:
        """Answer with a page, also if there is an error."""

        async def endpoint(request: Request) -> Response:
            view = self._view(request)
            try:
                return await answer(request, view)
            except Exception as error:  # noqa: BLE001 - see `_problem`
                found = _problem(error)
                reads = method == "GET"  # page.js renews by GET; a form's path has another page, or none
                more = None if reads else _back(request, view.at)
                page = problem_page(view, found.title, found.detail, found.more.get("help"), more, renew=reads)
                return html_answer(page, found.status)

        return Route(path, endpoint, methods=[method])

    def _view(self, request: Request) -> View:
        at = "/" + request.url.path.split("/")[1]
        query, in_parts = request.query_params, len(self._state.redis) > 1
        return View(
            at,
            request.scope.get(MAY_ACT, False),
            query.get("done", ""),
            "long" in query,
            in_parts,
            None if in_parts else self._state.answered_at,
        )


def _fixed(state: State) -> list[Route]:
    async def health(_: Request) -> Response:
        return json_answer({"alive": True})

    async def metrics(_: Request) -> Response:
        text = await state.in_time(state.metrics.text, apart=True)  # however many ask: alerts depend on it
        return Response(text, media_type=CONTENT_TYPE, headers=HEADERS)

    async def live(request: Request) -> Response:
        if state.feed.is_full:
            return problem(503, "Too many watch", "so many watch already; try again later")
        if request.method == "HEAD":
            return Response(media_type="text/event-stream", headers=HEADERS)
        return state.feed.answer()

    return [
        Route("/healthz", health),
        _as_json("/metrics", metrics),
        Route("/api/v1/live", live),
        *(_file(name) for name in FILES),
    ]


def _file(name: str) -> Route:
    content = resources.files("notifier.server").joinpath("static", name).read_text(encoding="utf-8")

    async def endpoint(_: Request) -> Response:
        return Response(content, media_type=TYPES[PurePosixPath(name).suffix], headers=HEADERS)

    return Route(f"/{name}", endpoint)


def _as_json(path: str, answer: Endpoint, method: str = "GET") -> Route:
    """Answer with JSON, also if there is an error."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except Exception as error:  # noqa: BLE001 - see `_problem`
            found = _problem(error)
            return problem(found.status, found.title, found.detail, **found.more)

    return Route(path, endpoint, methods=[method])


def _answered(shown: str) -> Response:
    """Answer with a page, or redirect if `shown` is a path."""
    if shown.startswith("/"):
        return Response(status_code=303, headers={**HEADERS, "Location": shown})
    return html_answer(shown)


def _problem(error: Exception) -> ProblemError:
    """The problem that answers an error. Any exception may come: other programs can write anything into Redis."""
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, RedisAwayError):
        return ProblemError(503, "Redis does not answer", str(error), help=REDIS_DOWN)
    if isinstance(error, InvalidNotificationError):
        return ProblemError(422, "Not valid", str(error), field=error.field)
    if isinstance(error, NotifierError):
        return ProblemError(503, "Not usable", str(error))
    return ProblemError(503, "Unreadable", tell_unreadable(error))


async def _not_here(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if "text/html" in request.headers.get("accept", "") and not request.url.path.startswith("/api/"):
        detail = "There is no such page. Look for a user or a job above, or go to Now."
        view = View("", may_act=request.scope.get(MAY_ACT, False))
        answer = html_answer(problem_page(view, "Not here", detail), error.status_code)
    else:
        answer = problem(error.status_code, error.detail, "there is nothing of this path and method")
    answer.headers.update(error.headers or {})  # Allow
    return answer


async def _body(request: Request) -> bytes:
    found = b""
    try:
        async for part in request.stream():
            found += part
            if len(found) > MAX_BYTES:
                raise ProblemError(413, "Too large", f"at most {MAX_BYTES:,} bytes are taken")
    except ClientDisconnect:
        raise ProblemError(408, "Too slow", "the body did not come to its end in time") from None
    return found


async def _json_body(request: Request) -> dict[str, Any]:
    """The JSON object in a body; {} if the body is empty."""
    raw = await _body(request)
    if not raw:
        return {}
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise ProblemError(415, "Not JSON", "give Content-Type: application/json")
    given = read_object(raw)
    if given is None:
        raise ProblemError(400, "Not JSON", "the body must be a JSON object")
    return given


def _form(raw: bytes) -> dict[str, Any]:
    """The fields of a form; empty ones are left out."""
    try:
        pairs = parse_qsl(raw.decode(), max_num_fields=MAX_FIELDS, errors="strict")
    except ValueError:
        raise ProblemError(400, "Not a form", "the body must be a form, urlencoded in UTF-8") from None
    # A browser sends each line break of a textarea as CRLF.
    return {name: value.replace("\r\n", "\n") for name, value in pairs}


def _back(request: Request, at: str) -> Html:
    """A link to the page of a form that failed."""
    given = getattr(request.state, "given", {})
    if at in {"/job", "/user"}:
        return link("/find", "Go back", id=given.get("user") or given.get("id", ""))
    return link("/pause" if at == "/resume" else at, "Go back")


def _after_cancel(told: dict[str, Any], _: View) -> str:
    done, user = told["answer"], told["back"].get("user")
    if user:
        return f"/user?{urlencode({'id': user, 'done': done})}"
    return f"/job?{urlencode({'id': told['job_id'], 'done': done})}"


def _after_cancel_of(told: dict[str, Any], view: View) -> str:
    if "waiting" in told:
        return sure_page(told, view)
    return f"/user?{urlencode({'id': told['user'], 'done': 'all_but_some' if told['too_late'] else 'all_cancelled'})}"


def _to(path: str, key: str, well: str, otherwise: str) -> Callable[[dict[str, Any], View], str]:
    """Redirect to the page at `path`. Its message is `well` if the result has a true `key`, else `otherwise`."""
    return lambda told, _: f"{path}?done={well if told[key] else otherwise}"
