"""How many sends may be under way by a route, against a provider that is a queue, on a clock of its own."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count

import pytest

from workers.sending.capacity import FIRST, FORGET_S, MAX_SERVICES, Capacity, RouteLimit

TIMEOUT_S = 5.0
MOST = 1000
MESSAGES = 3000


@dataclass
class Provider:
    """Serves `rate` messages a second in the order of their arrival; travel and thought take `away_s` besides."""

    rate: float
    away_s: float = 0.02
    free_at: float = 0.0

    def takes(self, now: float) -> float:
        """How long the answer to a message takes that is sent now."""
        self.free_at = max(self.free_at, now) + 1 / self.rate
        return self.away_s + self.free_at - now


@dataclass
class World:
    """Workers with more to send than there is room for, and what became of it."""

    provider: Provider
    limits: list[RouteLimit]
    straggles: Callable[[int], float] = lambda _: 0.0  # by the message's number, how much longer its answer takes
    now: float = 1000.0
    unknown: int = 0
    answered: int = 0
    sent: int = 0
    most: int = 0
    _events: list[tuple[float, int, int, float, bool]] = field(default_factory=list)
    _order: count[int] = field(default_factory=count)

    def send(self, messages: int) -> float:
        """Send so many; how many seconds it took until the last of them has ended."""
        began = self.now
        self._run(lambda: messages > 0, messages)
        return self.now - began

    def send_for(self, seconds: float) -> int:
        """Send for so long; how many were answered meanwhile. What is under way goes on."""
        before, until = self.answered, self.now + seconds
        self._run(lambda: self.now < until, None)
        return self.answered - before

    def _run(self, goes_on: Callable[[], bool], messages: int | None) -> None:
        left = math.inf if messages is None else messages
        while True:
            for index, limit in enumerate(self.limits):
                n = int(min(limit.room(), left)) if goes_on() else 0
                for _ in range(n):
                    self._begin(index, limit)
                left -= n
            self.most = max(self.most, sum(limit.in_flight for limit in self.limits))
            if not self._events or (messages is None and not goes_on()):
                return
            self.now, _, index, began, late = heapq.heappop(self._events)
            self.limits[index].end(began, self.now, answered=not late, late=late)
            self.unknown += late
            self.answered += not late

    def _begin(self, index: int, limit: RouteLimit) -> None:
        limit.begin(self.now)
        takes = self.provider.takes(self.now) + self.straggles(self.sent)
        self.sent += 1
        late = takes > TIMEOUT_S
        event = (self.now + min(takes, TIMEOUT_S), next(self._order), index, self.now, late)
        heapq.heappush(self._events, event)


def world(rate: float, *, workers: int = 1, most: int = MOST, away_s: float = 0.02) -> World:
    limits = [RouteLimit(max_in_flight=most, timeout_s=TIMEOUT_S) for _ in range(workers)]
    return World(Provider(rate, away_s), limits)


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("away_s", [0.001, 0.02, 0.2])
@pytest.mark.parametrize("rate", [50, 300, 3000])
def test_nothing_times_out_because_too_much_was_sent_at_once(rate: float, away_s: float, workers: int) -> None:
    """3,000 messages: none unknown, and once the limit is found at least 0.9 of what the provider serves."""
    up = world(rate, workers=workers, away_s=away_s)
    up.send(MESSAGES)
    assert up.unknown == 0
    seconds = up.send(MESSAGES)
    assert up.unknown == 0
    assert MESSAGES / (seconds - away_s) >= 0.9 * rate, "the answer to the last one travels still"


@pytest.mark.parametrize("rate", [50, 300, 3000])
def test_the_start_costs_little(rate: float) -> None:
    """From nothing known the first 3,000 go with at least 0.9 of what the provider serves, 1 ms away."""
    up = world(rate, away_s=0.001)
    assert MESSAGES / up.send(MESSAGES) >= 0.9 * rate
    assert up.unknown == 0


def test_an_unlimited_worker_is_what_makes_them_time_out() -> None:
    """The same provider without a limit: most of 3,000 messages are unknown. So the tests above test something."""
    up = world(50)
    free = Unlimited(max_in_flight=MOST, timeout_s=TIMEOUT_S)
    up.limits = [free]
    up.send(MESSAGES)
    assert up.unknown > MESSAGES / 2


class Unlimited(RouteLimit):
    """As if there were no limit but that of the worker."""

    @property
    def limit(self) -> int:
        return self.max_in_flight


@pytest.mark.parametrize("away_s", [0.001, 0.02, 0.2, 2.0])
def test_no_loss_of_speed_against_an_unlimited_one(away_s: float) -> None:
    """A provider that is far away but wide: all that the worker may have under way is, soon."""
    up = world(math.inf, away_s=away_s)
    trips = math.log2(MOST / FIRST) + 2
    up.send_for(trips * away_s)
    speed = up.send_for(20 * away_s) / (20 * away_s)
    assert speed >= 0.95 * MOST / away_s
    assert up.limits[0].limit == MOST


def test_a_limit_of_one_still_learns() -> None:
    """in_flight 1 stays 1, and nothing ever stands still."""
    up = world(3000, most=1)
    up.send(200)
    assert up.most == 1
    assert up.answered == 200


def test_a_provider_that_becomes_slow_and_fast_again() -> None:
    """From 3,000 to 50 a second: what may be lost is what was under way. And back: the limit grows again."""
    up = world(3000)
    up.send_for(10)
    under_way = up.limits[0].in_flight
    up.provider.rate = 50
    up.send_for(30)
    assert up.unknown <= under_way + 10, "and now and then one that asks"
    lost = up.unknown
    assert up.send_for(20) >= 0.9 * 50 * 20
    assert up.unknown == lost
    up.provider.rate = 3000
    up.send_for(5)
    assert up.send_for(5) >= 0.9 * 3000 * 5
    assert up.unknown == lost


def test_what_takes_longer_for_another_reason_is_no_queue() -> None:
    """The way becomes longer by 0.8 s: sending less changes nothing, so the limit comes back within seconds."""
    up = world(math.inf, most=500)
    up.send_for(10)
    up.provider.away_s = 0.82
    up.send_for(15)
    assert up.limits[0].limit == 500
    assert up.unknown == 0


def test_stragglers_are_no_queue() -> None:
    """One message in ten is answered three seconds later: the limit follows the others."""
    up = world(math.inf, most=200)
    up.straggles = lambda number: 3.0 if number % 10 == 0 else 0.0
    up.send(5000)
    assert up.limits[0].limit == 200


def test_a_silent_provider_leaves_one_and_a_healed_one_gets_all() -> None:
    """Nothing is answered for a minute: the limit falls to 1. Then it is answered: within 3 s all are under way."""
    up = world(math.inf, most=500)
    up.send_for(5)
    up.provider.away_s = 60.0
    up.send_for(60)
    assert up.limits[0].limit <= 2
    up.provider.away_s = 0.02
    up.send_for(TIMEOUT_S + 3)
    assert up.limits[0].limit == 500


def test_what_nobody_used_does_not_grow() -> None:
    """A route with two under way at a time says nothing of what 500 would do."""
    limit = RouteLimit(max_in_flight=500, timeout_s=TIMEOUT_S)
    for n in range(1000):
        limit.begin(n)
        limit.begin(n)
        limit.end(n, n + 0.02, answered=True)
        limit.end(n, n + 0.02, answered=True)
    assert limit.limit == FIRST


def test_what_was_learnt_long_ago_is_forgotten() -> None:
    """After a minute without a send the route begins anew: it may be another server's by now."""
    up = world(math.inf, most=500)
    up.send(5000)
    assert up.limits[0].limit == 500
    up.limits[0].begin(up.now + FORGET_S + 1)
    assert up.limits[0].limit == FIRST


