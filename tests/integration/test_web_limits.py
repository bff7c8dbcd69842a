"""Limits of web programs, in each framework, over HTTP."""

import asyncio
import json
from typing import Any
from urllib.parse import quote

import pytest
from django.http import HttpRequest
from django.utils.asyncio import async_unsafe
from django.utils.functional import SimpleLazyObject
from fastapi import WebSocket
from redis import Redis

from notifier import Policy
from notifier.limiter import AsyncLimiter, AsyncMemoryLimiter, Hold, Limiter, LimitExceeded, MemoryLimiter
from notifier.limiter.middleware import (
    SERVER_ERRORS,
    ASGILimits,
    WebAnswer,
    WebLimit,
    WebRequest,
    WSGILimits,
    client_address,
    user,
)
from notifier.limiter.middleware import django as of_django
from notifier.limiter.middleware import fastapi as of_fastapi
from notifier.limiter.middleware import flask as of_flask
from notifier.limiter.middleware.guard import exceeded
from notifier.testing.embedded import EmbeddedRedis
from tests.integration.web_rig import Site, answer, django_urls, fastapi_app, plain_wsgi, serve_asgi, site

START = "1700000040000000"
OF_DJANGO = ("django async", "django async class", "django async dispatch", "django async middleware")
ASYNC = ("asgi", "fastapi", "fastapi middleware", *OF_DJANGO)
KINDS = (*ASYNC, "wsgi", "late wsgi", "flask", "flask wsgi", "django", "django middleware", "django wsgi async")
NOWHERE = "redis://127.0.0.1:1"
IN_MEMORY = AsyncMemoryLimiter()
A_LIMIT = WebLimit("a", "5/minute")


class Later:
    async def __call__(self, _request: WebRequest) -> bool:
        return False


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def wrong(value: object) -> Any:
    """What a caller gives whose program is not checked for types."""
    return value


def in_memory(kind: str, **options: Any) -> Any:
    """The limiter in memory that suits a program."""
    return AsyncMemoryLimiter(**options) if kind in ASYNC else MemoryLimiter(**options)


def limiter_for(kind: str, url: str, **options: Any) -> Limiter | AsyncLimiter:
    """The limiter that suits a program; its clock stands still, so that headers say the same each time."""
    make: Any = AsyncLimiter if kind in ASYNC else Limiter
    return make.from_url(url, **{"namespace": "web", "clock": START} | options)


@pytest.mark.usefixtures("redis")
def test_what_is_admitted_and_what_is_refused(kind: str, redis_server: EmbeddedRedis) -> None:
    """Two go, with the headers of the draft; the third is a 429 that says when to come again, and why, in JSON."""
    limit = WebLimit("api", "2/minute; 100/day")
    with site(kind, limiter_for(kind, redis_server.url), limit) as served:
        first, second, third = (served.get() for _ in range(3))
    assert (first.status, second.status, third.status) == (200, 200, 429)
    for reply in (first, second, third):
        assert reply.headers["RateLimit-Policy"] == '"api-1m";q=2;w=60, "api-1d";q=100;w=86400'
    assert first.headers["RateLimit"] == '"api-1m";r=1;t=60'
    assert second.headers["RateLimit"] == third.headers["RateLimit"] == '"api-1m";r=0;t=60'
    assert third.headers["Retry-After"] == "60"
    assert third.problem == {
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "Request cannot be satisfied as assigned quota has been exceeded",
        "status": 429,
        "detail": "api-1m used up; try again in 60 s",
        "violated-policies": ["api-1m"],
    }
    assert b"hello" in first.body


@pytest.mark.usefixtures("redis")
def test_what_the_server_failed_at_does_not_count(kind: str, redis_server: EmbeddedRedis) -> None:
    """A permit of a 5xx is given back, whether the program answered so or raised; a refused one takes nothing."""
    limit = WebLimit("api", "1/minute", not_counted=SERVER_ERRORS)
    with site(kind, limiter_for(kind, redis_server.url), limit) as served:
        statuses = [served.get(route).status for route in ("broken", "raises", "hello", "hello")]
    assert statuses == [503, 500, 200, 429]


