"""Limits in front of any ASGI program: Starlette, FastAPI, Quart, Django, Litestar."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from notifier.limiter.aio import AsyncKeyLimiter
from notifier.limiter.middleware.guard import Guard, Refusal, WebAnswer, WebLimit
from notifier.limiter.middleware.request import of_scope

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


class ASGILimits:
    """`app = ASGILimits(app, limiter, WebLimit("api", "100/minute"))`; also by `add_middleware`.

    A web socket counts when it is opened.
    """

    def __init__(self, app: App, limiter: AsyncKeyLimiter, *limits: WebLimit, answer: WebAnswer | None = None) -> None:
        self.app = app
        self.guard = Guard(limiter, limits, answer, awaited=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self.app(scope, receive, send)
            return
        verdict = await self.guard.ask_async(of_scope(scope))
        if verdict.refusal is not None:
            await _refuse(verdict.refusal, scope, receive, send)
            return
        status: int | None = None
        headers = [(name.lower().encode(), value.encode()) for name, value in verdict.headers]

        async def send_on(message: Message) -> None:
            nonlocal status
            if message["type"] in {"http.response.start", "websocket.http.response.start", "websocket.accept"}:
                status = message.get("status", 101)
                await self.guard.close_async(verdict, status)  # before the client has the answer and asks again
                message = {**message, "headers": [*message.get("headers", ()), *headers]}
            elif message["type"] == "websocket.close" and status is None:
                status = 403
                await self.guard.close_async(verdict, status)
            await send(message)

        try:
            await self.app(scope, receive, send_on)
        except Exception:
            # Not BaseException: if the client goes away, its permit stays counted.
            if status is None:
                await self.guard.close_async(verdict, 500)
            raise
        if status is None:
            await self.guard.close_async(verdict, 500)


async def _refuse(refusal: Refusal, scope: Scope, receive: Receive, send: Send) -> None:
    kind = "http.response"
    if scope["type"] == "websocket":
        await receive()
        if "websocket.http.response" not in scope.get("extensions", {}):
            await send({"type": "websocket.close", "code": 1013, "reason": refusal.reason})
            return
        kind = "websocket.http.response"
    headers = [*refusal.headers, ("Content-Length", str(len(refusal.body)))]
    raw = [(name.lower().encode(), value.encode()) for name, value in headers]
    await send({"type": f"{kind}.start", "status": refusal.status, "headers": raw})
    await send({"type": f"{kind}.body", "body": b"" if scope.get("method") == "HEAD" else refusal.body})
