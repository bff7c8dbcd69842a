"""The worker's own deadlines: for what never ends, and not for what gets few turns."""

import asyncio
import time

import pytest

from workers.sending.deadlines import SWEEP_S, Deadlines


async def test_what_never_ends_is_cancelled() -> None:
    """It hears of its deadline, and goes on as one that was not cancelled."""
    deadlines = Deadlines()
    task = deadlines.begin(asyncio.get_running_loop().time() + SWEEP_S)
    with pytest.raises(asyncio.CancelledError):
        await asyncio.Event().wait()
    assert deadlines.has_passed(task)
    deadlines.end(task)
    assert not task.cancelling()


async def test_what_ends_in_a_few_turns_of_a_loop_that_gets_few_is_left() -> None:
    """On a busy machine each turn may take longer than a sweep."""
    deadlines = Deadlines()
    task = deadlines.begin(asyncio.get_running_loop().time())
    for _ in range(4):
        time.sleep(2 * SWEEP_S)  # noqa: ASYNC251 - the loop stands still
        await asyncio.sleep(0)
    deadlines.end(task)
    assert not deadlines.has_passed(task)