@pytest.mark.parametrize(
    ("kind", "route", "status"),
    [
        *[(kind, "exceeds", 429) for kind in ("fastapi", "flask", "django", "django async")],
        *[(kind, "suspicious", 400) for kind in ("django", "django async")],
        ("flask", "aborts", 401),
    ],
)
def test_what_the_program_refused_counts(kind: str, route: str, status: int) -> None:
    """An error that becomes the client's is no 5xx, so its permit is kept: else who guesses is never stopped."""
    with site(kind, in_memory(kind), WebLimit("api", "1/minute", not_counted=SERVER_ERRORS)) as served:
        assert [served.get(route).status, served.get().status] == [status, 429]


@pytest.mark.parametrize("kind", ["fastapi", "flask", "django", "django async"])
def test_what_another_limiter_could_not_be_asked_of_does_not_count(kind: str) -> None:
    """It is answered by 503, and what is a 5xx is given back."""
    with site(kind, in_memory(kind), WebLimit("api", "1/minute", not_counted=SERVER_ERRORS)) as served:
        assert [served.get(route).status for route in ("away", "hello", "hello")] == [503, 200, 429]


@pytest.mark.usefixtures("redis")
def test_an_error_counts_where_nothing_else_is_said(redis_server: EmbeddedRedis) -> None:
    """Without `not_counted`, what fails counts as what succeeds."""
    with site("wsgi", limiter_for("wsgi", redis_server.url), WebLimit("api", "1/minute")) as served:
        assert [served.get(route).status for route in ("broken", "hello")] == [503, 429]


@pytest.mark.parametrize(("on_error", "status"), [("raise", 503), ("hold", 503), ("permit", 200)])
def test_without_redis(kind: str, on_error: str, status: int) -> None:
    """`on_error` decides: the program answers 503 and when to come again, or goes on without headers."""
    with site(kind, limiter_for(kind, NOWHERE, on_error=on_error), WebLimit("api", "2/minute")) as served:
        reply = served.get()
    assert reply.status == status
    assert "RateLimit" not in reply.headers
    assert "RateLimit-Policy" not in reply.headers
    if status == 503:
        assert reply.headers["Retry-After"] == "1"
        assert reply.problem["type"].endswith("#temporary-reduced-capacity")


def test_how_a_program_answers(kind: str) -> None:
    """X-RateLimit fields if they are asked for, a body of one's own, and a function that is told of each refusal."""
    told: list[Any] = []
    how = WebAnswer(
        x_headers=True,
        body=lambda request, problem: {"path": request.path, "wait": problem["detail"]},
        on_refused=lambda request, names: told.append((request.path, names)),
    )
    limits = WebLimit("api", "2/minute"), WebLimit("all", "9/minute")
    with site(kind, in_memory(kind), *limits, answer=how) as served:
        replies = [served.get() for _ in range(3)]
    assert [reply.status for reply in replies] == [200, 200, 429]
    assert [reply.headers["X-RateLimit-Limit"] for reply in replies] == ["2"] * 3
    assert [reply.headers["X-RateLimit-Remaining"] for reply in replies] == ["1", "0", "0"]
    assert all(reply.headers["X-RateLimit-Reset"].isdigit() for reply in replies)
    assert replies[2].headers["Content-Type"] == "application/json"
    assert json.loads(replies[2].body)["path"] == "/hello"
    assert told == [("/hello", ["api"])]


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_a_limit_without_a_window_says_what_is_left_where_it_refuses(kind: str) -> None:
    """A burst or a gap alone counts no remaining requests; its policy is told all the same."""
    with site(kind, in_memory(kind, clock=lambda: int(START)), WebLimit("api", "burst 1 then 1/10s")) as served:
        first, second = (served.get() for _ in range(2))
    assert (first.status, second.status) == (200, 429)
    assert first.headers["RateLimit-Policy"] == second.headers["RateLimit-Policy"]
    assert (first.headers["RateLimit"], second.headers["RateLimit"]) == (None, '"api";r=0;t=10')


