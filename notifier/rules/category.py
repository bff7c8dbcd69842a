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
MAX_COST: Final = 100  # each counted send is an entry in Redis, and one call removes all entries of a notification


@dataclass(frozen=True, slots=True)
class Digest:
    """One message for several that wait. It is due once `after` wait, or `within_us` after the first began to wait.

    title, body: the text of a digest of several; {count} in it is how many.
    """

    after: int
    within_us: int
    title: str | None = None
    body: str | None = None


@dataclass(frozen=True, slots=True)
class Category:
    """A kind of message: its lane, and the rules that hold in addition to the user's.

    expires_us: a notification without its own expiry is not sent after this time; None is for ever.
    bypass: counted in the user's and the category's windows, but never held back by them.
    attempts: how many times a notification may be tried.
    on_unknown: what to do if no answer came and the provider may have delivered.
    app: the app of the platforms, unless the notification names one.
    when_blocked: what happens to a notification that may not go at once.
    digest: the one message for several that wait, if when_blocked says so.
    overflow: what to do with a notification if no more may wait.
    ignores_quiet: the user's quiet hours do not hold it back.
    priority: of a notification that names none.
    cost: how many sends a notification counts as, in every rule that counts.
    overall: a window for all users together, in which each notification counts as one.
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
        """Whether one notification may stand for several, and its text may say how many."""
        return "collapse" in {self.when_blocked, self.overflow} or self.digest is not None


@dataclass(frozen=True, slots=True)
class PlatformLimits:
    """A platform's own limits, apart from the user's rules; an empty policy, or None, holds nothing back.

    device: for each device. background: for each device, for messages that show nothing; no platform has both.
    collapsible: for each device, for messages with a collapse id. project: for each route, for all users together.
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
        """The limits of a device for sends that the user's rules hold, and for sends that bypass these rules.

        If the user's rules are narrower, only sends that bypass are counted, up to what the user's rules leave.
        """
        windows = self.device.windows
        spare = [window.limit - (user.max_in(window.interval_us) or window.limit) for window in windows]
        if not windows or min(spare) < 1:
            return self.device, self.device
        left = tuple(Window(n, interval_us=window.interval_us) for n, window in zip(spare, windows, strict=True))
        return Policy(), Policy(left)


NO_LIMITS: Final = PlatformLimits()


def check_fits(user: Policy, category: Category) -> None:
    """Raise InvalidNotificationError if the user's rules, or the category's, never admit the category's cost."""
    if category.cost == 1 or category.bypass:
        return
    try:
        for policy in (user, category.policy):
            check_fits_all(policy, category.cost, MAX_COST)
    except ValueError as error:
        raise InvalidNotificationError("category", f"{category.name!r} never goes to this user: {error}") from None
