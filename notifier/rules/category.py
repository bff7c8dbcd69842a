"""Categories: kinds of messages with a lane and rules of their own; and the limits of platforms."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from notifier.errors import InvalidNotificationError
from notifier.rules.kinds.burst import Burst
from notifier.rules.kinds.window import Window
from notifier.rules.policy import NO_RULES, Policy, check_fits_all

Lane = Literal["urgent", "default", "bulk"]
OnUnknown = Literal["resend", "give_up"]
WhenBlocked = Literal["queue", "collapse", "digest", "drop"]
Overflow = Literal["reject", "drop_oldest", "collapse"]
Priority = Literal["normal", "high"]

LANES: Final[tuple[Lane, ...]] = ("urgent", "default", "bulk")
DEFAULT_CATEGORY: Final = "default"
MAX_COST: Final = 100  # each is an entry in Redis; and no more are taken out again at once


@dataclass(frozen=True, slots=True)
class Digest:
    """One message for those that wait, sent once `after` wait or `within_us` after the first began to, if not later.

    title, body: its text where there are several, in which {count} is how many.
    """

    after: int
    within_us: int
    title: str | None = None
    body: str | None = None


@dataclass(frozen=True, slots=True)
class Category:
    """A kind of message: the lane it travels in and the rules that hold on top of the user's.

    expires_us: how long a notification is worth sending if it does not say so itself; None is for ever.
    bypass: counted against the user's and the category's windows, but never held back by them.
    attempts: how many times it may be tried in all. on_unknown: what to do when no answer came and the
    provider may or may not have delivered. app: by which app of the platforms it goes, unless the notification says so.
    when_blocked: whether one that may not go at once waits, and what becomes of it when a newer one with its collapse
    id comes.
    digest: how those that wait are summed up, where when_blocked says so.
    overflow: what to do with one more where no more may wait.
    ignores_quiet: the user's quiet hours do not hold it back. priority: of a notification that names none.
    cost: as how many sends one counts, in every rule that counts.
    overall: the most of it that all users together are sent, each counted as one.
    """

    name: str
    lane: Lane = "default"
    policy: Policy = NO_RULES
    expires_us: int | None = None
    bypass: bool = False
    attempts: int = 5
    on_unknown: OnUnknown = "resend"
    app: str | None = None
    when_blocked: WhenBlocked = "queue"
    ignores_quiet: bool = False
    overflow: Overflow = "reject"
    priority: Priority = "normal"
    digest: Digest | None = None
    cost: int = 1
    overall: Window | None = None

    @property
    def counts(self) -> bool:
        """Whether one may stand for several, and its text for their number."""
        return "collapse" in {self.when_blocked, self.overflow} or self.digest is not None


@dataclass(frozen=True, slots=True)
class PlatformLimits:
    """A platform's own limits, apart from the user's rules; what is empty or None holds nothing back.

    device: for each device. background: for each device, of what shows nothing; no platform has both. collapsible: for
    each device, of what has a collapse id. project: for each route, whoever the users are.
    """

    device: Policy = NO_RULES
    background: Policy = NO_RULES
    collapsible: Burst | None = None
    project: Window | None = None

    def __post_init__(self) -> None:
        if not self.device.is_empty and not self.background.is_empty:
            raise ValueError("a send is counted once for its device: give device or background, not both")

    @property
    def is_empty(self) -> bool:
        """Whether they never hold anything back."""
        return self == NO_LIMITS

    def of_device(self, user: Policy) -> tuple[Policy, Policy]:
        """The limits of a user's sends to one device: those that the user's rules hold, and those that bypass.

        Where the user's own rules are narrower, theirs need not be counted; what bypasses gets what they leave.
        """
        windows = self.device.windows
        spare = [window.limit - (user.max_in(window.interval_us) or window.limit) for window in windows]
        if not windows or min(spare) < 1:
            return self.device, self.device
        left = tuple(Window(n, interval_us=window.interval_us) for n, window in zip(spare, windows, strict=True))
        return Policy(), Policy(left)


NO_LIMITS: Final = PlatformLimits()


def check_fits(user: Policy, category: Category) -> None:
    """Raise InvalidNotificationError where this user's rules, or the category's, never admit one of the category."""
    if category.cost == 1 or category.bypass:
        return
    try:
        for policy in (user, category.policy):
            check_fits_all(policy, category.cost, MAX_COST)
    except ValueError as error:
        raise InvalidNotificationError("category", f"{category.name!r} never goes to this user: {error}") from None
