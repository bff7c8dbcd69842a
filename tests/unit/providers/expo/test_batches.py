"""Expo's requests: those whose time is up neither go nor hold up the others of their request."""

import asyncio
from collections.abc import Sequence

import pytest

from notifier.providers.contract import Answer, Outcome
from notifier.providers.expo.batches import TOO_LATE, Batches, Replied, Waiting

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
