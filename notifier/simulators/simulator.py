"""The common part of all simulators: where they listen, which faults they play, which peers they ignore."""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
import time
from abc import ABC, abstractmethod
from asyncio.trsock import TransportSocket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, ClassVar, Final
from weakref import WeakKeyDictionary, WeakSet

from notifier.simulators.certificates import Certificates
from notifier.simulators.faults import FAULTS
from notifier.simulators.orders import Orders
from notifier.simulators.wire import Arrival, Message, Playback, Reply, Scripts, WireLog
from notifier.testing.ports import free_port

HOST: Final = "127.0.0.1"


async def stop_accepting(*listeners: socket.socket | TransportSocket) -> None:
    """Accept no more connections, and let the server take over the connections of this turn of the event loop.

    asyncio never closes a connection that it accepted in the turn in which its server closes (python/cpython#109564).
    """
    for listener in listeners:
        asyncio.get_running_loop().remove_reader(listener.fileno())
    await asyncio.sleep(0)  # the server knows a connection only one turn after it was accepted


@dataclass(kw_only=True, eq=False, repr=False)
class Simulator(ABC):
    """One server. Its attributes named in `orders` may be changed at any time, also from another process.

    certificates: the ones that it shows. log: records each message. scripts: by device token, the replies. port: 0 is
        a free one.
    latency_ms: the wait before each answer. rate: how many messages a second it serves, one after the other; the
        others wait in a queue, in the order of their arrival; 0 is no limit. fail: by a fault's name, the share of
        the requests (0 to 1) that meets it; a script for the device token comes first.
    silent: no client gets another byte, and no connection is closed.
    idle_s: a connection without a request for longer than this falls silent, as if a NAT had forgotten it; 0 is
        never. wrong_name: new handshakes show a certificate for another host.
    """

    platform: ClassVar[str]
    orders: ClassVar[type[Orders]] = Orders
    names_refused: ClassVar[bool] = False  # whether a refused message has an id too

    certificates: Certificates
    log: WireLog
    scripts: Scripts | None = None
    port: int = 0
    latency_ms: float = 0
    rate: float = 0
    fail: Mapping[str, float] = field(default_factory=dict)
    idle_s: float = 0
    _running: Any = field(default=None, init=False)  # the server, while it listens

    def __post_init__(self) -> None:
        self.longest_queue_s = 0.0  # the longest wait of a message so far
        self._free_at = 0.0  # when the queue will be empty, on the monotonic clock
        self.playback = Playback({} if self.scripts is None else self.scripts)
        self.port = self.port or free_port()
        self._random = random.Random(1)  # noqa: S311 - repeatable on purpose
        self._silent = False
        self._dead: WeakSet[Any] = WeakSet()
        self._heard: WeakKeyDictionary[Any, float] = WeakKeyDictionary()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.wrong_name = False

    @property
    def url(self) -> str:
        """``https://127.0.0.1:port``, once started."""
        return f"https://{HOST}:{self.port}"

    @property
    def listening(self) -> bool:
        return self._running is not None

    @abstractmethod
    async def start(self) -> None:
        """Listen, again on the same port; raises OSError if it is taken."""

    @abstractmethod
    async def close(self) -> None:
        """Stop listening and cut all connections; may be called twice, and `start` may be called after it."""

    def cut(self) -> None:
        for connection in list(self.open_connections()):
            connection.abort()

    @abstractmethod
    def expire_tokens(self) -> None:
        """From now on refuse, as expired, every credential that was ever accepted."""

    @abstractmethod
    def open_connections(self) -> Iterable[Any]:
        """Return the open connections, as `is_dead` takes them; each has an `abort`."""

    @property
    def silent(self) -> bool:
        """Whether no client gets another byte."""
        return self._silent

    @silent.setter
    def silent(self, value: bool) -> None:
        self._silent = value
        if value:
            self._dead.update(self.open_connections())

    @property
    def wrong_name(self) -> bool:
        return self._wrong_name

    @wrong_name.setter
    def wrong_name(self, value: bool) -> None:
        self._wrong_name = value
        files = self.certificates
        self._tls.load_cert_chain(files.wrong_name_file if value else files.cert_file, files.key_file)

    def is_dead(self, connection: Any) -> bool:
        """Whether this connection never gets another byte; to be called whenever something came on it."""
        now = time.monotonic()
        idle_s = now - self._heard.get(connection, now)
        self._heard[connection] = now
        if self._silent or 0 < self.idle_s < idle_s:
            self._dead.add(connection)
        return self.is_silenced(connection)

    def is_silenced(self, connection: Any) -> bool:
        """Whether this connection was marked dead, by `is_dead` or `silent`."""
        return connection in self._dead

    def serve(self, delay_ms: float = 0) -> float:
        """Put one more message into the queue; return the seconds until its answer, with the latency."""
        wait_s = (self.latency_ms + delay_ms) / 1000
        if self.rate <= 0:
            return wait_s
        now = time.monotonic()
        self._free_at = max(self._free_at, now) + 1 / self.rate
        self.longest_queue_s = max(self.longest_queue_s, self._free_at - now)
        return wait_s + self._free_at - now

    def reply_to(self, message: Message) -> Reply:
        """Return the scripted reply, if the message could be accepted, or else the message's own."""
        scripted = self.scripted(message.token) if message.reply.status == HTTPStatus.OK else None
        return scripted or message.reply

    def record(self, at_us: int, message: Message, reply: Reply) -> None:
        status = reply.logged_status
        name = message.id if status == HTTPStatus.OK or self.names_refused else ""
        self.log.record(Arrival(at_us, self.platform, message.token, status, reply.reason, name, **message.fields))

    def scripted(self, token: str) -> Reply | None:
        """Return the scripted reply or a chance fault for a request that could be accepted; None to accept it."""
        reply = self.playback.next(token)
        if reply is None and self.fail:
            drawn = self._random.random()
            for name, share in self.fail.items():
                drawn -= share
                if drawn < 0:
                    return FAULTS[name].replies[self.platform]
        return reply
