"""Celery: a task that sends. If it runs once more within a day (`dedupe_for`), nothing is sent again."""

import os
from pathlib import Path

from celery import Celery, Task

from notifier import Device, Notification, Notifier, OverloadedError, RedisUnusableError

HERE = Path(__file__).parent
BROKER = os.environ.get("BROKER_URL", "redis://localhost:6379/1")

app = Celery("shop", broker=BROKER, backend=BROKER)
# Made before Celery forks its processes: each of them opens connections of its own.
notifier = Notifier.from_config(HERE / "notifier.yaml")


@app.task(bind=True, autoretry_for=(RedisUnusableError, OverloadedError), retry_backoff=True, max_retries=None)
def greet(self: Task, user: str, token: str) -> str:
    """Send a greeting; returns the notification's job id."""
    device = Device("fcm", token)
    return notifier.send(Notification(user=user, devices=[device], title="Hello", dedupe_key=self.request.id))