@pytest.mark.parametrize("kind", ["fastapi", "flask", "django", "django async"])
def test_what_check_raises_is_a_429(kind: str) -> None:
    """A `LimitExceeded` of the program itself is answered as a refusal is, and does not say of which key."""
    with site(kind, in_memory(kind), WebLimit("api", "9/minute")) as served:
        reply, away = served.get("exceeds"), served.get("away")  # as with on_error="hold"
    assert (away.status, away.problem["status"], away.headers["Retry-After"]) == (503, 503, "1")
    assert (reply.status, reply.headers["Retry-After"]) == (429, "30")
    assert reply.problem["violated-policies"] == ["5/1m"]
    assert b"secret" not in reply.body
    blocked = exceeded(LimitExceeded("secret", Hold(30_000_000, "blocked"), Policy()))
    assert (blocked.status, blocked.detail) == (429, "blocked; try again in 30 s")


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_nobody_names_himself(kind: str) -> None:
    """X-Forwarded-For changes nothing unless it is told which proxies may say so; then it is read from the right."""
    mine = in_memory(kind)
    with site(kind, mine, WebLimit("api", "1/minute")) as served:
        assert [served.get(X_Forwarded_For=f"198.51.100.{n}").status for n in range(3)] == [200, 429, 429]
    behind = WebLimit("behind", "1/minute", key=client_address(["127.0.0.1", "10.0.0.0/8"]))
    with site(kind, mine, behind) as served:
        get = lambda forwarded: served.get(X_Forwarded_For=forwarded).status  # noqa: E731
        assert [get("198.51.100.1"), get("198.51.100.1"), get("198.51.100.2")] == [200, 429, 200]
        # What a client writes stands to the left of what the proxies add.
        assert get("203.0.113.9, 198.51.100.1, 10.1.2.3") == 429
        assert [get("203.0.113.9, nonsense"), get("203.0.113.8, nonsense")] == [200, 429]


@pytest.mark.usefixtures("redis")
@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_several_limits_admit_together(kind: str, redis_server: EmbeddedRedis) -> None:
    """All limits admit a request, or none is used up by it; headers name each of them."""
    limiter = limiter_for(kind, redis_server.url)
    each = WebLimit("each", "10/minute")
    whole = WebLimit(
        "whole", "3/hour; gap 100ms", key=lambda _: "all", cost=lambda request: int(request.headers["x-n"])
    )
    with site(kind, limiter, each, whole) as served:
        first, second = served.get(X_N="2"), served.get(X_N="2")
        policies = '"each";q=10;w=60, "whole-1h";q=3;w=3600, "whole-gap";q=1'
        assert first.headers["RateLimit-Policy"] == second.headers["RateLimit-Policy"] == policies
        assert first.headers["RateLimit"] == '"each";r=9;t=60, "whole-1h";r=1;t=3600'
        assert second.status == 429
        assert second.problem["violated-policies"] == ["whole-1h"]
        assert second.headers["Retry-After"] == "3600"
        limiter._requests.clock = str(int(START) + 100_000)
        third = served.get(X_N="1")
    assert third.status == 200
    assert third.headers["RateLimit"].startswith('"each";r=8;'), "the refused one took nothing of the other limit"


@pytest.mark.parametrize("kind", ["asgi", "wsgi", "flask", "django", "django async"])
def test_some_are_exempt_and_some_may_do_more(kind: str) -> None:
    """A request is left out by `exempt` or a key of None; its rates may depend on it."""

    def rates(request: WebRequest) -> str:
        return "2/minute" if request.headers.get("x-plan") == "paid" else "1/minute"

    mine = in_memory(kind)
    limit = WebLimit(
        "api",
        rates,
        key=lambda request: request.headers.get("x-user"),
        exempt=lambda request: request.method == "HEAD" or request.path in {"/health", "/größe"},
    )
    with site(kind, mine, limit) as served:
        assert [served.get(X_User="ann").status for _ in range(2)] == [200, 429]
        assert [served.get(X_User="bob", X_Plan="paid").status for _ in range(3)] == [200, 200, 429]
        assert [served.get("health", X_User="ann").status, served.get(method="HEAD", X_User="ann").status] == [200, 200]
        assert served.get(quote("größe"), X_User="ann").status == 200
        assert served.get(quote("größe".encode().decode("latin-1")), X_User="ann").status == 429
        assert [served.get().status for _ in range(3)] == [200] * 3


