"""Turns: one at a time for each device, in the order of asking, whoever gives up while waiting."""

import asyncio
import math

import pytest

from notifier.providers.transport.backoff import Turns


async def settled() -> None:
    """Let every task run as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_in_the_order_of_asking() -> None:
    """Those who ask for one device get it one after another; another device waits for none of them."""
    turns, order, under_way = Turns(), [], 0

    async def one(token: str, number: int) -> None:
        nonlocal under_way
        async with turns.turn(token, math.inf) as held:
            assert held
            under_way += token == "a"
            assert under_way <= 1
            await asyncio.sleep(0)
            order.append((token, number))
            under_way -= token == "a"

    await asyncio.gather(*(one("a", n) for n in range(5)), one("b", 0))
    assert [number for token, number in order if token == "a"] == list(range(5))
    assert order.index(("b", 0)) <= 1
    assert not turns._ends


@pytest.mark.parametrize("way", ["cancel", "cancel when handed over", "time", "break"])
async def test_who_gives_up_holds_up_nobody(way: str) -> None:
    """An asker that is cancelled, even in the moment it is handed over, whose time is up or who breaks, is passed."""
    turns, got = Turns(), []
    tasks: list[asyncio.Task[None]] = []
    leave = asyncio.Event()

    async def first() -> None:
        async with turns.turn("a", math.inf):
            await leave.wait()
        if way == "cancel when handed over":
            tasks[1].cancel()

    async def second(until: float) -> None:
        async with turns.turn("a", until) as held:
            got.append(("second", held))
            if way == "break":
                raise ValueError

    async def third() -> None:
        async with turns.turn("a", math.inf) as held:
            got.append(("third", held))

    until = asyncio.get_running_loop().time() + 0.01 if way == "time" else math.inf
    tasks.extend(asyncio.create_task(each) for each in (first(), second(until), third()))
    await settled()
    if way == "cancel":
        tasks[1].cancel()
    if way == "time":
        await asyncio.wait_for(tasks[1], 5)
    leave.set()
    await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
    seconds = {"time": [("second", False)], "break": [("second", True)]}.get(way, [])
    assert got == [*seconds, ("third", True)]
    assert not turns._ends
