"""Limits of single routes in FastAPI, as a dependency."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from http import HTTPStatus

from fastapi import HTTPException, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException as StarletteHTTPException
from starlette.requests import HTTPConnection, Request

from notifier.limiter.aio import AsyncKeyLimiter
from notifier.limiter.middleware.guard import Guard, Refusal, WebAnswer, WebLimit, status_of
from notifier.limiter.middleware.request import of_scope
from notifier.limiter.middleware.starlette import answer_exceeded

__all__ = ["RateLimitedError", "answer_exceeded", "answer_refused", "rate_limit"]

INVALID = 422


class RateLimitedError(HTTPException):
    """A request that was refused: 429 with all headers. See `answer_refused` for the whole body."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.status, refusal.detail, dict(refusal.headers))
        self.refusal = refusal


def rate_limit(
    limiter: AsyncKeyLimiter, *limits: WebLimit, answer: WebAnswer | None = None
) -> Callable[[HTTPConnection, Response], AsyncIterator[None]]:
    """A dependency: `@app.post("/login", dependencies=[Depends(rate_limit(limiter, WebLimit("login", "5/minute")))])`.

    Each request counts once. A route that returns its own Response gets no RateLimit headers, and `not_counted` sees
    only what a route raises, not the statuses that it returns. `ASGILimits` has neither limitation.

    Raises ValueError for statuses of `not_counted` below 300, which no route raises.
    """
    guard = Guard(limiter, limits, answer, awaited=True)
    for limit in limits:
        if any(status < HTTPStatus.MULTIPLE_CHOICES for status in limit.not_counted):
            why = "a dependency sees only what a route raises: not_counted begins at 300; ASGILimits sees all statuses"
            raise ValueError(f"{limit.name}: {why}")

    async def limited(request: HTTPConnection, response: Response) -> AsyncIterator[None]:
        verdict = await guard.ask_async(of_scope(request.scope, request))
        if verdict.refusal is not None:
            raise RateLimitedError(verdict.refusal)
        for name, value in verdict.headers:
            response.headers.append(name, value)
        try:
            yield
        except Exception as error:
            await guard.close_async(verdict, _status(error))
            raise

    return limited


async def answer_refused(_request: Request, error: Exception) -> Response:
    """For `app.add_exception_handler(RateLimitedError, answer_refused)`: the body names the limits that are used up."""
    assert isinstance(error, RateLimitedError)
    return Response(error.refusal.body, error.refusal.status, dict(error.refusal.headers))


def _status(error: Exception) -> int:
    if isinstance(error, StarletteHTTPException):
        return error.status_code
    return status_of(error, {RequestValidationError: INVALID})
