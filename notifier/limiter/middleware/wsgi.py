"""Limits in front of any WSGI program: Flask, Django, Pyramid, Bottle."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from notifier.limiter.base import KeyLimiter
from notifier.limiter.middleware.guard import Guard, Verdict, WebAnswer, WebLimit
from notifier.limiter.middleware.request import of_environ

Environ: TypeAlias = dict[str, Any]
StartResponse: TypeAlias = Callable[..., Any]
App: TypeAlias = Callable[[Environ, StartResponse], Iterable[bytes]]


class WSGILimits:
    """`app = WSGILimits(app, limiter, WebLimit("api", "100/minute"))`; in Flask it goes around `app.wsgi_app`."""

    def __init__(self, app: App, limiter: KeyLimiter, *limits: WebLimit, answer: WebAnswer | None = None) -> None:
        self.app = app
        self.guard = Guard(limiter, limits, answer, awaited=False)

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        verdict = self.guard.ask(of_environ(environ))
        refusal = verdict.refusal
        if refusal is not None:
            headers = [*refusal.headers, ("Content-Length", str(len(refusal.body)))]
            start_response(f"{refusal.status} {refusal.reason}", headers)
            return [b"" if environ["REQUEST_METHOD"] == "HEAD" else refusal.body]
        answer = _Answer(self.guard, verdict, start_response)
        try:
            body = self.app(environ, answer.start)
        except Exception:
            self.guard.close(verdict, 500)
            raise
        return body if answer.is_started else answer.late(body)


class _Answer:
    """The response to one request, on its way out."""

    def __init__(self, guard: Guard, verdict: Verdict, start_response: StartResponse) -> None:
        self._guard = guard
        self._verdict = verdict
        self._start_response = start_response
        self.is_started = False

    def start(self, status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
        """The program's `start_response`."""
        self.is_started = True
        self._guard.close(self._verdict, int(status[:3]))
        headers = [*headers, *self._verdict.headers]
        return self._start_response(status, headers, exc_info) if exc_info else self._start_response(status, headers)

    def late(self, body: Iterable[bytes]) -> _Answer:
        """Pass on a body that starts its response late, as a generator does."""
        self._body, self._pieces = body, iter(body)
        return self

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            return next(self._pieces)
        except StopIteration:
            raise
        except Exception:
            if not self.is_started:
                self._guard.close(self._verdict, 500)
            raise

    def close(self) -> None:
        """Close the body, even if no piece of it was read."""
        if hasattr(self._body, "close"):
            self._body.close()