def test_a_cost_that_never_fits_is_the_clients_mistake(kind: str) -> None:
    """400 and why, and no error of the program; what fits goes on."""
    mine = in_memory(kind)
    limit = WebLimit("upload", "5/minute", cost=lambda request: int(request.headers["x-n"]))
    with site(kind, mine, limit) as served:
        refused, served_one = served.get(X_N="6"), served.get(X_N="5")
    assert (refused.status, served_one.status) == (400, 200)
    assert "a cost of 6 never fits into 5/1m" in refused.problem["detail"]
    assert "Retry-After" not in refused.headers


@pytest.mark.parametrize("kind", ["asgi", "wsgi"])
def test_a_refused_head_has_no_body(kind: str) -> None:
    """HEAD is refused as GET is, without the body."""
    mine = in_memory(kind)
    with site(kind, mine, WebLimit("api", "1/minute")) as served:
        served.get()
        reply = served.get(method="HEAD")
    assert (reply.status, reply.body) == (429, b"")
    assert int(reply.headers["Content-Length"]) > 0


def test_fastapi_without_the_handler() -> None:
    """The dependency alone answers 429 with all headers and a short body."""
    limited = of_fastapi.rate_limit(AsyncMemoryLimiter(), WebLimit("api", "1/minute"))
    with serve_asgi(fastapi_app(limited)) as served:
        served.get()
        reply = served.get()
    assert (reply.status, reply.headers["Retry-After"]) == (429, "60")
    assert reply.problem == {"detail": "api used up; try again in 60 s"}


@pytest.mark.usefixtures("redis")
def test_an_async_limiter_serves_django_under_asgi_alone(redis_server: EmbeddedRedis) -> None:
    """Also around a middleware that is not async; under WSGI it is refused, as its connections would be lost."""
    limiter = AsyncLimiter.from_url(redis_server.url, namespace="web")
    with site("django async middleware around plain", limiter, WebLimit("api", "2/minute")) as served:
        assert [served.get().status for _ in range(3)] == [200, 200, 429]
    with site("django middleware", limiter, WebLimit("api", "2/minute")) as served:
        assert [served.get().status for _ in range(2)] == [500, 500]


@pytest.mark.usefixtures("redis")
def test_a_plain_limiter_serves_django_under_asgi_too(redis_server: EmbeddedRedis) -> None:
    """Django runs the middleware in a thread."""
    limiter = Limiter.from_url(redis_server.url, namespace="web")
    with site("django async middleware", limiter, WebLimit("api", "1/minute")) as served:
        assert [served.get().status for _ in range(2)] == [200, 429]


async def asgi_hello(_scope: Any, _receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": answer("hello")[1]})


async def _open_twice(limits: Any, **extensions: Any) -> list[Any]:
    """What a server is told of two web sockets that a client opens."""
    scope = {"type": "websocket", "path": "/", "query_string": b"", "headers": [], "client": ("203.0.113.7", 1)}
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    for _ in range(2):
        await limits({**scope, "extensions": extensions}, receive, send)
    return sent


DENIED = ["websocket.http.response.start", "websocket.http.response.body"]


@pytest.mark.parametrize("extension", [True, False])
def test_a_web_socket_counts_when_it_is_opened(*, extension: bool) -> None:
    """A refused one is answered 429 where the server can, and closed before it was accepted where not."""

    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "websocket.accept"})

    limits = ASGILimits(app, AsyncMemoryLimiter(), WebLimit("ws", "1/minute"))
    accepted, *refused = asyncio.run(_open_twice(limits, **({"websocket.http.response": {}} if extension else {})))
    assert accepted["headers"][0] == (b"ratelimit-policy", b'"ws";q=1;w=60')
    assert [message["type"] for message in refused] == (DENIED if extension else ["websocket.close"])
    assert refused[0].get("status") == (429 if extension else None)


