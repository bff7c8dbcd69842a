"""The error of `limiter.check` as a 429, in Starlette and FastAPI. `ASGILimits` limits a whole program."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from notifier.limiter.answers import LimitExceeded
from notifier.limiter.middleware.guard import exceeded


async def answer_exceeded(_request: Request, error: Exception) -> Response:
    """For `app.add_exception_handler(LimitExceeded, answer_exceeded)`: it answers 429 if `limiter.check` raises."""
    assert isinstance(error, LimitExceeded)
    refusal = exceeded(error)
    return Response(refusal.body, refusal.status, dict(refusal.headers))
