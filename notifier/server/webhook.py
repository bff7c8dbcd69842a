"""The webhook: posts signed events in order, each at least once.

A request has up to MAX_EVENTS events. It is repeated until the receiver takes it (2xx) or refuses it (4xx, except
AGAIN). Meanwhile later events wait; Redis keeps them for `events.keep`.
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
CONSUMER: Final = "serve"  # one process posts; by the same name it gets its unposted events at once after a restart
MAX_EVENTS: Final = 100
LEASE: Final = timedelta(minutes=5)
LOOK_EVERY_S: Final = 0.5  # for events, once all are posted; a read that waits could not be stopped
STOP_S: Final = 2.0  # how long `stop` waits for a request under way
BACKOFF: Final = ExponentialBackoff(cap=60, base=1)  # seconds
MAX_ANSWER: Final = 65_536  # bytes of an answer, up to the end of its head
AGAIN: Final = frozenset({408, 425, 429})  # the 4xx that ask for a retry


class Webhook:
    """Posts the events in a thread of its own. taken, refused: the number of events so far."""

    def __init__(self, redis: Any, settings: WebhookSettings, read_secret: Callable[[], str]) -> None:
        """read_secret: returns the key of the signature; called now and for each post. Raises SettingsError."""
        self._settings, self._secret = settings, LastGood("webhook", read_secret)
        self._url = urlsplit(settings.url)
        self._stop = threading.Event()
        self._log = structlog.get_logger("notifier.webhook")
        self.taken = self.refused = 0
        # One loop for all posts: to close a loop waits for its thread that resolves the host name, however long.
        self._runner = asyncio.Runner()
        self._thread = threading.Thread(target=self._run, args=(Partitions.around(redis),), name="webhook", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop posting. The next process posts all events that were not taken."""
        self._stop.set()
        self._thread.join(STOP_S)

    def _run(self, partitions: Partitions) -> None:
        with self._runner:
            self._post_all(partitions)

    def _post_all(self, partitions: Partitions) -> None:
        logged, failed = "", 0
        while not self._stop.is_set():
            problem, away = "", 0
            for at in partitions:
                try:
                    for batch in search_at(at, partial(_find, at.count)):
                        if not self._deliver(batch):
                            return
                except Exception as error:  # noqa: BLE001 - the thread goes on, whatever Redis holds
                    away += 1
                    problem = str(error) if isinstance(error, NotifierError) else tell_unreadable(error)
            if problem and problem != logged:
                self._log.warning("events_not_read", reason=problem)
            logged = problem
            is_away = away == len(partitions)
            self._stop.wait(BACKOFF.compute(failed) if is_away else LOOK_EVERY_S)
            failed = failed + 1 if is_away else 0

    def _deliver(self, batch: Sequence[Ended]) -> bool:
        """Post until the batch is taken or refused; False if `stop` came first."""
        body, failed = _body(batch), 0
        while not self._stop.is_set():
            try:
                timeout_s = self._settings.timeout_us / 1e6
                status = self._runner.run(post(self._url, body, self._secret().encode(), timeout_s))
                reason = f"status {status}"
            except Exception as error:  # noqa: BLE001 - the thread goes on, whatever the answer
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
    """Sign a body that is posted at this second. The receiver makes the same signature, and compares."""
    made = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={made}"


async def post(url: SplitResult, body: bytes, secret: bytes, timeout_s: float) -> int:
    """Post once; returns the status. It follows no redirect. Raises OSError, ProtocolError."""
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
    """Send a request and read the status of its answer. The caller sets the deadline."""
    tls = ssl.create_default_context() if url.scheme == "https" else None
    reader, writer = await asyncio.open_connection(url.hostname, url.port or (443 if tls else 80), ssl=tls)
    try:
        connection = h11.Connection(h11.CLIENT)
        for part in (asked, h11.Data(data=body), h11.EndOfMessage()):
            writer.write(connection.send(part) or b"")
        left = MAX_ANSWER
        while not isinstance(event := connection.next_event(), h11.Response):
            if event is h11.NEED_DATA:
                data = await reader.read(4096)
                left -= len(data)
                if left < 0:
                    raise OSError("the answer has no end")
                connection.receive_data(data)  # if nothing came, the connection is closed: the next event is an error
        return event.status_code
    finally:
        writer.transport.abort()


def _body(batch: Sequence[Ended]) -> bytes:
    return json.dumps({"events": [_plain(ended) for ended in batch]}).encode()


def _plain(ended: Ended) -> dict[str, Any]:
    """An event for JSON, without its empty fields."""
    fields = asdict(ended) | {"at": ended.at.isoformat()}
    return {name: value for name, value in fields.items() if value not in {"", None}}
