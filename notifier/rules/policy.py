"""The rules that a user and a category may have: plain values, without I/O and without a config."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.hours import Closed, Hours, closed_minutes, closed_times, longest_open_us, text_of
from notifier.rules.kinds.burst import Burst
from notifier.rules.kinds.gap import Gap
from notifier.rules.kinds.kind import RuleOfSends
from notifier.rules.kinds.window import Window
from notifier.units import LARGEST_LIMIT, LONGEST_US

__all__ = ["Burst", "Policy", "Window"]

MAX_BUCKETS: Final = 1_000
LONGEST_KEPT_US: Final = 1500 * LONGEST_US  # times in Redis have 7 bytes
KEPT_US: Final = 10_000_000  # a send can be refunded for this long, whichever rules count it


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for one key: windows, the minimum time `gap_us` between two sends, and a burst. All hold together.

    calendar: the calendar windows, in the user's local time.
    quiet: the quiet hours.
    send: the send hours; all other times are quiet.
    kept_us: a send is kept for at least this time, whichever rules hold.
    rules: the gap, the windows and the burst. If two of them allow the next send at the same time, the first decides.
    """

    windows: tuple[Window, ...] = ()
    gap_us: int = 0
    burst: Burst | None = None
    calendar: tuple[CalendarWindow, ...] = ()
    quiet: tuple[Hours, ...] = ()
    send: tuple[Hours, ...] = ()
    kept_us: int = 0
    rules: tuple[RuleOfSends, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise TypeError for a wrong part, ValueError if nothing could ever go: either would else show much later."""
        if not isinstance(self.windows, tuple):
            raise TypeError(f"Policy.windows is a tuple of Window, not {type(self.windows).__name__}")
        for window in self.windows:
            if not isinstance(window, Window):
                raise TypeError(f"Policy.windows holds Window, not {window!r}: write Window(5, '1m') for 5/minute")
        if type(self.gap_us) is not int or self.gap_us < 0:
            raise TypeError(f"Policy.gap_us is a whole number of microseconds from 0, not {self.gap_us!r}")
        if self.burst is not None and not isinstance(self.burst, Burst):
            raise TypeError(f"Policy.burst is a Burst, not {self.burst!r}: write Burst(20, '3m')")
        if (self.quiet or self.send) and not longest_open_us(self.closed_minutes):
            raise ValueError("Policy.quiet and Policy.send leave no minute of a week in which something could go")
        gap, burst = (Gap(self.gap_us),) if self.gap_us else (), (self.burst,) if self.burst else ()
        object.__setattr__(self, "rules", (*gap, *self.windows, *burst))

    @property
    def is_empty(self) -> bool:
        """Whether it never holds anything back, and no sends are kept for it."""
        return not self.rules and not self.uses_local_time and self.kept_us == 0

    @property
    def uses_local_time(self) -> bool:
        """Whether a rule needs the user's zone."""
        return bool(self.calendar or self.quiet or self.send)

    @property
    def closed(self) -> tuple[Closed, ...]:
        """When nothing is sent, by its quiet hours and its send hours."""
        return closed_times(self.closed_minutes) if self.quiet or self.send else ()

    @property
    def closed_minutes(self) -> int:
        """`closed` as minutes of a week, one bit each."""
        return closed_minutes(self.quiet, self.send)

    @property
    def is_exact(self) -> bool:
        """Whether each send is kept by itself for as long as it matters."""
        return self.precision_us == 0

    @property
    def horizon_us(self) -> int:
        """How long a send matters to these rules, in microseconds."""
        return max((self._calendar_us, *(rule.horizon_us for rule in self.rules)))

    @property
    def precision_us(self) -> int:
        """The width of the buckets in which its bucketed windows count, in µs; 0 if there are none.

        The windows share buckets of the finest precision, but at most MAX_BUCKETS for the longest window.
        """
        bucketed = [window for window in self.windows if window.precision_us]
        if not bucketed:
            return 0
        longest_us = max(window.interval_us for window in bucketed)
        return max(min(window.precision_us for window in bucketed), -(-longest_us // MAX_BUCKETS))

    @property
    def exact_us(self) -> int:
        """How long a send is kept by itself, in microseconds; older sends may be counted in buckets."""
        return max((KEPT_US, self._calendar_us, *(rule.exact_us for rule in self.rules)))

    @property
    def _calendar_us(self) -> int:
        return max((window.horizon_us for window in self.calendar), default=self.kept_us)

    def max_in(self, interval_us: int) -> int | None:
        """The most sends that these rules ever admit in an interval of this length; None is without bound."""
        return min((rule.max_in(interval_us) for rule in self.rules), default=None)

    def replaced(
        self,
        windows: tuple[Window | CalendarWindow, ...] | None = None,
        *,
        gap_us: int | None = None,
        burst: Burst | Literal["none"] | None = None,
        quiet: tuple[Hours, ...] | None = None,
        send: tuple[Hours, ...] | None = None,
    ) -> Policy:
        """Return this policy with other parts; None leaves a part as it is.

        windows: rolling windows and calendar windows. quiet, send: () is none.
        """
        rolling, calendar = (self.windows, self.calendar) if windows is None else _parted(windows)
        return Policy(
            rolling,
            self.gap_us if gap_us is None else gap_us,
            self.burst if burst is None else None if burst == "none" else burst,
            calendar,
            self.quiet if quiet is None else quiet,
            self.send if send is None else send,
        )

    @property
    def listed(self) -> tuple[RuleOfSends | CalendarWindow, ...]:
        """Its rules except quiet hours and send hours, as people list them: the windows first."""
        return (*self.windows, *self.calendar, *(rule for rule in self.rules if not isinstance(rule, Window)))

    def __str__(self) -> str:
        parts = [str(rule) for rule in self.listed]
        parts += [f"quiet {hours}" for hours in self.quiet]
        parts += [f"send {text_of(self.send)}"] if self.send else []
        return ", ".join(parts) or "no rules"


NO_RULES: Final = Policy()


def check_fits_all(policy: Policy, cost: int, most: int = LARGEST_LIMIT) -> None:
    """Raise ValueError if the cost is wrong, if a rule never admits it, or if the rules reach too far back."""
    if type(cost) is not int or not 1 <= cost <= most:
        raise ValueError(f"cost must be a whole number from 1 to {most}, is {cost!r}")
    for rule in policy.listed:
        if cost > rule.max_cost:
            raise ValueError(f"a cost of {cost} never fits into {rule}")
    if policy.horizon_us > LONGEST_KEPT_US:
        raise ValueError("rules reach back 1500 years at most: make a burst smaller, or a time shorter")


@lru_cache(maxsize=1024)  # tens of thousands of users share a few
def _parted(windows: tuple[Window | CalendarWindow, ...]) -> tuple[tuple[Window, ...], tuple[CalendarWindow, ...]]:
    return (
        tuple(window for window in windows if isinstance(window, Window)),
        tuple(window for window in windows if isinstance(window, CalendarWindow)),
    )
