"""The common part of simulators that speak HTTP/1.1: how they listen, fall silent and are cut."""

from __future__ import annotations

import asyncio
import socket
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from aiohttp import web
from aiohttp.typedefs import Handler

from notifier.simulators.simulator import HOST, Simulator, stop_accepting
from notifier.simulators.wire import Message, Reply


@dataclass(kw_only=True, eq=False, repr=False)
class HttpsSimulator(Simulator):
    """A server over HTTPS. connections: the transports on which a request ever came."""

    connections: set[object] = field(default_factory=set, init=False)
    _running: tuple[web.AppRunner, socket.socket] | None = field(default=None, init=False)

    @abstractmethod
    def routes(self) -> list[web.RouteDef]:
        """Return the handlers by their paths."""

    async def start(self) -> None:
        listener = socket.create_server((HOST, self.port))
        app = web.Application(middlewares=[self._hear])
        app.router.add_routes(self.routes())
        # With handler_cancellation, a request that gets no answer ends with its connection.
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.2, handler_cancellation=True)
        await runner.setup()
        await web.SockSite(runner, listener, ssl_context=self._tls, backlog=1024).start()
        self._running = runner, listener

    async def close(self) -> None:
        running, self._running = self._running, None
        if running is not None:
            runner, listener = running
            await stop_accepting(listener)
            await runner.cleanup()

    def open_connections(self) -> Iterable[asyncio.Transport]:
        server = self._running[0].server if self._running is not None else None
        handlers = server.connections if server is not None else ()
        return [handler.transport for handler in handlers if handler.transport is not None]

    @web.middleware
    async def _hear(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if self.is_dead(request.transport):  # also for a path that nothing serves
            await asyncio.get_running_loop().create_future()  # until the client hangs up
        return await handler(request)

    async def _read(self, request: web.Request) -> bytes:
        body = await request.read()
        if request.transport is not None:
            self.connections.add(request.transport)  # not the port, which another may have later
        return body

    def _read_message(self, request: web.Request, body: bytes) -> Message:
        raise NotImplementedError

    def _respond(self, reply: Reply, message_id: str) -> web.Response:
        raise NotImplementedError

    async def _serve_message(self, request: web.Request) -> web.StreamResponse:
        body = await self._read(request)
        at_us = time.time_ns() // 1000
        message = self._read_message(request, body)
        reply = self.reply_to(message)
        self.record(at_us, message, reply)
        return await self._answer(request, reply, self.serve(reply.delay_ms), lambda: self._respond(reply, message.id))

    async def _answer(
        self, request: web.Request, reply: Reply, delay_s: float, respond: Callable[[], web.Response]
    ) -> web.Response:
        """Return the response after the delay; never, or with the connection cut, if there is to be no answer.

        respond: makes it in the service's own form, unless the reply is the HTML page of a proxy.
        """
        if delay_s:
            await asyncio.sleep(delay_s)
        if reply.silent or self.is_silenced(request.transport):
            await asyncio.get_running_loop().create_future()
        if reply.drop and request.transport is not None:
            request.transport.abort()  # the response is never sent
        if not reply.reason.startswith("<"):
            return respond()
        headers = {**reply.all_headers(), "Content-Type": "text/html"}
        return web.Response(status=reply.status, text=reply.reason, headers=headers)
