"""Late feedback: dead tokens that a provider reports after its answer, such as by a receipt."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from redis.exceptions import RedisError

from notifier.providers.build import Late
from notifier.scripts.keys import in_force, redis_key, under
from notifier.units import clock_us


class LateFeedback:
    """Writes dead tokens into the feedback. keep_us: how long they stay there."""

    def __init__(self, redis: Any, keep_us: int) -> None:
        self._redis, self._prefixes = redis, in_force()
        self._keep_ms = keep_us // 1000
        self._writing: set[asyncio.Task[None]] = set()
        self._log = structlog.get_logger("notifier.worker")

    def report(self, late: Late, app: str | None) -> None:
        """Write a dead token. If Redis does not take it, the next message to the device finds it again."""
        with under(self._prefixes):  # the message may be of another partition
            task = asyncio.get_running_loop().create_task(self._write(late, app))
        self._writing.add(task)
        task.add_done_callback(self._writing.discard)

    async def _write(self, late: Late, app: str | None) -> None:
        log = self._log.bind(user=late.user, job_id=late.job_id, platform=late.device.platform, reason=late.reason)
        try:
            now_ms = clock_us(await self._redis.time()) // 1000
            fields = {
                "platform": late.device.platform,
                "token": late.device.token,
                "app": app or "",
                "user": late.user,
                "reason": late.reason,
                "gone_at": str(now_ms * 1000),
                "job_id": late.job_id,
            }
            await self._redis.xadd(redis_key("feedback"), fields, minid=max(0, now_ms - self._keep_ms))
            await self._redis.pexpire(redis_key("feedback"), self._keep_ms)
        except RedisError as error:
            log.warning("feedback_not_written", error=type(error).__name__)
        else:
            log.info("dead_token")
