"""How code that sends is tested: without Redis and without workers, in simulated time. See docs/how-to/testing.md."""

from __future__ import annotations

from notifier import Device, Notification, Notifier, RedisUnusableError
from notifier.testing import FakeNotifier


def greet(notifier: Notifier, user: str) -> bool:
    """The code under test: it says whether the greeting was accepted."""
    device = Device("fcm", "fcm-registration-0001")
    try:
        notifier.send(Notification(user=user, devices=[device], title="Hello", category="chat"))
    except RedisUnusableError:
        return False
    return True


def test_a_greeting_arrives() -> None:
    fake = FakeNotifier()
    assert greet(fake, "anna")
    assert [notification.title for notification in fake.delivered("anna")] == ["Hello"]


def test_the_second_one_waits_for_the_gap() -> None:
    fake = FakeNotifier()
    greet(fake, "anna")
    greet(fake, "anna")
    assert (len(fake.outbox), len(fake.waiting("anna"))) == (1, 1)
    fake.advance("1m")
    assert len(fake.outbox) == 2


def test_redis_is_away() -> None:
    fake = FakeNotifier()
    fake.fail_next(RedisUnusableError("Redis does not answer"))
    assert not greet(fake, "anna")


def test_a_dead_token_is_told() -> None:
    fake = FakeNotifier()
    fake.fail_next("rejected")
    greet(fake, "anna")
    assert [gone.user for gone in fake.feedback()] == ["anna"]


def test_code_that_makes_its_own_notifier(notifier_outbox: FakeNotifier) -> None:
    greet(Notifier.from_config(), "anna")
    assert len(notifier_outbox.outbox) == 1
