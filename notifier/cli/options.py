"""Read the values of options, and the configuration that a command uses."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import typer

from notifier.cli.given import GIVEN
from notifier.cli.output import complain
from notifier.errors import SettingsError
from notifier.forecast.trace import is_near
from notifier.settings import Settings, load_settings
from notifier.store.partitions import opened_all
from notifier.store.published import rates_in_force
from notifier.units import UNITS, parse_duration

T = TypeVar("T")

A_TIME: Final = "2026-12-24T18:00:00+01:00"
TextOption = Annotated[str | None, typer.Option()]
ExpiresOption = Annotated[str | None, typer.Option(help="do not send it after this time, such as 90s or 2h")]


def duration_us(text: str, name: str, **bounds: int) -> int:
    """The µs in the value of the option `name`; `least_us` and `max_us` bound it."""
    try:
        return parse_duration(text, **bounds)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None


def json_object(text: str, name: str) -> dict[str, Any]:
    why = ""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        value, why = None, f": {error}"
    if not isinstance(value, dict):
        raise typer.BadParameter(f'give a JSON object, such as \'{{"screen": "inbox"}}\'{why}', param_hint=name)
    return value


def seconds(text: str | None, name: str) -> float | None:
    """The seconds in the value of the option `name`; None if it was not given."""
    return None if text is None else duration_us(text, name) / UNITS["s"]


def a_time(text: str, option: str) -> datetime:
    """Read a time from 1971 to 2099, for which zones are known. Raises BadParameter for others and without a zone."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(f"give a time such as {A_TIME}", param_hint=option) from None
    if at.tzinfo is None:
        raise typer.BadParameter(f"a time needs its zone, such as {A_TIME}", param_hint=option)
    if not is_near(at):
        raise typer.BadParameter(f"give a time from 1971 to 2099, such as {A_TIME}", param_hint=option)
    return at


def file_of(file: Path | None) -> Path | None:
    if file is not None and GIVEN.config is not None:
        raise typer.BadParameter("give FILE or --config, not both")
    return file or GIVEN.config


def without_rates() -> Settings:
    """The settings for a command that needs no rates, so that wrong rates do not stop it."""
    return load_settings(GIVEN.config, rates={})


def settings_in_force() -> Settings:
    """The settings, with the applied rates instead of the file's, if there are some and they can be used."""
    own = load_settings(GIVEN.config)
    with opened_all(own) as partitions:

        def applied() -> Settings:
            rates = partitions.ask_any(rates_in_force)[1]
            return own if rates is None else load_settings(GIVEN.config, rates=rates)

        return usable(applied, lambda: own)


def usable(read: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """Return `read()`. If that raises SettingsError, warn and return `otherwise()`, which may raise it too."""
    try:
        return read()
    except SettingsError as error:
        found = otherwise()
        complain(f"warning: not used here: {error}")
        return found


def settings_to_stop() -> tuple[Settings, bool]:
    """The settings for a command that must work even if the rates are wrong; False: without rates, after a warning.

    Raises SettingsError if more than the rates is wrong.
    """
    return usable(lambda: (load_settings(GIVEN.config), True), lambda: (without_rates(), False))
