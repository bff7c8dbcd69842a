"""The errors that callers get: each is a `NotifierError`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal

# The first three end the host of a URL: what a password has before them would be read as a port.
URL_SIGNS: Final = "in a password write %2F for /, %23 for #, %3F for ?, and %25 for %"


class NotifierError(Exception):
    """The base of all errors raised on purpose by this library; its text is meant for people.

    `exit_status` is the exit status of a command that ends with this error; `notifier --help` lists them.
    """

    exit_status: ClassVar[int] = 1

    def __reduce__(self) -> tuple[Any, ...]:
        # Pickle would call `__init__` with the text alone.
        return type(self).__new__, (type(self), *self.args), self.__dict__


class InvalidNotificationError(NotifierError):
    """A notification was refused before anything was written.

    `field` names the wrong field as the caller wrote it, such as ``devices[1].token``.
    """

    def __init__(self, field: str, why: str) -> None:
        super().__init__(field, why)
        self.field = field
        self.why = why

    def __str__(self) -> str:
        return f"{self.field}: {self.why}"


class InvalidPreferenceError(InvalidNotificationError):
    """A user's choice was refused before anything was written: `field` names it, such as ``windows``."""


class SettingsError(NotifierError):
    """The configuration cannot be used; the text names the file, the line, the key and what would be right."""

    exit_status = 3


@contextmanager
def needs_extra(what: str, extra: str) -> Iterator[None]:
    """If a package is missing, raise SettingsError with the extra of push-throttle that brings the package.

    what: the feature that needs the package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        why = f"needs the package {package}, which is not installed: pip install 'push-throttle[{extra}]'"
        raise SettingsError(f"{what} {why}") from None


class RedisUnusableError(NotifierError):
    """Redis cannot be reached, refuses the password, is older than 6.2, or evicts keys when it is full."""

    exit_status = 4


class RedisAwayError(RedisUnusableError):
    """Redis cannot be reached, or is still loading its data: a later attempt may succeed."""


class NotReplicatedError(RedisUnusableError):
    """The primary accepted notifications, but perhaps fewer replicas have them than `redis.wait_replicas` says.

    `job_ids` are the ids of the accepted notifications. If you send one again with its job id, the call waits for the
    replicas again, and the notification is accepted once. `refused`: see OverloadedError.
    """

    def __init__(self, job_ids: list[str], why: str, refused: Sequence[Refused] = ()) -> None:
        others = f"; {len(refused)} more refused: {refused[0]}" if refused else ""
        super().__init__(f"accepted, and may be lost with the primary: {why}{others}")
        self.job_ids = job_ids
        self.why = why
        self.refused = tuple(refused)


class OverloadedError(NotifierError):
    """Some notifications were refused because too many wait already. `refused` lists them.

    tried: how many were tried. All that were tried and not refused were accepted. If only users' own limits refuse
    some, `send_many` tries all. If a limit of all users is reached, `send_many` ends with the current hundred. If
    another error ended it, this error has that one as `__context__`; then the next hundred may have been accepted too.
    """

    def __init__(self, refused: Sequence[Refused], tried: int) -> None:
        of = f"{len(refused)} of {tried} refused; notifications[{refused[0].place}]: " if refused and tried > 1 else ""
        super().__init__(f"overloaded: {of}{refused[0]}" if refused else "overloaded")
        self.refused = tuple(refused)
        self.tried = tried


class LimiterUnreachableError(NotifierError):
    """The limiter could not ask Redis. Do not send: nobody knows whether the limits allow it."""

    exit_status = 4


class ChannelError(NotifierError):
    """Apple refused a call for a broadcast channel, or could not be asked.

    reason: Apple's own word, or why there was no answer.
    status: the status of Apple's answer; None if there was none.
    """

    def __init__(self, reason: str, status: int | None = None, help: str = "") -> None:  # noqa: A002 - as of an answer
        text = f"APNs answered {status} {reason}" if status else f"APNs did not answer: {reason}"
        super().__init__(f"{text}: {help}" if help else text)
        self.reason = reason
        self.status = status


Limit = Literal["user", "all", "memory"]


@dataclass(frozen=True, slots=True)
class Refused:
    """One notification that was not accepted.

    place: its position in `send_many`, from 0.
    limit: 'user' (the user's own `max_waiting`), 'all' (that of all users) or 'memory' (`redis.max_memory`).
    waiting: how many waited, or the bytes in use.
    most: how many may wait, or the bytes that may be in use.
    partitions: their number. If there are several, the limit 'all' is the share of one partition.
    """

    user: str
    limit: Limit
    waiting: int
    most: int
    place: int = 0
    partitions: int = 1

    def __str__(self) -> str:
        if self.limit == "memory":
            return f"Redis uses {self.waiting:,} bytes, and redis.max_memory is {self.most:,}"
        if self.limit == "all" and self.partitions > 1:
            share = f"its share of max_waiting is {self.most}"
            return f"{self.waiting} wait in one of {self.partitions} partitions, and {share}"
        who = f"of user {self.user!r}" if self.limit == "user" else "in all"
        return f"{self.waiting} wait {who}, and max_waiting is {self.most}"
