"""`@throttled` limits the jobs of an RQ function like notifications; the function may call `mark_sent`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from notifier.errors import InvalidNotificationError
from notifier.notification.json_values import check_text
from notifier.notification.notification import USER_BYTES
from notifier.rules.category import DEFAULT_CATEGORY

MARKER: Final = "__push_throttled__"  # the attribute of a decorated function that holds its `Throttle`

F = TypeVar("F", bound=Callable[..., Any])
_sent = False  # whether the job of this process has called `mark_sent`; RQ forks a process for each job


@dataclass(frozen=True, slots=True)
class Throttle:
    """The limits of a function's jobs. user: the name of the parameter that holds the user."""

    user: str
    category: str = DEFAULT_CATEGORY

    def meta(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, str]:
        """The user and the category of one call. Raises InvalidNotificationError if the call names no user."""
        try:
            call = inspect.signature(function).bind(*args, **kwargs)
            call.apply_defaults()
            user = call.arguments[self.user]
        except (TypeError, KeyError) as error:
            raise InvalidNotificationError(self.user, f"is not in the call: {error}") from None
        if isinstance(user, bool) or not isinstance(user, str | int):
            of = type(user).__name__
            raise InvalidNotificationError(self.user, f"must be the user, a string or a number, not {of}")
        return {"user": check_text(self.user, str(user), USER_BYTES), "category": self.category}


def throttled(*, user: str, category: str = DEFAULT_CATEGORY) -> Callable[[F], F]:
    """Limit the jobs of an RQ function by the rules of their user and category, like notifications.

    user: the name of the function's parameter that holds the user. The function itself is not changed::

        @throttled(user="user_id", category="chat")
        def notify(user_id, text): ...

        queue.enqueue(notify, 42, "Are you coming?")
    """

    def mark(function: F) -> F:
        names = list(inspect.signature(function).parameters)
        if user not in names:
            has, name = ", ".join(names) or "none", getattr(function, "__name__", repr(function))
            raise TypeError(f"throttled(user={user!r}): {name} has no such parameter; it has {has}")
        setattr(function, MARKER, Throttle(user, category))
        return function

    return mark


def mark_sent() -> None:
    """Say inside a throttled function that its message has left: then it counts, even if the function raises."""
    global _sent  # noqa: PLW0603 - one job a process
    _sent = True


def was_sent() -> bool:
    """Whether the function that this process runs has called `mark_sent`."""
    return _sent
