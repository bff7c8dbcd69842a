"""Limits in Django: a decorator for single views, a middleware for all views."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.core.exceptions import BadRequest, PermissionDenied, SuspiciousOperation, SynchronousOnlyOperation
from django.core.handlers.wsgi import WSGIRequest
from django.http import Http404, HttpRequest, HttpResponse
from django.http.multipartparser import MultiPartParserError

from notifier.limiter.aio import AsyncKeyLimiter
from notifier.limiter.answers import LimitExceeded
from notifier.limiter.middleware.guard import (
    AnyLimiter,
    Guard,
    Refusal,
    Verdict,
    WebAnswer,
    WebLimit,
    check_limiter,
    exceeded,
    status_of,
)
from notifier.limiter.middleware.request import WebRequest, of_environ

View = Callable[..., Any]
WRONG: Final = (BadRequest, MultiPartParserError, SuspiciousOperation)  # errors in a client's request
KNOWN: Final = {Http404: 404, PermissionDenied: 403, **dict.fromkeys(WRONG, 400)}


def rate_limit(limiter: AnyLimiter, *limits: WebLimit, answer: WebAnswer | None = None) -> Callable[[View], View]:
    """Limit a view: `@rate_limit(limiter, WebLimit("login", "5/minute"))`.

    An async view takes an AsyncLimiter, but only under ASGI; or a Limiter, which a thread asks.
    """
    awaited = isinstance(limiter, AsyncKeyLimiter)
    guard = Guard(limiter, limits, answer, awaited=awaited)
    ask: Any = functools.partial(_ask_async, guard) if awaited else sync_to_async(guard.ask)
    close: Any = guard.close_async if awaited else sync_to_async(guard.close)

    def decorate(view: View) -> View:
        if _is_async(view):

            @functools.wraps(view)
            async def limited_async(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
                verdict = await ask(_asked(request))
                if verdict.refusal is not None:
                    return _refused(verdict.refusal)
                try:
                    response = await view(request, *args, **kwargs)
                    await close(verdict, response.status_code)
                except Exception as error:
                    await close(verdict, status_of(error, KNOWN))
                    raise
                return _headed(response, verdict)

            return limited_async

        @functools.wraps(view)
        def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            verdict = guard.ask(_asked(request))
            if verdict.refusal is not None:
                return _refused(verdict.refusal)
            try:
                response = view(request, *args, **kwargs)
                guard.close(verdict, response.status_code)
            except Exception as error:
                guard.close(verdict, status_of(error, KNOWN))
                raise
            return _headed(response, verdict)

        return limited

    return decorate


def middleware(limiter: AnyLimiter, *limits: WebLimit, answer: WebAnswer | None = None) -> Callable[[View], View]:
    """Limit all views: in a module of yours, give a name to `middleware(limiter, WebLimit("api", "100/minute"))`.

    Write that name into MIDDLEWARE, such as "shop.limits.limits". If a key needs the user, write the name below
    AuthenticationMiddleware. Under ASGI an AsyncLimiter spares Django a thread.
    """
    limit, awaited = rate_limit(limiter, *limits, answer=answer), isinstance(limiter, AsyncKeyLimiter)

    def made(get_response: View) -> View:
        limited = limit(get_response)

        async def limited_async(request: HttpRequest) -> HttpResponse:
            # Under WSGI each request has its own event loop, but connections belong to one loop.
            check_limiter(limiter, awaited=not isinstance(request, WSGIRequest))
            response: HttpResponse = await limited(request)
            return response

        return limited_async if awaited else limited

    # Django awaits a middleware that is async only, even if an inner middleware is a plain one.
    made.sync_capable, made.async_capable = not awaited, awaited  # type: ignore[attr-defined]
    return made


def answer_exceeded(get_response: View) -> View:
    """A middleware, "notifier.limiter.middleware.django.answer_exceeded": it answers 429 if `limiter.check` raises."""

    def limited(request: HttpRequest) -> Any:
        return get_response(request)

    def process_exception(_request: HttpRequest, error: Exception) -> HttpResponse | None:
        return _refused(exceeded(error)) if isinstance(error, LimitExceeded) else None

    made: View = markcoroutinefunction(limited) if iscoroutinefunction(get_response) else limited
    made.process_exception = process_exception  # type: ignore[attr-defined]
    return made


answer_exceeded.sync_capable = answer_exceeded.async_capable = True  # type: ignore[attr-defined]


def _is_async(view: View) -> bool:
    of = getattr(getattr(view, "func", None), "__self__", None)  # the view's class, if its dispatch is decorated
    # Before Python 3.12, `inspect` does not know Django's mark of async functions.
    return iscoroutinefunction(view) or bool(getattr(of, "view_is_async", False))


def _asked(request: HttpRequest) -> WebRequest:
    meta = {name: value for name, value in request.META.items() if isinstance(value, str)}
    meta.setdefault("REQUEST_METHOD", request.method or "GET")
    return replace(of_environ(meta, request), path=request.path)  # META's path is decoded already


async def _ask_async(guard: Guard, asked: WebRequest) -> Verdict:
    try:
        return await guard.ask_async(asked)
    except SynchronousOnlyOperation:  # a key needs the user: a thread loads it from the database
        await sync_to_async(lambda: [limit.asked(asked) for limit in guard.limits])()
        return await guard.ask_async(asked)


def _refused(refusal: Refusal) -> HttpResponse:
    return HttpResponse(refusal.body, status=refusal.status, headers=dict(refusal.headers))


def _headed(response: HttpResponse, verdict: Verdict) -> HttpResponse:
    for name, value in verdict.headers:
        # A response of Django has each header once. A value that is there came from an inner limit.
        response[name] = f"{response[name]}, {value}" if response.has_header(name) else value
    return response
