"""Limits of single views in Flask, as a decorator. `WSGILimits` limits a whole program."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flask
from werkzeug.exceptions import HTTPException

from notifier.limiter.answers import LimitExceeded
from notifier.limiter.base import KeyLimiter
from notifier.limiter.middleware.guard import Guard, Refusal, WebAnswer, WebLimit, exceeded, status_of
from notifier.limiter.middleware.request import of_environ

View = Callable[..., Any]


def rate_limit(limiter: KeyLimiter, *limits: WebLimit, answer: WebAnswer | None = None) -> Callable[[View], View]:
    """Limit a view: below `@app.route(…)` write `@rate_limit(limiter, WebLimit("login", "5/minute"))`."""
    guard = Guard(limiter, limits, answer, awaited=False)

    def decorate(view: View) -> View:
        @functools.wraps(view)
        def limited(*args: Any, **kwargs: Any) -> flask.Response:
            verdict = guard.ask(of_environ(flask.request.environ, flask.request))
            refusal = verdict.refusal
            if refusal is not None:
                return _refused(refusal)
            try:
                response = flask.make_response(flask.current_app.ensure_sync(view)(*args, **kwargs))
            except Exception as error:
                # An HTTPException that was made from a response has no code.
                status = error.get_response().status_code if isinstance(error, HTTPException) else status_of(error, {})
                guard.close(verdict, status)
                raise
            for name, value in verdict.headers:
                response.headers.add(name, value)
            guard.close(verdict, response.status_code)
            return response

        return limited

    return decorate


def answer_exceeded(error: LimitExceeded) -> flask.Response:
    """For `site.register_error_handler(LimitExceeded, answer_exceeded)`: it answers 429 if `limiter.check` raises."""
    return _refused(exceeded(error))


def _refused(refusal: Refusal) -> flask.Response:
    return flask.Response(refusal.body, refusal.status, refusal.headers)
