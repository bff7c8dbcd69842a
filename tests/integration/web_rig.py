"""One small web program in each framework, served over HTTP on a port of this machine.

`/hello` answers 200, `/broken` 503, `/raises` raises; each route stands behind the limits that a test gives.
"""

import http.client
import json
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any
from wsgiref.simple_server import ServerHandler, WSGIRequestHandler, make_server

import django
import fastapi
import flask
import uvicorn
from django.conf import settings
from django.core.exceptions import TooManyFieldsSent
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.test.utils import override_settings
from django.urls import path
from django.utils.decorators import method_decorator
from django.views import View

from notifier.limiter import AsyncLimiter, Hold, Limiter, LimitExceeded, Policy
from notifier.limiter.middleware import ASGILimits, WSGILimits
from notifier.limiter.middleware import django as of_django
from notifier.limiter.middleware import fastapi as of_fastapi
from notifier.limiter.middleware import flask as of_flask
from notifier.limiter.protocol import UNREACHABLE

ROUTES = ("hello", "broken", "raises")


@dataclass
class Reply:
    """What came back."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def problem(self) -> Any:
        assert self.headers["Content-Type"] == "application/problem+json"
        return json.loads(self.body)


@dataclass
class Site:
    """A program that is being served."""

    port: int

    def get(self, route: str = "hello", *, method: str = "GET", **headers: str) -> Reply:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            names = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, f"/{route}", headers=names)
            response = connection.getresponse()
            return Reply(response.status, response.headers, response.read())
        finally:
            connection.close()


def answer(route: str) -> tuple[int, bytes]:
    if route == "exceeds":
        raise LimitExceeded("secret", Hold(30_000_000, "5/1m"), Policy())
    if route == "away":
        raise LimitExceeded("secret", Hold(1_000_000, UNREACHABLE), Policy())
    if route == "raises":
        raise RuntimeError("as the test wants")
    if route == "suspicious":
        raise TooManyFieldsSent
    return (503 if route == "broken" else 200), b"hello"


async def plain_asgi(scope: Any, _receive: Any, send: Any) -> None:
    status, body = answer(scope["path"].strip("/"))
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": body})


def plain_wsgi(environ: Any, start_response: Any) -> list[bytes]:
    status, body = answer(environ["PATH_INFO"].strip("/"))
    start_response(f"{status} Whatever", [("Content-Type", "text/plain")])
    return [body]


def late_wsgi(environ: Any, start_response: Any) -> Iterator[bytes]:
    """A generator: its response starts when its first piece is asked for."""
    yield from plain_wsgi(environ, start_response)


def fastapi_app(*dependencies: Any, handler: bool = False) -> fastapi.FastAPI:
    app = fastapi.FastAPI(dependencies=[fastapi.Depends(each) for each in dependencies])
    if handler:
        app.add_exception_handler(of_fastapi.RateLimitedError, of_fastapi.answer_refused)
        app.add_exception_handler(LimitExceeded, of_fastapi.answer_exceeded)

    @app.get("/{route}")
    async def view(route: str) -> str:
        status, body = answer(route)
        if status != 200:
            raise fastapi.HTTPException(status)
        return body.decode()

    return app


def flask_app(decorate: Callable[[Any], Any] = lambda view: view) -> flask.Flask:
    app = flask.Flask("rig")
    app.logger.disabled = True
    app.register_error_handler(LimitExceeded, of_flask.answer_exceeded)

    @app.route("/<route>")
    @decorate
    def view(route: str) -> tuple[bytes, int]:
        if route == "aborts":
            flask.abort(flask.make_response("no", 401))
        status, body = answer(route)
        return body, status

    return app


@contextmanager
def django_urls(
    decorate: Callable[[Any], Any] = lambda view: view, *, is_async: bool = False, of_class: str = "", **more: Any
) -> Any:
    if not settings.configured:
        settings.configure(ALLOWED_HOSTS=["*"], SECRET_KEY="x", LOGGING_CONFIG=None, DEBUG=False)
        django.setup()

    async def async_view(_request: Any, route: str) -> HttpResponse:
        status, body = answer(route)
        return HttpResponse(body, status=status)

    def plain_view(_request: Any, route: str) -> HttpResponse:
        status, body = answer(route)
        return HttpResponse(body, status=status)

    class ClassView(View):
        async def get(self, request: Any, route: str) -> HttpResponse:
            return await async_view(request, route)

    urls, view = ModuleType("rig_urls"), async_view if is_async else plain_view
    if of_class == "dispatch":
        limited: Any = method_decorator(decorate, name="dispatch")(ClassView).as_view()
    else:
        limited = decorate(ClassView.as_view() if of_class else view)
    urls.urlpatterns = [path("<str:route>", limited)]  # type: ignore[attr-defined]
    exceeds = "notifier.limiter.middleware.django.answer_exceeded"
    with override_settings(ROOT_URLCONF=urls, **{"MIDDLEWARE": [exceeds]} | more):
        yield


def plain_middleware(get_response: Any) -> Any:
    """As many have it: Django runs it, and all around it that may be plain, in a thread."""

    def plain(request: Any) -> Any:
        return get_response(request)

    return plain


class QuietHandler(ServerHandler):
    def log_exception(self, exc_info: Any) -> None:
        """A test that makes a program raise need not read of it."""


class QuietRequests(WSGIRequestHandler):
    def log_message(self, *_arguments: Any) -> None:
        """Nor of each request."""

    def handle(self) -> None:
        self.raw_requestline = self.rfile.readline(65537)
        if self.parse_request():
            handler = QuietHandler(self.rfile, self.wfile, sys.stderr, self.get_environ(), multithread=False)
            handler.request_handler = self  # type: ignore[attr-defined]
            handler.run(self.server.get_app())  # type: ignore[attr-defined]


@contextmanager
def serve_wsgi(app: Any) -> Iterator[Site]:
    """Serve a WSGI program with the server of the standard library."""
    with make_server("127.0.0.1", 0, app, handler_class=QuietRequests) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield Site(server.server_port)
        finally:
            server.shutdown()
            thread.join()


def closing(app: Any, limiter: Any) -> Any:
    """The same program; it closes its limiter when it ends, in the loop that opened its connections."""

    async def lived(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await app(scope, receive, send)
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        if isinstance(limiter, AsyncLimiter):
            await limiter.aclose()
        await send({"type": "lifespan.shutdown.complete"})

    return lived


@contextmanager
def serve_asgi(app: Any, limiter: Any = None, **options: Any) -> Iterator[Site]:
    """Serve an ASGI program with uvicorn."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        options = {"proxy_headers": False, "lifespan": "on", "ws": "none", "log_config": None} | options
        server = uvicorn.Server(uvicorn.Config(closing(app, limiter), log_level="critical", **options))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Site(listener.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join()


@contextmanager
def site(kind: str, limiter: Any, *limits: Any, answer: Any = None) -> Iterator[Site]:
    """The program of this kind behind limits, being served."""
    how = {"answer": answer}
    with ExitStack() as stack:
        if isinstance(limiter, Limiter):
            stack.callback(limiter.close)
        if kind == "asgi":
            served = serve_asgi(ASGILimits(plain_asgi, limiter, *limits, **how), limiter)
        elif kind == "fastapi":
            served = serve_asgi(fastapi_app(of_fastapi.rate_limit(limiter, *limits, **how), handler=True), limiter)
        elif kind == "fastapi middleware":
            app = fastapi_app()
            app.add_middleware(ASGILimits, limiter, *limits, **how)
            served = serve_asgi(app, limiter)
        elif kind in {"wsgi", "late wsgi"}:
            served = serve_wsgi(WSGILimits(plain_wsgi if kind == "wsgi" else late_wsgi, limiter, *limits, **how))
        elif kind == "flask":
            served = serve_wsgi(flask_app(of_flask.rate_limit(limiter, *limits, **how)))
        elif kind == "flask wsgi":
            flask_one = flask_app()
            flask_one.wsgi_app = WSGILimits(flask_one.wsgi_app, limiter, *limits, **how)  # type: ignore[method-assign]
            served = serve_wsgi(flask_one)
        elif kind == "django wsgi async":
            stack.enter_context(django_urls(of_django.rate_limit(limiter, *limits, **how), is_async=True))
            served = serve_wsgi(WSGIHandler())
        elif kind in {"django", "django async", "django async class", "django async dispatch"}:
            is_async, limited = kind != "django", of_django.rate_limit(limiter, *limits, **how)
            of_class = kind.removeprefix("django async ") if is_async and kind != "django async" else ""
            stack.enter_context(django_urls(limited, is_async=is_async, of_class=of_class))
            served = serve_asgi(ASGIHandler(), limiter) if is_async else serve_wsgi(WSGIHandler())
        else:
            assert kind in {"django middleware", "django async middleware", "django async middleware around plain"}
            is_async, inner = kind != "django middleware", ["rig_limits.plain"] * kind.endswith("plain")
            module = sys.modules.setdefault("rig_limits", ModuleType("rig_limits"))
            module.limits = of_django.middleware(limiter, *limits, **how)  # type: ignore[attr-defined]
            module.plain = plain_middleware  # type: ignore[attr-defined]
            stack.enter_context(django_urls(is_async=is_async, MIDDLEWARE=["rig_limits.limits", *inner]))
            served = serve_asgi(ASGIHandler(), limiter) if is_async else serve_wsgi(WSGIHandler())
        yield stack.enter_context(served)
