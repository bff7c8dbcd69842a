"""Turns: the engines of one process share its room for sends. An engine that finds no room gets some in its turn.

A pull takes time. Until it ends, the other engines count the room that it asked for as taken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Final, Protocol

from workers.sending.capacity import Capacity

LATE_S: Final = 0.25  # a pull that takes longer reserves no room any more: its Redis may be away


class Flights(Protocol):
    """One engine's sends; `len` is how many are under way. unbegun: of these, have not begun. wake: makes it pull."""

    wake: asyncio.Event
    unbegun: int

    def __len__(self) -> int: ...


class Turns:
    """Gives out the room of one process. capacity: the limits of its routes; most: the limit of all sends under way."""

    def __init__(self, capacity: Capacity, *, batch: int, most: int) -> None:
        self.capacity, self._batch, self._most = capacity, batch, most
        self._all: list[Flights] = []
        self._asked: dict[Flights, tuple[int, float]] = {}  # how many, and when
        self._in_line: dict[Flights, None] = {}
        self._lacking: dict[Flights, set[str]] = {}
        self._passing_on = self._awaits_late = False

    def join(self, flights: Flights) -> None:
        """Count the sends of one more engine."""
        self._all.append(flights)

    def room(self, flights: Flights) -> int:
        """How many more jobs this engine may pull now; if 0, its `wake` is set when its turn comes."""
        is_turn = flights in self._asked or next(iter(self._in_line), flights) is flights
        room = self._room(self._taken(flights)) if is_turn else 0
        if room:
            self._in_line.pop(flights, None)
        elif len(self._all) > 1:
            self._in_line.setdefault(flights)
            self._await_late()
        return room

    def rooms(self, flights: Flights, room: int) -> dict[str, int]:
        """As `Capacity.rooms`, for an engine that pulls up to `room` jobs."""
        return self.capacity.rooms(room, self._unbegun() + self._taken(flights))

    @property
    def left(self) -> int:
        """How many more sends may begin now, whatever is reserved: a late pull may bring more than that."""
        return self._most - sum(map(len, self._all))

    @property
    def is_full(self) -> bool:
        """Whether no engine would get any room."""
        return not self._room(0)

    @contextmanager
    def taking(self, flights: Flights, room: int) -> Iterator[None]:
        """Reserve room during a pull."""
        self._asked[flights] = room, asyncio.get_running_loop().time()
        try:
            yield
        finally:
            self._asked.pop(flights, None)
            self.freed()

    def takes(self, flights: Flights) -> bool:
        """Whether room is reserved for this engine, whose pull is under way or comes next."""
        return flights in self._asked

    def lack(self, flights: Flights, rooms: Iterable[str]) -> None:
        """Wake this engine when one of these routes has room again."""
        self._lacking.pop(flights, None)
        if len(self._all) > 1 and (lacking := set(rooms)):
            self._lacking[flights] = lacking

    def freed(self) -> None:
        """Note that there may be more room."""
        if (self._in_line or self._lacking) and not self._passing_on:
            self._passing_on = True
            asyncio.get_running_loop().call_soon(self._pass_on)

    def _pass_on(self) -> None:
        self._passing_on = False
        now = asyncio.get_running_loop().time()
        while self._in_line and (room := self._room(self._taken())):
            flights = next(iter(self._in_line))
            del self._in_line[flights]
            self._asked[flights] = room, now
            flights.wake.set()
        self._await_late()
        full = self.capacity.rooms(1, self._unbegun()).keys() if self._lacking else set()
        if (lacking := next((each for each, by in self._lacking.items() if by - full), None)) is not None:
            del self._lacking[lacking]
            lacking.wake.set()

    def _await_late(self) -> None:
        """Pass on the room of the pulls under way once they are late: until then perhaps no pull or send ends."""
        if self._in_line and self._asked and not self._awaits_late:
            self._awaits_late = True
            asyncio.get_running_loop().call_later(LATE_S, self._pass_on_late)

    def _pass_on_late(self) -> None:
        self._awaits_late = False
        self._pass_on()

    def _room(self, taken: int) -> int:
        """How much room there is beside `taken`; while sends are under way, 0 until a quarter of a batch is free."""
        unbegun, left = self._unbegun(), self.left - taken
        room = min(left, self._batch)
        if room < min(self._most, self._batch) // 4:
            return 0
        # A pull under way may take all room of a route, or none of it.
        if taken and len(self.capacity.rooms(1, unbegun + taken)) > len(self.capacity.rooms(1, unbegun)):
            return 0
        by_routes = self.capacity.room(unbegun + taken)
        return room if by_routes is None else min(room, by_routes)

    def _unbegun(self) -> int:
        return sum(flights.unbegun for flights in self._all)

    def _taken(self, by: Flights | None = None) -> int:
        """How much room the pulls under way reserve, but for that of `by`."""
        latest = asyncio.get_running_loop().time() - LATE_S
        return sum(room for each, (room, at) in self._asked.items() if at > latest and each is not by)
