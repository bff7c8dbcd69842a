"""The webhook: posts the events, signed, in their order, until they are taken.

Each request holds up to MAX_EVENTS events. It is repeated until the receiver answers 2xx: each event comes at least
once. A receiver that answers 4xx does not want it, and is not asked again. While one is repeated, those behind it
wait; they are kept for `events.keep`.
"""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import Any, Final
from urllib.parse import SplitResult, urlsplit

import structlog
from redis import Redis

from notifier.errors import NotifierError
from notifier.producer.events import Ended, find_batches
from notifier.settings.schema import WebhookSettings
from notifier.settings.secret_files import LastGood
from notifier.store.exchange import search

GROUP: Final = "webhook"
CONSUMER: Final = "serve"  # one process posts: after a restart it is given at once what it had not posted
MAX_EVENTS: Final = 100
LEASE: Final = timedelta(minutes=5)
LOOK_EVERY_S: Final = 0.5  # for more, once all is posted: so that it can be stopped at any time
STOP_S: Final = 2.0  # how long a request that is under way is waited for
BACKOFF_S: Final = (1.0, 60.0)
AGAIN: Final = frozenset({408, 425, 429})  # of the 4xx, those that ask for another try


class Webhook:
    """Posts the events of each Redis, each in a thread of its own. taken, refused: how many events so far."""

    def __init__(self, clients: Mapping[str, Redis], settings: WebhookSettings, read_secret: Callable[[], str]) -> None:
        """read_secret: what signs; read again for each post. Raises SettingsError, here too."""
        self._settings, self._secret = settings, LastGood("webhook", read_secret)
        self._url = urlsplit(settings.url)
        self._stop = threading.Event()
        self._log = structlog.get_logger("notifier.webhook")
        self.taken = self.refused = 0
        self._threads = [
            threading.Thread(target=self._run, args=(redis,), name=f"webhook {name}".rstrip(), daemon=True)
            for name, redis in clients.items()
        ]

    def start(self) -> None:
        """Begin to post."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Post no more. What was not taken is posted by the next one."""
        self._stop.set()
        for thread in self._threads:
            thread.join(STOP_S)

    def _run(self, redis: Redis) -> None:
        timeout_s = redis.connection_pool.connection_kwargs.get("socket_timeout")
        waits = _Backoff(self._stop)
        while not self._stop.is_set():
            try:
                found = find_batches(GROUP, CONSUMER, LEASE, max_events=MAX_EVENTS, follow=False, timeout_s=timeout_s)
                for batch in search(redis, found):
                    if not self._deliver(batch):
                        return
                waits.reset()
                self._stop.wait(LOOK_EVERY_S)
            except NotifierError as error:
                self._log.warning("events_not_read", reason=str(error))
                waits.wait()

    def _deliver(self, batch: Sequence[Ended]) -> bool:
        """Post until it is taken or refused; False where it was to stop before."""
        body, waits = _body(batch), _Backoff(self._stop)
        while not self._stop.is_set():
            try:
                status = post(self._url, body, self._secret().encode(), self._settings.timeout_us / 1e6)
            except (OSError, http.client.HTTPException) as error:
                self._log.warning("webhook_failed", reason=type(error).__name__, events=len(batch))
                waits.wait()
                continue
            if 200 <= status < 300:  # noqa: PLR2004 - HTTP
                self.taken += len(batch)
                return True
            if 400 <= status < 500 and status not in AGAIN:  # noqa: PLR2004 - HTTP
                self._log.error("webhook_refused", status=status, events=len(batch))
                self.refused += len(batch)
                return True
            self._log.warning("webhook_failed", reason=f"status {status}", events=len(batch))
            waits.wait()
        return False


class _Backoff:
    def __init__(self, stop: threading.Event) -> None:
        self._stop, self._next_s = stop, BACKOFF_S[0]

    def wait(self) -> None:
        self._stop.wait(self._next_s)
        self._next_s = min(2 * self._next_s, BACKOFF_S[1])

    def reset(self) -> None:
        self._next_s = BACKOFF_S[0]


def sign(secret: bytes, at: int, body: bytes) -> str:
    """The signature of a body that was posted at this second: the receiver makes it too, and compares."""
    made = hmac.new(secret, f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    return f"t={at},v1={made}"


def post(url: SplitResult, body: bytes, secret: bytes, timeout_s: float, clock: Callable[[], float] = time.time) -> int:
    """Post once; returns the status. No redirection is followed. Raises OSError, HTTPException."""
    kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
    connection = kind(url.hostname or "", url.port, timeout=timeout_s)
    headers = {"Content-Type": "application/json", "Notifier-Signature": sign(secret, int(clock()), body)}
    try:
        connection.request("POST", (url.path or "/") + (f"?{url.query}" if url.query else ""), body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def _body(batch: Sequence[Ended]) -> bytes:
    return json.dumps({"events": [_plain(ended) for ended in batch]}).encode()


def _plain(ended: Ended) -> dict[str, Any]:
    """As JSON: what is empty is left out."""
    told = asdict(ended) | {"at": ended.at.isoformat()}
    return {name: value for name, value in told.items() if value not in {"", None}}
