"""Rules as people write them: the keys of the sections of `notifier.yaml`, and their forms."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from notifier.rules.calendar_windows import CALENDAR_FORM, CalendarWindow, parse_calendar_window
from notifier.rules.hours import Hours, closed_minutes, longest_open_us, text_of
from notifier.rules.kinds.window import Window, parse_window
from notifier.rules.policy import MAX_BUCKETS, NO_RULES, Burst, Policy
from notifier.settings import hours
from notifier.settings.checks import DURATION_TEXT, INTERVAL_TEXT, RATE_TEXT, WINDOWS, Duration, Rate, kind
from notifier.settings.schema_types import Section
from notifier.units import LARGEST_LIMIT, LONGEST_US, UNITS, format_duration, parse_duration, shown

MAX_AUTOMATIC: Final = 1_000  # without a precision, a larger limit is counted in buckets
MAX_EXACT: Final = 10_000  # about 1 MB for each user who fills it
AUTOMATIC_BUCKETS: Final = 96  # a bucket of a day is a quarter of an hour
MAX_CAPACITY: Final = 100

BurstRule = Burst | Literal["none"]


def _without_default(schema: dict[str, Any]) -> None:
    del schema["default"]  # it depends on the limit


def _text(value: object) -> str:
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise ValueError(f"must be text such as 1d, is {kind(value)}")  # noqa: TRY004
    return str(value)  # the parser refuses a bare number, and asks for its unit


class WindowForm(Section):
    """A window in its long form."""

    limit: int = Field(ge=1, description="How many sends.")
    interval: Annotated[str, BeforeValidator(_text, INTERVAL_TEXT)] = Field(
        description="In any interval of this length."
    )
    precision: Annotated[str, BeforeValidator(_text, Literal["exact"] | DURATION_TEXT)] = Field(
        default="",
        json_schema_extra=_without_default,
        description="How wide the buckets are in which it counts; `exact` keeps each send. "
        "Default: exact up to a limit of 1000, else a 96th of the interval.",
    )

    def value(self) -> Window:
        rate, precision = parse_window(f"{self.limit}/{self.interval}"), self.precision
        if "precision" not in self.model_fields_set:
            return automatic(rate)
        if precision != "exact":
            return replace(rate, precision_us=_precision_us(rate, precision))
        if rate.limit > MAX_EXACT:
            raise ValueError(f"{rate}: exact is for limits up to {MAX_EXACT}, as each send is kept; give a precision")
        return rate


class BurstForm(Section):
    """A burst: `capacity` sends at once, then one more at each `refill`."""

    capacity: int = Field(ge=1, le=MAX_CAPACITY, description="How many sends may go at once.")
    refill: Rate = Field(description="How fast the bucket refills, such as `1/30s`: one more send every 30 seconds.")

    def value(self) -> Burst:
        every_us = -(-self.refill.interval_us // self.refill.limit)
        if every_us < UNITS["ms"]:
            raise ValueError(f"refill: {self.refill} is more than one in each ms; use windows, or none at all")
        if self.capacity * every_us > LONGEST_US:
            longest = format_duration(LONGEST_US)
            raise ValueError(f"takes over {longest} to refill; give less capacity, or refill faster")
        return Burst(self.capacity, every_us=every_us)


def _window(value: object) -> Window | CalendarWindow:
    if isinstance(value, str):
        return parse_calendar_window(value) or automatic(parse_window(value))
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a rate such as 10/minute or 5/10s, is {kind(value)}")  # noqa: TRY004
    return WindowForm.model_validate(value).value()


def automatic(rate: Window) -> Window:
    """Return the window, or one that counts in buckets if the limit is large."""
    if rate.limit <= MAX_AUTOMATIC:
        return rate
    return replace(rate, precision_us=-(-rate.interval_us // AUTOMATIC_BUCKETS))


def _precision_us(rate: Window, text: str) -> int:
    try:
        precision_us = parse_duration(text, least_us=UNITS["ms"], max_us=rate.interval_us)
    except ValueError as error:
        raise ValueError(f"precision: {error}, or exact") from None
    least_us = -(-rate.interval_us // MAX_BUCKETS)
    if precision_us < least_us:
        least = format_duration(-(-least_us // UNITS["ms"]) * UNITS["ms"])
        raise ValueError(f"precision: {shown(text)} makes over {MAX_BUCKETS} buckets of {rate}; give {least} or more")
    return precision_us


def _burst(value: object) -> BurstRule:
    return "none" if value == "none" else _bucket(value)


def _bucket(value: object) -> Burst:
    if not isinstance(value, Mapping):
        raise ValueError(f"must be a mapping such as {{capacity: 20, refill: 1/3m}}, is {kind(value)}")  # noqa: TRY004
    return BurstForm.model_validate(value).value()


CALENDAR_TEXT: Final = Annotated[str, Field(pattern=f"^{CALENDAR_FORM}$", examples=["3/calendar-day"])]
_WINDOW: Final = PlainValidator(_window, json_schema_input_type=RATE_TEXT | CALENDAR_TEXT | WindowForm)
_BURST: Final = PlainValidator(_burst, json_schema_input_type=Literal["none"] | BurstForm)

Windows = Annotated[tuple[Annotated[Window | CalendarWindow, _WINDOW], ...], WINDOWS]
BurstOrNone = Annotated[BurstRule, _BURST]
Bucket = Annotated[Burst, PlainValidator(_bucket, json_schema_input_type=BurstForm)]
QuietOrNone = Annotated[tuple[Hours, ...], hours.QUIET_OR_NONE]
SendOrNone = Annotated[tuple[Hours, ...], hours.SEND_OR_NONE]
MaxWaiting = Annotated[int, Field(ge=1, le=1_000_000_000)]


class RuleSettings(Section):
    """Rules that a section may give. None: the section does not give the rule."""

    windows: Windows | None = None
    gap_us: Duration | None = Field(default=None, alias="gap")
    burst: BurstOrNone | None = None
    send: SendOrNone | None = Field(default=None, alias="send_hours")

    def policy(self, everyone: Policy = NO_RULES) -> Policy:
        """Return these rules, and everyone's for those that are not given."""
        quiet, send = self.quiet_hours, self.send
        return everyone.replaced(self.windows, gap_us=self.gap_us, burst=self.burst, quiet=quiet, send=send)

    @property
    def hours_key(self) -> str:
        """The key of the hours given here; if both are given, `quiet_hours`."""
        return "send_hours" if self.quiet_hours is None else "quiet_hours"

    def without_time(self, lead_us: int, user: RuleSettings, also: Mapping[str, int]) -> str:
        """Say why the hours given here leave no time to send; '' if they leave some, or none are given.

        user: its hours hold if hours are not given here. also: the minutes that other sections close, by section.
        """
        if self.quiet_hours is self.send is None:
            return ""
        quiet = (user.quiet_hours if self.quiet_hours is None else self.quiet_hours) or ()
        send = (user.send if self.send is None else self.send) or ()
        closed = closed_minutes(quiet, send)
        for other, minutes in {"": 0, **also}.items():
            if longest_open_us(closed | minutes) <= lead_us:
                given = " and ".join(filter(None, (text_of(quiet), f"send_hours {text_of(send)}" if send else "")))
                beside = f", beside the hours of {other}," if other else ""
                return f"{given}{beside} leaves no time to send; leave more than worker.lease"
        return ""

    @property
    def max_cost(self) -> int:
        """The largest cost that the rules given here admit."""
        return min((rule.max_cost for rule in self.policy().listed), default=LARGEST_LIMIT)

    @property
    def quiet_hours(self) -> tuple[Hours, ...] | None:
        return None


class UserSettings(RuleSettings):
    """Limits of a tier, or of one user. Rules that are not given are those under `user`."""

    quiet: QuietOrNone | None = Field(default=None, alias="quiet_hours")

    @property
    def quiet_hours(self) -> tuple[Hours, ...] | None:
        return self.quiet


class EveryoneSettings(UserSettings):
    """Limits of each user, for all categories together, and how many notifications of one user may wait."""

    max_waiting: MaxWaiting | None = None
