"""A throttled function's call: whose it is."""

from __future__ import annotations

from notifier.notification.throttled import Throttle


def test_a_parameter_may_have_a_default() -> None:
    """A call that leaves the user out is its default's, as in Python."""

    def notify(text: str, user_id: str = "anon") -> None: ...

    throttle = Throttle("user_id")
    assert throttle.meta(notify, ["hi"], {}) == {"user": "anon", "category": "default"}
    assert throttle.meta(notify, ["hi"], {"user_id": "anna"})["user"] == "anna"
