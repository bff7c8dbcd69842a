"""Dramatiq: an actor that sends. If it runs once more within a day (`dedupe_for`), nothing is sent again."""

import os
from pathlib import Path

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.middleware import CurrentMessage

from notifier import Device, Notification, Notifier, OverloadedError, RedisUnusableError

HERE = Path(__file__).parent

broker = RedisBroker(url=os.environ.get("BROKER_URL", "redis://localhost:6379/1"))
broker.add_middleware(CurrentMessage())
dramatiq.set_broker(broker)
# Made before Dramatiq forks its processes: each of them opens connections of its own.
notifier = Notifier.from_config(HERE / "notifier.yaml")


def _may_work_later(_retries: int, error: Exception) -> bool:
    return isinstance(error, RedisUnusableError | OverloadedError)


@dramatiq.actor(retry_when=_may_work_later)
def greet(user: str, token: str) -> None:
    """Send a greeting."""
    message = CurrentMessage.get_current_message()
    once = message.message_id if message else None  # None: it is called directly
    notifier.send(Notification(user=user, devices=[Device("fcm", token)], title="Hello", dedupe_key=once))
