"""AsyncNotifier without Redis: what a deadline may be, and what a cancelled call leaves behind."""

import asyncio
import gc
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from notifier import AsyncNotifier
from notifier.testing import FakeNotifier
from tests.harness.support import note


@contextmanager
def no_warnings() -> Iterator[None]:
    """A coroutine that was never awaited says so when it is collected."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        yield
        gc.collect()
    assert [str(each.message) for each in told] == []


CALLS: dict[str, Callable[[AsyncNotifier, Any], Any]] = {
    "send": lambda made, timeout: made.send(note("anna"), timeout=timeout),
    "send_many": lambda made, timeout: made.send_many([note("anna")], timeout=timeout),
    "status": lambda made, timeout: made.status("1", timeout=timeout),
    "cancel": lambda made, timeout: made.cancel("1", timeout=timeout),
    "acquire": lambda made, timeout: made.acquire("anna", timeout=timeout),
}


@pytest.mark.parametrize("call", CALLS)
async def test_a_call_that_is_cancelled_as_it_begins_leaves_no_coroutine_behind(call: str) -> None:
    """As a web server cancels what it does for a client that has gone."""
    with no_warnings(), suppress(TimeoutError):
        async with asyncio.timeout(0):
            await CALLS[call](FakeNotifier().aio, None)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("wrong", [[1], object(), "soon", float("nan")])
async def test_a_deadline_that_is_none_is_refused_in_words(call: str, wrong: object) -> None:
    """Before anything is asked, and no coroutine is left behind."""
    with no_warnings(), pytest.raises((TypeError, ValueError), match=r"duration|NaN"):
        await CALLS[call](FakeNotifier().aio, wrong)


@pytest.mark.parametrize("timeout", ["2s", 10**400, 2, None])
def test_a_deadline_may_be_text_and_long(timeout: Any) -> None:
    """As that of `AsyncLimiter`."""
    made = FakeNotifier()
    asyncio.run(made.aio.send(note("anna"), timeout=timeout))
    assert len(made.outbox) == 1
