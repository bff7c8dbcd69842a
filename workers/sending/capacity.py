"""Capacity: how many sends may be under way at once by each route, learnt from how long its answers take.

A provider that serves 50 messages a second answers 500 that were sent at once over ten seconds: most of them run into
their timeout, and nobody knows what became of them. With 25 at once it serves as many a second, and each is answered
within half a second. Messages over the limit are not leased: they wait in Redis, see `routes.lua`.

The algorithm is of the family of TCP Vegas (Brakmo and Peterson, 1994), which Netflix's concurrency-limits brought to
requests (https://github.com/Netflix/concurrency-limits, `VegasLimit`, `Gradient2Limit`, `AIMDLimit`): the shortest time
an answer took lately (`base`) counts as that of an idle server; any time beyond it is time in the server's queue.
While the queue is short the limit grows, while it is long the limit shrinks. From LEDBAT (RFC 6817) it has two things.
The bar for the queue is a time, not a ratio: all that matters here is the distance to the timeout, and a server
that answers in 1 ms may as well answer in 3. And of several answers the quickest counts: a queue delays all, while the
turn of a device, a new connection or one slow message delays some. For the same reason an answer that a later one has
overtaken does not count. As in TCP, a send that ran into its timeout leaves a limit of one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Final

from notifier.providers.contract import Answer, Outcome

FIRST: Final = 20  # the limit of an unknown route; a server that handles 4 sends a second answers 20 in 5 s
QUEUE: Final = 1 / 10  # of the timeout: how long answers may stand in the server's queue
CALM: Final = 1 / 4  # of QUEUE: below it the limit grows by one with each answer, above it by one in a round trip
BASE: Final = 1 / 2  # of the timeout: an answer that takes longer is late, whatever an idle server takes
KEPT: Final = (0.5, 0.9)  # bounds of what a shrinking limit keeps; below 1, so that the queue runs empty now and then
ROUND: Final = (4, 50)  # the fewest and the most answers that are judged together
IN_VAIN: Final = 2  # if the limit shrinks this often and the answers get no quicker, `base` is wrong
BASE_S: Final = 30.0  # `base` is the shortest time in the current period of this length and in the one before
MAX_SERVICES: Final = 1000
LATE: Final = frozenset({"Timeout", "NoStream"})  # the reasons of a client that gave up waiting for the provider
FORGET_S: Final = 60.0  # after this time without a send, what was learnt of a route is out of date


class RouteLimit:
    """The limit of one route: how many sends may be under way at once.

    max_in_flight: the limit never exceeds it. timeout_s: when a send without an answer ends. Times are in seconds on
    the caller's clock.
    """

    def __init__(self, *, max_in_flight: int, timeout_s: float) -> None:
        self.max_in_flight = max_in_flight
        self.timeout_s = timeout_s
        self._queue_s, self._base_max_s = timeout_s * QUEUE, timeout_s * BASE
        self.in_flight = self._peak = 0
        self._used_at = self._changed_at = self._overtaken = -math.inf
        self._quickest, self._round = math.inf, ROUND[0]
        self._forget()

    @property
    def limit(self) -> int:
        """How many may be under way at once."""
        return int(self._limit)

    def room(self, unbegun: int = 0) -> int:
        """How many more sends may begin; 0 until a quarter of the limit is free, so that sends go in batches.

        unbegun: how many other sends are about to begin.
        """
        room = self.limit - self.in_flight - unbegun
        return room if room >= self.limit // 4 else 0

    def begin(self, now: float) -> None:
        if not self.in_flight and now - self._used_at > FORGET_S:
            self._forget()
        self.in_flight += 1
        self._peak = max(self._peak, self.in_flight)

    def end(self, began: float, now: float, *, answered: bool = False, late: bool = False) -> None:
        """Note the end of a send. answered: the provider answered. late: no answer came in time.

        Neither: this end says nothing about how busy the provider is.
        """
        self.in_flight -= 1
        self._used_at = now
        if began < self._overtaken:
            return
        if late:
            self._shrink(0.0, now)
        elif answered:
            self._overtaken = began
            if began >= self._changed_at:  # else the answer shows the time before the limit shrank
                self._answers += 1
                self._quickest = min(self._quickest, now - began)
                if self._answers >= self._round:
                    self._judge(now)

    def end_with(self, answer: Answer | None, began: float, now: float) -> None:
        """As `end`, by the answer of the provider's client; None if the client raised."""
        answered = answer is not None and (answer.status is not None or answer.outcome is Outcome.DELIVERED)
        self.end(began, now, answered=answered, late=answer is not None and answer.reason in LATE)

    def _forget(self) -> None:
        self._limit = float(min(FIRST, self.max_in_flight))
        self._base = self._base_before = math.inf
        self._base_until = -math.inf
        self._changed_at = self._overtaken = -math.inf
        self._expected = math.inf  # if answers take longer than this, the limit shrank in vain
        self._vain = 0
        self._new_round()

    def _new_round(self) -> None:
        self._answers, self._quickest, self._peak = 0, math.inf, self.in_flight
        self._round = min(max(self.limit // 2, ROUND[0]), ROUND[1])

    def _judge(self, now: float) -> None:
        """Change the limit by what a round of answers has shown."""
        took, used = self._quickest, self._peak * 2 >= self.limit
        if now >= self._base_until:
            self._base_before, self._base, self._base_until = self._base, math.inf, now + BASE_S
        self._base = min(self._base, took)
        self._note_effect(took)
        base = min(self._base, self._base_before)
        queued = took - base
        if queued > min(self._queue_s, max(self._base_max_s - base, self._queue_s * CALM)):
            kept = min(max(KEPT[1] * base / took, KEPT[0]), KEPT[1])
            self._expected = took * (1 + kept) / 2
            self._shrink(kept, now)
            return
        if used:  # else the effect of more sends is unknown
            self._limit += self._answers * (1.0 if queued < self._queue_s * CALM else 1 / self._limit)
            self._limit = min(self._limit, float(self.max_in_flight))
        self._new_round()

    def _note_effect(self, took: float) -> None:
        """Replace `base` if the limit shrank IN_VAIN times and answers are no quicker: our sends cause no queue."""
        self._vain = self._vain + 1 if took > self._expected else 0
        self._expected = math.inf
        if self._vain >= IN_VAIN:
            self._vain = 0
            self._base, self._base_before = min(took, self._base_max_s), math.inf

    def _shrink(self, kept: float, now: float) -> None:
        self._limit = max(1.0, self._limit * kept)
        self._changed_at = now
        self._new_round()


class Capacity:
    """The limits of one worker's routes. A route without a limit may have as many sends under way as the worker.

    If a route leads to many services (`at_service`), each has a limit of its own, like that of the route.
    """

    def __init__(self, limits: Mapping[str, RouteLimit]) -> None:
        self._routes = dict(limits)
        self._limits = dict(limits)

    def begin(self, route: str, now: float) -> RouteLimit | None:
        """Count a send by this route; the caller calls `RouteLimit.end_with` at its end. None: no limit."""
        limit = self._limits.get(route) or self._new_limit(route)
        if limit is not None:
            limit.begin(now)
        return limit

    def _new_limit(self, route: str) -> RouteLimit | None:
        of = self._routes.get(route.partition("@")[0])
        if of is None:
            return None
        if len(self._limits) >= MAX_SERVICES:  # clients name services, so there may be any number
            self._limits = {name: old for name, old in self._limits.items() if old.in_flight or name in self._routes}
        limit = self._limits[route] = RouteLimit(max_in_flight=of.max_in_flight, timeout_s=of.timeout_s)
        return limit

    def room(self, unbegun: int = 0) -> int | None:
        """How many more may begin in all; None is any number. unbegun: as of `rooms`."""
        return sum(limit.room(unbegun) for limit in self._limits.values()) if self._limits else None

    def rooms(self, room: int, unbegun: int = 0) -> dict[str, int]:
        """The routes by which fewer than `room` may begin now, and how many.

        unbegun: how many leased sends have not begun. Their routes are unknown, so each route keeps room for all.
        """
        rooms = {route: limit.room(unbegun) for route, limit in self._limits.items()}
        return {route: left for route, left in rooms.items() if left < room}

    def describe(self) -> str:
        """Return the limit of each route as JSON, as the worker publishes it in Redis."""
        return json.dumps({route: limit.limit for route, limit in self._limits.items()})
