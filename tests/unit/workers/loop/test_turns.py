"""Turns: the engines of one process share its room, and each gets some in its turn."""

import asyncio
from typing import Any

from workers.loop.turns import LATE_S, Turns
from workers.sending.capacity import Capacity, RouteLimit

BATCH, MOST = 50, 100


class Held:
    """In the place of an engine's flights."""

    def __init__(self, turns: Turns) -> None:
        self.wake, self.held, self.unbegun = asyncio.Event(), 0, 0
        turns.join(self)

    def __len__(self) -> int:
        return self.held


def made(count: int, **limits: RouteLimit) -> tuple[Turns, list[Any]]:
    """What so many engines share, and their flights."""
    turns = Turns(Capacity(limits), batch=BATCH, most=MOST)
    return turns, [Held(turns) for _ in range(count)]


async def test_engines_share_what_a_process_may_have_under_way() -> None:
    """What one has under way, and what another has asked for, is room for nobody else."""
    turns, (a, b, c) = made(3)
    a.held = BATCH
    assert turns.room(b) == BATCH
    with turns.taking(b, BATCH):
        assert (turns.room(c), turns.is_full) == (0, False)
        b.held = BATCH
    assert (turns.room(c), turns.is_full) == (0, True)


async def test_who_finds_no_room_is_woken_in_turn() -> None:
    """The first in the line gets what comes free, also where another asks before it does; then the next."""
    turns, (a, b, c) = made(3)
    a.held = MOST
    assert [turns.room(b), turns.room(c)] == [0, 0]
    a.held = MOST - BATCH
    turns.freed()
    assert turns.room(a) == 0, "others have waited longer"
    await asyncio.wait_for(b.wake.wait(), 10)
    assert not c.wake.is_set()
    assert turns.room(b) == BATCH
    with turns.taking(b, BATCH):
        """It takes nothing."""
    await asyncio.wait_for(c.wake.wait(), 10)
    assert (turns.room(c), turns.room(a)) == (BATCH, 0)


async def test_all_are_woken_for_whom_there_is_room() -> None:
    """At once, in one pass: none is left to wait as for a late pull."""
    turns, (a, b, c) = made(3)
    a.held = MOST
    assert [turns.room(b), turns.room(c)] == [0, 0]
    a.held = 0
    turns.freed()
    await asyncio.sleep(0)
    assert (b.wake.is_set(), c.wake.is_set()) == (True, True)


async def test_who_has_got_room_is_in_the_line_no_more() -> None:
    """It asked again before it was woken: the next one that asks does not wait behind it."""
    turns, (a, b, c) = made(3)
    a.held = MOST
    assert turns.room(b) == 0
    a.held = 0
    assert [turns.room(b), turns.room(c)] == [BATCH, BATCH]


async def test_a_pull_that_takes_nothing_frees_what_it_reserved_as_it_ends() -> None:
    """Who waits for that is not left to wait as for a late one."""
    turns, (a, b) = made(2)
    a.held = BATCH
    with turns.taking(a, BATCH):
        assert turns.room(b) == 0
    await asyncio.sleep(0)
    assert b.wake.is_set()


async def test_no_pull_is_for_less_than_a_quarter_of_a_batch() -> None:
    """Each costs the same; but of a process that may have few under way, a quarter of these."""
    for most, quarter in ((MOST, BATCH // 4), (8, 2)):
        turns = Turns(Capacity({}), batch=BATCH, most=most)
        flights = Held(turns)
        for left, room in ((quarter, quarter), (quarter - 1, 0)):
            flights.held = most - left
            assert turns.room(flights) == room


async def test_what_a_route_bears_bounds_a_pull() -> None:
    """All sends that have not begun count for it, those of other engines as well."""
    limit = RouteLimit(max_in_flight=MOST, timeout_s=1)
    turns, (a, b) = made(2, apns=limit)
    assert turns.room(a) == limit.limit < BATCH
    b.unbegun = 1
    assert turns.room(a) == limit.limit - 1
    assert turns.rooms(a, BATCH) == {"apns": limit.limit - 1}


async def test_a_redis_that_does_not_answer_holds_up_nobody_for_long() -> None:
    """What was asked for, and is not answered, counts no more."""
    turns, (a, b) = made(2)
    a.held = BATCH
    with turns.taking(a, BATCH):
        assert turns.room(b) == 0
        loop: Any = asyncio.get_running_loop()
        now = loop.time() + LATE_S
        loop.time = lambda: now
        assert turns.room(b) == BATCH
        b.held = BATCH
        assert turns.left == 0, "its answer comes too late"


async def test_who_waits_for_it_is_woken_when_it_is_late() -> None:
    """In turn, though nothing ends meanwhile; also where it is the first in the line that does not come."""
    turns, (a, b, c) = made(3)
    a.held = BATCH
    with turns.taking(a, BATCH):
        assert [turns.room(b), turns.room(c)] == [0, 0]
        await asyncio.wait_for(b.wake.wait(), 10)
        assert not c.wake.is_set()
        await asyncio.wait_for(c.wake.wait(), 10)
    assert turns.room(c) == BATCH


async def test_a_call_that_may_take_a_routes_last_room_is_waited_for() -> None:
    """Else the other engine would take the route for full, though the call may leave its room."""
    limit = RouteLimit(max_in_flight=MOST, timeout_s=1)
    turns, (a, b) = made(2, apns=limit, fcm=RouteLimit(max_in_flight=MOST, timeout_s=1))
    with turns.taking(a, limit.limit):
        assert turns.room(b) == 0
        assert turns.rooms(a, BATCH) == {"apns": limit.limit, "fcm": limit.limit}
    await asyncio.wait_for(b.wake.wait(), 10)
    assert turns.room(b) > 0


async def test_who_lacks_room_by_a_route_is_woken_when_another_engine_frees_some() -> None:
    """One whose own sends all go by other routes would not notice."""
    limit = RouteLimit(max_in_flight=MOST, timeout_s=1)
    turns, (_, b) = made(2, apns=limit, fcm=RouteLimit(max_in_flight=MOST, timeout_s=1))
    for _ in range(limit.limit):
        limit.begin(0.0)
    turns.lack(b, [by for by, left in turns.rooms(b, BATCH).items() if not left])
    turns.freed()
    await asyncio.sleep(0)
    assert not b.wake.is_set(), "it is as full as it was"
    b.unbegun = limit.limit
    for _ in range(limit.limit):
        limit.end(0.0, 0.0)
    turns.freed()
    await asyncio.sleep(0)
    assert not b.wake.is_set(), "what comes free is for those that have not begun"
    b.unbegun = 0
    turns.freed()
    await asyncio.wait_for(b.wake.wait(), 10)
    b.wake.clear()
    turns.freed()
    await asyncio.sleep(0)
    assert not b.wake.is_set(), "it was woken once"
    turns.lack(b, ["apns"])
    turns.lack(b, [])
    turns.freed()
    await asyncio.sleep(0)
    assert not b.wake.is_set(), "it lacks nothing any more"


async def test_one_engine_alone_stands_in_no_line() -> None:
    """Its own sends wake it."""
    turns, (a,) = made(1)
    a.held = MOST
    assert turns.room(a) == 0
    turns.lack(a, ["apns"])
    a.held = 0
    turns.freed()
    await asyncio.sleep(0)
    assert (a.wake.is_set(), turns.room(a)) == (False, BATCH)
