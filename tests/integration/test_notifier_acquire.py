"""`Notifier.acquire` answers by the rules in force for a user, and counts as what the workers send."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier import AsyncNotifier, Hold, InvalidNotificationError, Notifier, Permit
from notifier.producer.permits import UserPermit
from notifier.testing import FakeNotifier
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import CONSOLE, write_config

RATES: dict[str, Any] = {
    "user": {"windows": ["3/1h", "9/calendar-day"]},
    "users": {"quiet": {"windows": ["2/1h"]}},
    "categories": {
        "chat": {"lane": "urgent", "windows": ["2/1h"]},
        "big": {"lane": "bulk", "cost": 2},
        "alarm": {"lane": "urgent", "bypass": True},
    },
}


class Awaited:
    """An AsyncNotifier as a synchronous one. users: of a Notifier."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self.users = Notifier.from_config(config, follow=False).users

    def acquire(self, *words: str) -> Permit | Hold:
        return asyncio.run(self._ask("acquire", *words))

    def refund(self, permit: UserPermit) -> bool:
        return asyncio.run(self._ask("refund", permit))

    async def _ask(self, method: str, *args: Any) -> Any:
        async with AsyncNotifier.from_config(self._config) as made:
            return await getattr(made, method)(*args)


@pytest.fixture(params=["plain", "async"])
def notifier(request: pytest.FixtureRequest, tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis) -> Any:
    assert redis.ping()
    config = write_config(tmp_path, redis_server.url, CONSOLE, **RATES)
    return Notifier.from_config(config) if request.param == "plain" else Awaited(config)


def test_the_rules_of_the_configuration_hold(notifier: Any) -> None:
    """The user's own rules, those of everyone, and the category's on top; a category's cost and bypass too."""
    answers = [notifier.acquire("quiet") for _ in range(3)]
    assert [isinstance(answer, Permit) for answer in answers] == [True, True, False]
    assert answers[2].rule == "user 2/1h"
    held = [notifier.acquire("ann", "chat") for _ in range(3)][2]
    assert held.rule == "chat 2/1h"
    assert isinstance(notifier.acquire("ann", "default"), Permit)
    assert notifier.acquire("ann", "default").rule == "user 3/1h"
    assert isinstance(notifier.acquire("ann", "alarm"), Permit)
    assert [isinstance(notifier.acquire("bob", "big"), Permit) for _ in range(2)] == [True, False]


def test_what_is_given_back_counts_no_more(notifier: Any) -> None:
    """For the user and for the category, with all that it cost, and once."""
    for category in ("chat", "big"):
        permits = []
        while isinstance(answer := notifier.acquire("ann", category), Permit):
            permits.append(answer)
        assert permits
        assert all(notifier.refund(permit) for permit in permits)
        assert not any(notifier.refund(permit) for permit in permits)
        answer = notifier.acquire("ann", category)
        assert isinstance(answer, Permit)
        assert notifier.refund(answer)


def test_an_unknown_category_is_refused(notifier: Any) -> None:
    """As `send` refuses it."""
    with pytest.raises(InvalidNotificationError, match="'chatt' is unknown; known are alarm, big, chat, default"):
        notifier.acquire("ann", "chatt")


def test_what_the_user_chose_holds(notifier: Any) -> None:
    """A gap, a mute and quiet hours of one's own, at once and until they are cleared; of nobody else."""
    now = datetime.now(UTC)
    notifier.users.set("ann", gap="1h")
    assert isinstance(notifier.acquire("ann", "chat"), Permit)
    assert notifier.acquire("ann", "chat").rule == "user gap 1h"
    notifier.users.mute("ann", until=now + timedelta(hours=5), what="drop")
    assert notifier.acquire("ann", "chat").rule == "user muted"
    assert isinstance(notifier.acquire("ann", "alarm"), Permit)
    notifier.users.clear("ann")
    assert isinstance(notifier.acquire("ann", "chat"), Permit)
    notifier.users.set("bob", quiet_hours=f"{now - timedelta(hours=2):%H:%M}-{now + timedelta(hours=2):%H:%M}")
    assert notifier.acquire("bob").rule == f"user quiet until {now + timedelta(hours=2):%H:%M} Etc/UTC"
    assert isinstance(notifier.acquire("dan"), Permit)


def test_what_the_workers_would_let_go_is_no_error(tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis) -> None:
    """A cost above a limit that does not hold it, or that its user chose: as the configuration's check has it."""
    assert redis.ping()
    alarm = {
        "default": {"lane": "default"},
        "alarm": {"lane": "urgent", "bypass": True, "cost": 5},
        "big": {"lane": "bulk", "cost": 2},
    }
    config = write_config(tmp_path, redis_server.url, CONSOLE, user={"windows": ["3/1m"]}, categories=alarm)
    with Notifier.from_config(config) as asking:
        assert isinstance(asking.acquire("ann", "alarm"), Permit)
        asking.users.set("bob", windows=["1/1d"], who="a test")
        assert isinstance(asking.acquire("bob", "big"), Permit)
    fake = FakeNotifier(config)
    assert isinstance(fake.acquire("ann", "alarm"), Permit)
