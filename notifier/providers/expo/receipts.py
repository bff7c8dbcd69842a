"""Receipts: the answers of Apple or Google to Expo, fetched some time after Expo took a message.

A ticket says only that Expo has the message. Often only the receipt names a dead token. A worker that ends does not
fetch its last receipts: the next message to such a device finds out that the token is dead.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import structlog

from notifier.notification import Device
from notifier.providers.build import Late
from notifier.providers.expo.answers import GONE, error_of

MAX_IDS: Final = 1000  # Expo's limit of a request
MAX_TOLD: Final = 50
MAX_KEPT: Final = 100_000
TRIES: Final = 4  # Expo may need half an hour; each try waits as long as the first did
Fetch: TypeAlias = Callable[[bytes], Awaitable[Mapping[str, Any] | None]]


@dataclass(frozen=True, slots=True)
class Ticket:
    """A message that Expo took. due: on the loop's clock, in seconds. tries: how often its receipt was asked for."""

    id: str
    due: float
    device: Device
    user: str
    job_id: str
    tries: int = 0


class Receipts:
    """Asks for the receipts of one app. fetch: posts a request and returns the receipts by id; None if none came."""

    def __init__(self, fetch: Fetch, after_s: float, report: Callable[[Late], None]) -> None:
        self._fetch = fetch
        self._after_s = after_s
        self._report = report
        self._tickets: deque[Ticket] = deque(maxlen=MAX_KEPT)
        self._asking: asyncio.Task[None] | None = None
        self._told: set[str] = set()
        self._log = structlog.get_logger(__name__)

    def expect(self, ticket_id: str, device: Device, user: str, job_id: str) -> None:
        loop = asyncio.get_running_loop()
        self._tickets.append(Ticket(ticket_id, loop.time() + self._after_s, device, user, job_id))
        if self._asking is None:
            self._asking = loop.create_task(self._ask())

    def close(self) -> None:
        if self._asking is not None:
            self._asking.cancel()

    async def _ask(self) -> None:
        clock = asyncio.get_running_loop().time
        while self._tickets:
            await asyncio.sleep(max(self._tickets[0].due - clock(), 0))
            due: list[Ticket] = []
            while self._tickets and self._tickets[0].due <= clock() and len(due) < MAX_IDS:
                due.append(self._tickets.popleft())
            found = await self._fetch(json.dumps({"ids": [ticket.id for ticket in due]}).encode())
            self._read(due, found or {})
        self._asking = None

    def _read(self, due: Sequence[Ticket], found: Mapping[str, Any]) -> None:
        later = asyncio.get_running_loop().time() + self._after_s
        for ticket in due:
            receipt = found.get(ticket.id)
            if isinstance(receipt, dict):
                self._take(ticket, receipt)
            elif ticket.tries + 1 < TRIES:
                again = Ticket(ticket.id, later, ticket.device, ticket.user, ticket.job_id, ticket.tries + 1)
                self._tickets.append(again)

    def _take(self, ticket: Ticket, receipt: Mapping[str, Any]) -> None:
        if receipt.get("status") == "ok":
            return
        error = error_of(receipt)
        if error == GONE:
            self._report(Late(ticket.device, GONE, ticket.user, ticket.job_id))
        elif error not in self._told and len(self._told) < MAX_TOLD:  # one line for each kind of error
            self._told.add(error)
            self._log.error("expo_receipt", reason=error or "unknown", job_id=ticket.job_id, help="reported once")
