"""The types of rules in `notifier.yaml`, and the base of its sections."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict

from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.hours import Hours
from notifier.rules.policy import Window
from notifier.settings import hours, rule_forms
from notifier.settings.checks import WINDOWS

Windows = Annotated[tuple[Annotated[Window | CalendarWindow, rule_forms.WINDOW], ...], WINDOWS]
BurstRule = Annotated[rule_forms.BurstRule, rule_forms.BURST]
QuietOrNone = Annotated[tuple[Hours, ...], hours.QUIET_OR_NONE]
QuietOrIgnore = Annotated[tuple[Hours, ...] | Literal["ignore"], hours.QUIET_OR_IGNORE]
SendOrNone = Annotated[tuple[Hours, ...], hours.SEND_OR_NONE]


class Section(BaseModel):
    """A mapping of the file: no key but its own, no value of another type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @classmethod
    def keys(cls) -> dict[str, Any]:
        """The keys as they are written in the file, with the type of each."""
        return {field.alias or name: field.annotation for name, field in cls.model_fields.items()}
