"""Limits of single views in Flask, as a decorator. Of a whole program: `WSGILimits`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flask
from werkzeug.exceptions import HTTPException

from notifier.limiter.middleware.guard import Guard, WebLimit
from notifier.limiter.middleware.request import of_environ
from notifier.limiter.sync import KeyLimiter

View = Callable[..., Any]


def rate_limit(limiter: KeyLimiter, *limits: WebLimit) -> Callable[[View], View]:
    """Limit a view: below `@app.route(…)` write `@rate_limit(limiter, WebLimit("login", "5/minute"))`."""
    guard = Guard(limiter, limits)

    def decorate(view: View) -> View:
        @functools.wraps(view)
        def limited(*args: Any, **kwargs: Any) -> flask.Response:
            verdict = guard.ask(of_environ(flask.request.environ, flask.request))
            refusal = verdict.refusal
            if refusal is not None:
                return flask.Response(refusal.body, refusal.status, refusal.headers)
            try:
                response = flask.make_response(flask.current_app.ensure_sync(view)(*args, **kwargs))
            except Exception as error:
                guard.close(verdict, (error.code if isinstance(error, HTTPException) else None) or 500)
                raise
            for name, value in verdict.headers:
                response.headers.add(name, value)
            guard.close(verdict, response.status_code)
            return response

        return limited

    return decorate
