"""The application: who may ask, what is asked of Redis, and how it is answered. It changes nothing."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict
from datetime import datetime
from itertools import islice
from pathlib import Path
from typing import Any, Final

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from notifier.errors import NotifierError
from notifier.operations.explain import Inspection
from notifier.operations.in_force import settings_in_force
from notifier.operations.stats import read_stats
from notifier.producer.jobs import JOB_ID
from notifier.producer.notifier import Notifier
from notifier.server.metrics import CONTENT_TYPE, Metrics
from notifier.server.page import STYLE, now_page, problem_page
from notifier.settings import load_settings
from notifier.shards.map import connect_all, connect_home
from notifier.store.connection import ask

ANSWER_S: Final = 4.0  # a Redis that hangs is answered for by then
THREADS: Final = 8
MOST_ASKED: Final = 32  # at once; more are turned away, so that a Redis that hangs fills no memory
MOST_MINUTES: Final = 180
MOST_SHOWN: Final = 200
LOCAL: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})
HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; style-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
Asked = Callable[[Request], Response]


class _BusyError(Exception):
    """Redis does not answer in time, or too many ask."""


class Server:
    """What the endpoints share. Each reads Redis in a thread, and gives up after ANSWER_S."""

    def __init__(self, path: Path) -> None:
        self._path = path
        settings = load_settings(path, rates={})
        self._stack = ExitStack()
        self._clients = dict(self._stack.enter_context(connect_all(settings)))
        self._metrics = Metrics(self._clients)
        self._scraping = asyncio.Lock()
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="serve")
        self._asked = 0

    async def in_time(self, read: Callable[[], Response]) -> Response:
        """Read in a thread; raise _BusyError where that takes too long."""
        if self._asked >= MOST_ASKED:
            raise _BusyError
        self._asked += 1
        future = asyncio.get_running_loop().run_in_executor(self._threads, read)
        future.add_done_callback(self._done)
        try:
            return await asyncio.wait_for(asyncio.shield(future), ANSWER_S)
        except TimeoutError:
            raise _BusyError from None

    def _done(self, future: asyncio.Future[Response]) -> None:
        self._asked -= 1
        if not future.cancelled():
            future.exception()  # nobody may be left who asks for it

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._stack.close()

    def ready(self, _: Request) -> Response:
        """Redis answers, and the configuration can be used."""
        load_settings(self._path)
        for redis in self._clients.values():
            ask(redis.ping)
        return _json({"ready": True})

    async def metrics(self, _: Request) -> Response:
        """What Prometheus reads; one scrape at a time, as each goes on from the last."""
        async with self._scraping:
            return await self.in_time(lambda: Response(self._metrics.text(), media_type=CONTENT_TYPE))

    def stats(self, request: Request) -> Response:
        """The last minutes, and what is now."""
        return _json(read_stats(self._clients, _minutes(request)).as_json())

    def now(self, request: Request) -> Response:
        """The page Now."""
        return _html(now_page(read_stats(self._clients, _minutes(request)).as_json()))

    def routes(self, _: Request) -> Response:
        """What `notifier routes` shows."""
        with Notifier.of(load_settings(self._path)) as notifier:
            return _json([asdict(held) for held in notifier.routes()])

    def user(self, request: Request) -> Response:
        """What waits for a user and when it should go, and what is used of each rule."""
        user, category = request.path_params["user"], request.query_params.get("category", "default")
        settings = settings_in_force(self._path)
        with connect_home(settings, user) as (shard, redis):
            inspection = Inspection(redis, settings.policies())
            standing = [asdict(each) for each in islice(inspection.line(user), MOST_SHOWN)]
            told = asdict(inspection.explain(user, category))
        return _json(told | {"line": standing} | ({"shard": shard} if shard else {}))

    def job(self, request: Request) -> Response:
        """What became of a notification."""
        job_id = request.path_params["job_id"]
        if not JOB_ID.fullmatch(job_id):
            return _problem(404, "Unknown", "a job id is 1 to 64 letters, digits, '_' and '-'")
        with Notifier.of(settings_in_force(self._path)) as notifier:
            found = notifier.status(job_id)
        if found is None:
            return _problem(404, "Unknown", "no notification of this id is known, or it is no longer kept")
        return _json(asdict(found))


def build(path: Path, token: str, *, is_open: bool = False) -> ASGIApp:
    """The application. token: what who asks must give; '' for none. is_open: by any name of the host.

    Raises SettingsError.
    """
    server = Server(path)

    def at(where: str, asked: Asked, *, page: bool = False) -> Route:
        async def endpoint(request: Request) -> Response:
            return await _answered(lambda: server.in_time(lambda: asked(request)), page=page)

        return Route(where, endpoint)

    async def metrics(request: Request) -> Response:
        return await _answered(lambda: server.metrics(request))

    async def health(_: Request) -> Response:
        return _json({"alive": True})

    async def style(_: Request) -> Response:
        return Response(STYLE, media_type="text/css", headers=HEADERS)

    routes = [
        at("/", server.now, page=True),
        Route("/style.css", style),
        Route("/metrics", metrics),
        Route("/healthz", health),
        at("/readyz", server.ready),
        at("/api/v1/stats", server.stats),
        at("/api/v1/routes", server.routes),
        at("/api/v1/users/{user:path}", server.user),
        at("/api/v1/jobs/{job_id}", server.job),
    ]
    return _Guard(Starlette(routes=routes), token, is_open=is_open)


class _Guard:
    """Lets through who has the token; /healthz and /readyz, which tell nothing, need none.

    Without a token the host must be named as this one: a page of somebody else could make its own name lead here.
    """

    def __init__(self, app: ASGIApp, token: str, *, is_open: bool) -> None:
        self._app, self._token, self._is_open = app, token.encode(), is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in {"/healthz", "/readyz"}:
            headers = dict(scope["headers"])
            if self._token and not hmac.compare_digest(_given(headers.get(b"authorization", b"")), self._token):
                refused = _problem(401, "Unauthorized", "give the token of NOTIFIER_SERVER_TOKEN")
                refused.headers["WWW-Authenticate"] = 'Basic realm="push-throttle", charset="UTF-8"'
                return await refused(scope, receive, send)
            if not (self._token or self._is_open) and _host(headers.get(b"host", b"")) not in LOCAL:
                return await _problem(421, "Misdirected", "without a token, ask localhost")(scope, receive, send)
        return await self._app(scope, receive, send)


def _given(authorization: bytes) -> bytes:
    """The token in this header: a bearer token, or the password of whichever user."""
    kind, _, value = authorization.partition(b" ")
    if kind.lower() == b"bearer":
        return value.strip()
    try:
        return base64.b64decode(value.strip(), validate=True).partition(b":")[2] if kind.lower() == b"basic" else b""
    except binascii.Error:
        return b""


def _host(header: bytes) -> str:
    name = header.decode("latin-1")
    return name.partition("]")[0] + "]" if name.startswith("[") else name.partition(":")[0]


async def _answered(read: Callable[[], Any], *, page: bool = False) -> Response:
    try:
        response: Response = await read()
    except _BusyError:
        return _problem(503, "Redis does not answer", "it took too long; try again", page=page)
    except NotifierError as error:
        return _problem(503, "Not usable", str(error), page=page)
    response.headers.update(HEADERS)
    return response


def _minutes(request: Request) -> int:
    given = request.query_params.get("minutes", "10")
    return min(MOST_MINUTES, max(1, int(given))) if given.isascii() and given.isdigit() and len(given) < 9 else 10  # noqa: PLR2004


def _json(value: Any, status: int = 200, media_type: str = "application/json") -> Response:
    def plain(of: Any) -> Any:
        return of.isoformat() if isinstance(of, datetime) else str(of)

    return Response(json.dumps(value, default=plain), status, media_type=media_type, headers=HEADERS)


def _html(text: str, status: int = 200) -> Response:
    return Response(text, status, media_type="text/html", headers=HEADERS)


def _problem(status: int, title: str, detail: str, *, page: bool = False) -> Response:
    if page:
        return _html(problem_page(title, detail), status)
    return _json({"title": title, "status": status, "detail": detail}, status, "application/problem+json")