def test_what_never_reached_the_provider_says_nothing() -> None:
    """No connection, or a closed one: the limit stays, and the room comes back."""
    limit = RouteLimit(max_in_flight=500, timeout_s=TIMEOUT_S)
    for n in range(1000):
        limit.begin(n)
        limit.end(n, n + 4.0)
    assert (limit.limit, limit.in_flight, limit.room()) == (FIRST, 0, FIRST)


def test_each_service_behind_a_route_has_a_limit_of_its_own() -> None:
    """A push service that is slow takes nothing from the others; a route that nobody configured has no limit."""
    capacity = Capacity({"webpush": RouteLimit(max_in_flight=100, timeout_s=TIMEOUT_S)})

    begun = [capacity.begin(name, 0.0) for name in ["webpush@slow.example"] * FIRST + ["other"]]
    assert capacity.rooms(FIRST + 1) == {"webpush": FIRST, "webpush@slow.example": 0}
    assert begun[-1] is None
    for limit in begun[:-1]:
        assert limit is not None
        limit.end_with(None, 0.0, 1.0)
    assert capacity.rooms(FIRST + 1) == {"webpush": FIRST, "webpush@slow.example": FIRST}


def test_no_number_of_services_fills_the_memory() -> None:
    """Clients name them. Kept are those in use, and the limits of what is configured."""
    capacity = Capacity({name: RouteLimit(max_in_flight=100, timeout_s=TIMEOUT_S) for name in ("fcm", "webpush")})
    for n in range(MAX_SERVICES + 2):
        limit = capacity.begin(f"webpush@{n}.example", 0.0)
        assert limit is not None
        if n:
            limit.end(0.0, 1.0)
    rooms = capacity.rooms(FIRST + 1)
    assert len(rooms) <= MAX_SERVICES
    assert {"fcm", "webpush", "webpush@0.example"} <= rooms.keys()


def test_room_comes_in_quarters() -> None:
    """Nothing is taken for each answer: only when a quarter is free, or nothing is under way."""
    limit = RouteLimit(max_in_flight=500, timeout_s=TIMEOUT_S)
    for _ in range(FIRST):
        limit.begin(0.0)
    rooms = []
    for n in range(FIRST):
        limit.end(0.0, n)
        rooms.append(limit.room())
    assert rooms == [0] * 4 + list(range(5, FIRST + 1))


def test_what_has_not_begun_yet_takes_room_by_every_route() -> None:
    """By which of them it will go is not known."""
    limits = {name: RouteLimit(max_in_flight=100, timeout_s=5.0) for name in ("fcm", "apns")}
    for _ in range(4):
        limits["fcm"].begin(0.0)
    capacity = Capacity(limits)
    assert capacity.rooms(FIRST, 0) == {"fcm": FIRST - 4}
    assert capacity.rooms(FIRST, 5) == {"fcm": FIRST - 9, "apns": FIRST - 5}
    assert capacity.rooms(FIRST, FIRST) == {"fcm": 0, "apns": 0}
    assert capacity.room(5) == 2 * FIRST - 14
