"""Expo's requests: those whose time is up neither go nor hold up the others of their request."""

import asyncio
from collections.abc import Sequence

import pytest

from notifier.providers.contract import Answer, Outcome
from notifier.providers.expo.batches import MAX_REQUESTS, TOO_LATE, Batches, Replied, Waiting

TOOK = Answer(Outcome.DELIVERED, 200), ""


async def test_one_that_expires_while_a_connection_opens_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The request begins by the first expiry in it, or goes without that one."""
    requests: list[list[bytes]] = []
    now_s = 0.0

    async def post(batch: Sequence[Waiting]) -> Sequence[Replied]:
        nonlocal now_s
        requests.append([waiting.message for waiting in batch])
        if len(requests) == 1:  # no connection in time, as of `Pool.post`
            now_s = min(waiting.send_by for waiting in batch)
            return [(TOO_LATE, "")] * len(batch)
        return [TOOK] * len(batch)

    monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: now_s)
    batches = Batches(post)
    replies = await asyncio.gather(batches.send(b"a", 60), batches.send(b"b", 1), batches.send(b"c", 60))
    assert replies == [TOOK, (TOO_LATE, ""), TOOK]
    assert requests == [[b"a", b"b", b"c"], [b"a", b"c"]]


async def test_while_six_requests_are_under_way_messages_gather_in_the_next() -> None:
    """One that expires or is given up meanwhile is not sent. Others have their answers, whoever gives up."""
    requests: list[list[bytes]] = []
    answered = asyncio.Event()

    async def post(batch: Sequence[Waiting]) -> Sequence[Replied]:
        requests.append([waiting.message for waiting in batch])
        await answered.wait()
        return [TOOK] * len(batch)

    def begin(message: str, life_s: float = 60) -> asyncio.Task[Replied]:
        return asyncio.create_task(batches.send(message.encode(), asyncio.get_running_loop().time() + life_s))

    async def settle() -> None:
        for _ in range(5):
            await asyncio.sleep(0)

    batches, sends = Batches(post), []
    for message in "abcdefgh":
        sends.append(begin(message))
        await settle()
    late, given_up, both = begin("late", 0), begin("given up"), begin("both", 0)
    await settle()
    assert requests == [[message] for message in (b"a", b"b", b"c", b"d", b"e", b"f")][:MAX_REQUESTS]
    given_up.cancel()
    both.cancel()
    answered.set()
    assert await asyncio.gather(*sends, late) == [*[TOOK] * len(sends), (TOO_LATE, "")]
    assert requests[MAX_REQUESTS:] == [[b"g", b"h"]]
    assert await begin("lone", 0) == (TOO_LATE, "")
    assert len(requests) == MAX_REQUESTS + 1
    answered.clear()
    given_up, kept = begin("given up"), begin("kept")
    await settle()
    given_up.cancel()
    answered.set()
    assert await kept == TOOK
