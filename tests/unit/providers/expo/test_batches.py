"""Expo's requests: those whose time is up neither go nor hold up the others of their request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from notifier.providers.contract import Answer, Outcome
from notifier.providers.expo.batches import TOO_LATE, Batches, Replied, Waiting

TOOK = Answer(Outcome.DELIVERED, 200), ""


def test_one_that_expires_while_a_connection_opens_takes_no_other_with_it() -> None:
    """The request begins by the first expiry in it, or goes without that one."""
    requests: list[list[bytes]] = []

    async def post(batch: Sequence[Waiting]) -> Sequence[Replied]:
        requests.append([waiting.message for waiting in batch])
        until = min(waiting.send_by for waiting in batch)
        if len(requests) == 1:  # no connection in time, as of `Pool.post`
            await asyncio.sleep(until - asyncio.get_running_loop().time() + 0.001)
            return [(TOO_LATE, "")] * len(batch)
        return [TOOK] * len(batch)

    async def run() -> list[Replied]:
        now = asyncio.get_running_loop().time()
        batches = Batches(post)
        return await asyncio.gather(
            batches.send(b"a", now + 60), batches.send(b"b", now + 0.01), batches.send(b"c", now + 60)
        )

    assert asyncio.run(run()) == [TOOK, (TOO_LATE, ""), TOOK]
    assert requests == [[b"a", b"b", b"c"], [b"a", b"c"]]