def test_a_dependency_of_all_of_fastapi_counts_web_sockets_too() -> None:
    """FastAPI gives them no Request."""
    app = fastapi_app(of_fastapi.rate_limit(AsyncMemoryLimiter(), WebLimit("ws", "1/minute")))

    @app.websocket("/")
    async def _view(socket: WebSocket) -> None:
        await socket.accept()

    accepted, *refused = asyncio.run(_open_twice(app, **{"websocket.http.response": {}}))
    assert accepted["type"] == "websocket.accept"
    assert [message["type"] for message in refused] == DENIED
    assert refused[0]["status"] == 429


def test_a_body_that_was_never_asked_for_is_closed() -> None:
    """As a server does whose client has gone; the program's response had not begun."""
    closed: list[bool] = []

    class Body(list[bytes]):
        def close(self) -> None:
            closed.append(True)

    limits = WSGILimits(lambda _environ, _start: Body([b"late"]), MemoryLimiter(), A_LIMIT)
    body: Any = limits({"REQUEST_METHOD": "GET"}, lambda *_: None)
    body.close()
    assert closed == [True]


def test_who_goes_away_gets_nothing_back() -> None:
    """A client cannot free its budget by cutting its requests off."""
    scope = {"type": "http", "method": "GET", "path": "/", "headers": [], "client": ("203.0.113.7", 1)}
    limiter = AsyncMemoryLimiter()

    async def cut_off(_scope: Any, _receive: Any, _send: Any) -> None:
        raise asyncio.CancelledError

    async def send(_message: Any) -> None:
        raise AssertionError

    limits = ASGILimits(cut_off, limiter, WebLimit("api", "1/minute", not_counted=SERVER_ERRORS))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(limits(scope, send, send))  # type: ignore[arg-type]
    assert asyncio.run(limiter.count("api:{ip:203.0.113.7}", last="1m")) == 1


@pytest.mark.parametrize(
    ("make", "error", "why"),
    [
        (lambda: WebLimit("a b", "5/minute"), ValueError, "the name of a limit is"),
        (lambda: WebLimit("a", "5/minute", key=wrong("ip")), TypeError, "key and exempt are functions"),
        (lambda: WebLimit("a", "5/minute", exempt=wrong("/health")), TypeError, "exempt are functions"),
        (lambda: WebLimit("a", "5/minute", exempt=wrong(asgi_hello)), TypeError, "are plain functions"),
        (lambda: WebLimit("a", wrong(asgi_hello)), TypeError, "are plain functions"),
        (lambda: WebAnswer(body=wrong(asgi_hello)), TypeError, "are plain functions"),
        (lambda: WebAnswer(on_refused=wrong(asgi_hello)), TypeError, "are plain functions"),
        (lambda: WebLimit("a", "5/minute", exempt=wrong(Later())), TypeError, "are plain functions"),
        (lambda: WebLimit("a", "5/minute", not_counted=wrong(500)), TypeError, "not_counted is a list of statuses"),
        (lambda: ASGILimits(asgi_hello, IN_MEMORY), ValueError, r"such as WebLimit\('api', '100/minute'\)"),
        (lambda: ASGILimits(asgi_hello, IN_MEMORY, wrong("5/minute")), TypeError, "limits are WebLimit"),
        (lambda: ASGILimits(asgi_hello, IN_MEMORY, WebLimit("a", "5 a minute")), ValueError, "is not a rate"),
        (lambda: ASGILimits(asgi_hello, IN_MEMORY, WebLimit("a", "5/s", cost=6)), ValueError, "6 never fits"),
        (lambda: ASGILimits(asgi_hello, wrong("redis://localhost"), A_LIMIT), TypeError, "a limiter is"),
        (lambda: ASGILimits(asgi_hello, wrong(MemoryLimiter()), A_LIMIT), TypeError, "an AsyncLimiter or AsyncMemory"),
        (lambda: of_fastapi.rate_limit(wrong(MemoryLimiter()), A_LIMIT), TypeError, "not MemoryLimiter"),
        (
            lambda: of_fastapi.rate_limit(IN_MEMORY, WebLimit("login", "5/m", not_counted=range(200, 400))),
            ValueError,
            "login: a dependency sees only what a route raises",
        ),
        (lambda: of_flask.rate_limit(wrong(IN_MEMORY), A_LIMIT), TypeError, "not AsyncMemoryLimiter"),
        (lambda: ASGILimits(asgi_hello, IN_MEMORY, *[WebLimit("a", "5/s")] * 2), ValueError, "name of its own"),
        (lambda: WSGILimits(plain_wsgi, wrong(IN_MEMORY), A_LIMIT), TypeError, "a Limiter or MemoryLimiter, not Async"),
    ],
)
def test_what_cannot_work_is_refused_at_the_start(make: Any, error: type[Exception], why: str) -> None:
    """A wrong rate, cost, limit or limiter is told when the program starts, not by its first visitor."""
    with pytest.raises(error, match=why):
        make()


