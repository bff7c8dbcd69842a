"""The webhook: posts the events, signed, in their order, until they are taken.

Each request holds up to MAX_EVENTS events. It is repeated until the receiver answers 2xx: each event comes at least
once. A receiver that answers 4xx does not want it, and is not asked again. While one is repeated, those behind it
wait; they are kept for `events.keep`.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import ssl
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from datetime import timedelta
from functools import partial
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import h11
import structlog
from redis.backoff import ExponentialBackoff

from notifier.errors import NotifierError
from notifier.producer.events import Ended, read_ended
from notifier.producer.stream import Reader, find_batches
from notifier.scripts.keys import redis_key
from notifier.server.answers import tell_unreadable
from notifier.settings.schema_processes import WebhookSettings
from notifier.settings.secret_files import LastGood
from notifier.store.exchange import Search
from notifier.store.partitions import Partitions, search_at

GROUP: Final = "webhook"
CONSUMER: Final = "serve"  # one process posts: after a restart it is given at once what it had not posted
MAX_EVENTS: Final = 100
LEASE: Final = timedelta(minutes=5)
LOOK_EVERY_S: Final = 0.5  # for more, once all is posted: so that it can be stopped at any time
STOP_S: Final = 2.0  # how long a request that is under way is waited for
BACKOFF: Final = ExponentialBackoff(cap=60, base=1)  # seconds
MAX_ANSWER: Final = 65_536  # bytes, up to the end of its head
AGAIN: Final = frozenset({408, 425, 429})  # of the 4xx, those that ask for another try


class Webhook:
    """Posts the events, in a thread of its own. taken, refused: how many events so far."""

    def __init__(self, redis: Any, settings: WebhookSettings, read_secret: Callable[[], str]) -> None:
        """read_secret: what signs; read again for each post. Raises SettingsError, here too."""
        self._settings, self._secret = settings, LastGood("webhook", read_secret)
        self._url = urlsplit(settings.url)
        self._stop = threading.Event()
        self._log = structlog.get_logger("notifier.webhook")
        self.taken = self.refused = 0
        # Kept: the end of a loop waits for the thread that looks for a host, however long that takes.
        self._runner = asyncio.Runner()
        self._thread = threading.Thread(target=self._run, args=(Partitions.around(redis),), name="webhook", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Post no more. What was not taken is posted by the next one."""
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self, partitions: Partitions) -> None:
        with self._runner:
            self._post_all(partitions)

    def _post_all(self, partitions: Partitions) -> None:
        told, failed = "", 0
        while not self._stop.is_set():
            problem, away = "", 0
            for at in partitions:
                try:
                    for batch in search_at(at, partial(_find, at.count)):
                        if not self._deliver(batch):
                            return
                except Exception as error:  # noqa: BLE001 - nothing that is in Redis ends the thread
                    away += 1
                    problem = str(error) if isinstance(error, NotifierError) else tell_unreadable(error)
            if problem and problem != told:
                self._log.warning("events_not_read", reason=problem)
            told = problem
            is_away = away == len(partitions)
            self._stop.wait(BACKOFF.compute(failed) if is_away else LOOK_EVERY_S)
            failed = failed + 1 if is_away else 0

    def _deliver(self, batch: Sequence[Ended]) -> bool:
        """Post until it is taken or refused; False where it was to stop before."""
        body, failed = _body(batch), 0
        while not self._stop.is_set():
            try:
                timeout_s = self._settings.timeout_us / 1e6
                status = self._runner.run(post(self._url, body, self._secret().encode(), timeout_s))
                reason = f"status {status}"
            except Exception as error:  # noqa: BLE001 - nor does anything that is answered
                status, reason = 0, type(error).__name__
            if 200 <= status < 300:  # noqa: PLR2004 - HTTP
                self.taken += len(batch)
                return True
            if 400 <= status < 500 and status not in AGAIN:  # noqa: PLR2004 - HTTP
                self._log.error("webhook_refused", status=status, events=len(batch))
                self.refused += len(batch)
                return True
            self._log.warning("webhook_failed", reason=reason, events=len(batch))
            self._stop.wait(BACKOFF.compute(failed))
            failed += 1
        return False


def _find(partitions: int) -> Search[list[Ended]]:
    reader = Reader(redis_key("events"), GROUP, CONSUMER, LEASE, max_entries=MAX_EVENTS)
    return find_batches(reader, partial(read_ended, partitions))


def sign(secret: bytes, at: int, body: bytes) -> str:
    """The signature of a body that was posted at this second: the receiver makes it too, and compares."""
    made = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={made}"


async def post(url: SplitResult, body: bytes, secret: bytes, timeout_s: float) -> int:
    """Post once; returns the status. No redirection is followed. Raises OSError, ProtocolError."""
    headers = {
        "Host": url.netloc.rpartition("@")[2],
        "Content-Type": "application/json",
        "Content-Length": str(len(body)),
        "Notifier-Signature": sign(secret, int(time.time()), body),
        "Connection": "close",
    }
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    asked = h11.Request(method="POST", target=target, headers=list(headers.items()))
    return await asyncio.wait_for(_exchange(url, asked, body), timeout_s)


async def _exchange(url: SplitResult, asked: h11.Request, body: bytes) -> int:
    """Send it, and read as far as the status. Nothing here has a deadline of its own: the whole has one."""
    tls = ssl.create_default_context() if url.scheme == "https" else None
    reader, writer = await asyncio.open_connection(url.hostname, url.port or (443 if tls else 80), ssl=tls)
    try:
        connection = h11.Connection(h11.CLIENT)
        for part in (asked, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(connection.send(part) or b"")
        await writer.drain()
        left = MAX_ANSWER
        while not isinstance(event := connection.next_event(), h11.Response):
            if event is h11.NEED_DATA:
                data = await reader.read(4096)
                left -= len(data)
                if not data or left < 0:
                    raise OSError("the answer has no end" if data else "the connection was closed")
                connection.receive_data(data)
        return event.status_code
    finally:
        writer.transport.abort()


def _body(batch: Sequence[Ended]) -> bytes:
    return json.dumps({"events": [_plain(ended) for ended in batch]}).encode()


def _plain(ended: Ended) -> dict[str, Any]:
    """As JSON: what is empty is left out."""
    told = asdict(ended) | {"at": ended.at.isoformat()}
    return {name: value for name, value in told.items() if value not in {"", None}}
