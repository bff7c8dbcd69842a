"""Late feedback: what a provider reports after its answer is in the feedback, or the log says that it is not."""

import asyncio
from typing import Any

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from structlog.testing import capture_logs

from notifier import Device
from notifier.providers.build import Late
from workers.sending.late_feedback import LateFeedback

TOKEN = "a-token-that-no-log-may-tell"
LATE = Late(Device("expo", TOKEN), "DeviceNotRegistered", user="ann", job_id="job")
NOW_S, KEEP_S = 1_700_000_000, 3_600


class Feedback:
    """In Redis's place: what it is told, until it fails at this command."""

    def __init__(self, fails_at: str = "") -> None:
        self.told: list[Any] = []
        self._fails_at = fails_at

    async def time(self) -> tuple[int, int]:
        return self._answer("time", (NOW_S, 5_000))

    async def xadd(self, *args: Any, **options: Any) -> None:
        self._answer("xadd", None, *args, options)

    async def pexpire(self, *args: Any) -> None:
        self._answer("pexpire", None, *args)

    def _answer(self, command: str, answer: Any, *args: Any) -> Any:
        if command == self._fails_at:
            raise RedisConnectionError(f"lost, with {TOKEN}")
        self.told.append((command, *args))
        return answer


async def reported(redis: Feedback, app: str | None = None) -> list[Any]:
    """What the log says once the report is written, or given up."""
    late = LateFeedback(redis, KEEP_S * 1_000_000)
    with capture_logs() as logs:
        late.report(LATE, app)
        await asyncio.gather(*late._writing)
    await asyncio.sleep(0)
    assert not late._writing
    return logs


async def test_a_dead_token_is_written_down() -> None:
    """With the moment of the report, by Redis's clock; what is older than it is kept goes."""
    (entry,) = await reported(redis := Feedback(), "driver")
    assert (entry["log_level"], entry["event"]) == ("info", "dead_token")
    now_ms = NOW_S * 1_000 + 5
    fields = {"platform": "expo", "token": TOKEN, "app": "driver", "user": "ann", "reason": "DeviceNotRegistered"}
    fields |= {"gone_at": str(now_ms * 1_000), "job_id": "job"}
    written = ("xadd", "notifier:feedback", fields, {"minid": now_ms - KEEP_S * 1_000})
    assert redis.told == [("time",), written, ("pexpire", "notifier:feedback", KEEP_S * 1_000)]


@pytest.mark.parametrize("command", ["time", "xadd", "pexpire"])
async def test_a_redis_that_does_not_take_it_ends_nothing(command: str) -> None:
    """The next message to the device finds it again; the log names whose it was, and no token."""
    (entry,) = await reported(Feedback(command))
    assert (entry["log_level"], entry["event"]) == ("warning", "feedback_not_written")
    assert (entry["user"], entry["job_id"], entry["error"]) == ("ann", "job", "ConnectionError")
    assert TOKEN not in str(entry)
