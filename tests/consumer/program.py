"""A program that uses the package from outside. It is not run: mypy --strict and pyright check it against the wheel."""

# pyright: strict
from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import assert_type

from notifier import (
    AsyncNotifier,
    Device,
    Gone,
    Hold,
    InvalidNotificationError,
    Notification,
    Notifier,
    NotifierError,
    Permit,
    Policy,
    RedisUnusableError,
    Settings,
    Status,
    Window,
    load_settings,
)
from notifier.limiter import AsyncLimiter, Limiter, MemoryLimiter
from notifier.testing import FakeNotifier, Sent
from workers import PushWorker


def send(notifier: Notifier, tokens: Iterable[str]) -> str | None:
    notification = Notification(
        user="42",
        devices=[Device("fcm", token) for token in tokens],
        title="Ada",
        data={"ref": "order-17"},
        expires_in=timedelta(hours=1),
        send_at=datetime.now(UTC),
        priority="high",
    )
    try:
        job_id = notifier.send(notification, job_id="order-17")
    except InvalidNotificationError as error:
        print(error.field)
        return None
    except (RedisUnusableError, NotifierError):
        return None
    assert_type(job_id, str)
    status = notifier.status(job_id)
    assert_type(status, Status | None)
    if status is not None and status.expected_at is not None:
        print(status.state, status.expected_at.isoformat())
    assert_type(notifier.send_many([notification]), int)
    for gone in notifier.feedback():
        assert_type(gone, Gone)
    return job_id


async def send_async(notifier: AsyncNotifier, notification: Notification) -> str:
    limiter = AsyncLimiter.from_url("redis://localhost", namespace="web")
    assert_type(await limiter.acquire("42", "5/minute"), Permit | Hold)
    return await notifier.send(notification, timeout=2)


def limited(limiter: Limiter | MemoryLimiter) -> int:
    match limiter.acquire("42", "5/minute; 100/day"):
        case Hold(time_left_us=left):
            return left
        case Permit():
            return 0


def settings() -> tuple[Settings, Policy]:
    return load_settings("notifier.yaml"), Policy((Window(10, "1m"),), gap_us=1_000_000)


def tested() -> list[Sent]:
    fake = FakeNotifier()
    with fake:
        send(fake, ["a-token-of-a-phone"])
        fake.advance("1m")
    return list(fake.outbox)


WORKER: type[PushWorker] = PushWorker