@pytest.mark.parametrize("kind", [*OF_DJANGO, "django"])
def test_django_may_ask_its_database_for_the_user(kind: str) -> None:
    """It loads `request.user` when somebody asks for it, and refuses that in an event loop."""

    def find(request: Any) -> str:
        if not hasattr(request, "loaded"):  # as AuthenticationMiddleware does
            request.loaded = SimpleLazyObject(async_unsafe(lambda: "ann"))
        return str(request.loaded)

    with site(kind, in_memory(kind), WebLimit("api", "1/minute", key=user(find))) as served:
        assert [served.get().status for _ in range(2)] == [200, 429]


def test_a_view_of_django_that_returns_nothing_has_failed() -> None:
    """Django answers 500, so its permit is given back: a second request comes as far as the first."""
    limits = WebLimit("api", "1/minute", not_counted=SERVER_ERRORS)

    async def view(_: HttpRequest) -> None: ...

    plain = of_django.rate_limit(MemoryLimiter(), limits)(lambda _: None)
    awaited = of_django.rate_limit(AsyncMemoryLimiter(), limits)(view)
    with django_urls():
        for _ in range(2):
            with pytest.raises(AttributeError, match="NoneType"):
                plain(HttpRequest())
            with pytest.raises(AttributeError, match="NoneType"):
                asyncio.run(awaited(HttpRequest()))


def test_django_says_which_limiter_a_view_takes() -> None:
    """Whether a view is async is known for certain when it is called. An async one takes any."""
    with django_urls(), pytest.raises(TypeError, match="a Limiter or MemoryLimiter, not AsyncMemoryLimiter"):
        of_django.rate_limit(IN_MEMORY, A_LIMIT)(answer)(HttpRequest())


def test_a_key_that_is_no_text_says_so() -> None:
    """A user's number is the usual one."""
    with pytest.raises(TypeError, match="the key of 'api' is text, not 42"):
        WebLimit("api", "5/minute", key=wrong(lambda _: 42)).asked(WebRequest("GET", "/", {}, None, None))


def test_uvicorn_believes_a_proxy_beside_it(redis: Redis) -> None:
    """uvicorn itself takes the client's address from a proxy on 127.0.0.1, unless it is told not to: see the docs."""
    assert redis.ping()
    limits = ASGILimits(asgi_hello, IN_MEMORY, WebLimit("api", "1/minute"))
    with serve_asgi(limits, proxy_headers=True) as served:
        assert [forwarded(served, n) for n in (1, 1, 2)] == [200, 429, 200]


def forwarded(served: Site, n: int) -> int:
    return served.get(X_Forwarded_For=f"198.51.100.{n}").status
