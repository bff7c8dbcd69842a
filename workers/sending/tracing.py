"""A span around each delivery, if the configuration has `tracing: opentelemetry`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from redis.exceptions import RedisError

from notifier.queue.calls import Settlement
from notifier.queue.spans import Spans
from notifier.scripts.keys import job_key
from notifier.scripts.records import Leased
from workers.sending.proofs import Unproven


class Tracing:
    """Reads the producer's span from each job's meta, in one round trip for all sends that begin together."""

    def __init__(self, redis: Any, spans: Spans) -> None:
        self._redis = redis
        self._spans = spans
        self._asked: dict[str, asyncio.Future[bytes | None]] = {}
        self._asking: asyncio.Task[None] | None = None

    async def around(
        self, leased: Leased, send: Callable[[], Awaitable[Settlement | Unproven]]
    ) -> Settlement | Unproven:
        return await self._spans.deliver(leased, await self._meta(leased.job_id), send, _attributes)

    async def _meta(self, job_id: str) -> bytes | None:
        future = self._asked.setdefault(job_id, asyncio.get_running_loop().create_future())
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        return await asyncio.shield(future)

    async def _ask(self) -> None:
        await asyncio.sleep(0)  # so that one round trip serves all that were leased together
        asked, self._asked, self._asking = self._asked, {}, None
        metas: list[bytes | None] = [None] * len(asked)
        try:
            async with self._redis.pipeline(transaction=False) as pipe:
                for job_id in asked:
                    pipe.hget(job_key(job_id), "meta")
                metas = await pipe.execute(raise_on_error=False)
        except RedisError:
            pass  # the span has no link; the message goes all the same
        for future, meta in zip(asked.values(), metas, strict=True):
            if not future.done():
                future.set_result(meta if isinstance(meta, bytes) else None)


def _attributes(result: Settlement | Unproven) -> Mapping[str, Any]:
    settlement = result.settlement if isinstance(result, Unproven) else result
    word = "unknown" if isinstance(result, Unproven) else settlement.word or settlement.state
    found: dict[str, Any] = {"push_throttle.outcome": word, "push_throttle.route": settlement.route}
    if settlement.handed is not None and settlement.handed.replies:
        reply = settlement.handed.replies[-1]
        if reply.status is not None:
            found["http.response.status_code"] = reply.status
        if word != "delivered":
            found["error.type"] = reply.reason or reply.outcome
    elif word not in {"delivered", "backlog", "dropped"}:
        found["error.type"] = word
    return found
