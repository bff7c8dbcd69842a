"""Limits in Django: of single views as a decorator, of all as a middleware."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from django.core.exceptions import BadRequest, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse

from notifier.limiter.middleware.guard import AnyLimiter, Guard, Refusal, Verdict, WebLimit
from notifier.limiter.middleware.request import WebRequest, of_environ

View = Callable[..., Any]


def rate_limit(limiter: AnyLimiter, *limits: WebLimit) -> Callable[[View], View]:
    """Limit a view, plain or async: `@rate_limit(limiter, WebLimit("login", "5/minute"))`."""
    guard = Guard(limiter, limits)

    def decorate(view: View) -> View:
        if inspect.iscoroutinefunction(view):

            @functools.wraps(view)
            async def limited_async(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
                verdict = await guard.ask_async(_asked(request))
                if verdict.refusal is not None:
                    return _refused(verdict.refusal)
                try:
                    response = await view(request, *args, **kwargs)
                except Exception as error:
                    await guard.close_async(verdict, _status(error))
                    raise
                await guard.close_async(verdict, response.status_code)
                return _headed(response, verdict)

            return limited_async

        @functools.wraps(view)
        def limited(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
            verdict = guard.ask(_asked(request))
            if verdict.refusal is not None:
                return _refused(verdict.refusal)
            try:
                response = view(request, *args, **kwargs)
            except Exception as error:
                guard.close(verdict, _status(error))
                raise
            guard.close(verdict, response.status_code)
            return _headed(response, verdict)

        return limited

    return decorate


def middleware(limiter: AnyLimiter, *limits: WebLimit) -> Callable[[View], View]:
    """Limit all views: in a module of yours, give a name to `middleware(limiter, WebLimit("api", "100/minute"))`.

    Write that name into MIDDLEWARE, such as "shop.limits.limits". If a key asks for the user, it goes below
    AuthenticationMiddleware.
    """
    return rate_limit(limiter, *limits)


def _asked(request: HttpRequest) -> WebRequest:
    meta = {name: value for name, value in request.META.items() if isinstance(value, str)}
    meta.setdefault("REQUEST_METHOD", request.method or "GET")
    return of_environ(meta, request)


def _refused(refusal: Refusal) -> HttpResponse:
    return HttpResponse(refusal.body, status=refusal.status, headers=dict(refusal.headers))


def _headed(response: HttpResponse, verdict: Verdict) -> HttpResponse:
    for name, value in verdict.headers:
        # A response of Django has each header once; what was there came from a limit within this one.
        response[name] = f"{response[name]}, {value}" if response.has_header(name) else value
    return response


def _status(error: Exception) -> int:
    known = {Http404: 404, PermissionDenied: 403, BadRequest: 400}
    return next((status for kind, status in known.items() if isinstance(error, kind)), 500)
