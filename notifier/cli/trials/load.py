"""The command load: how a limiter does under many callers, and whether it kept its rate."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated, Final

import typer

from notifier.cli.options import JsonOption
from notifier.cli.output import ProgressBar, Rows, Status, answer, fail
from notifier.errors import LimiterUnreachableError, SettingsError
from notifier.operations.load import Load, check, drive, summary
from notifier.settings import load_settings, settings_path

MAX_PROCESSES: Final = 8
LOCAL: Final = "redis://localhost:6379/0"


def load(
    context: typer.Context,
    *,
    url: Annotated[
        str | None,
        typer.Option(help="the Redis; other keys stay as they are  [default: the configured one]", show_default=False),
    ] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="callers at once")] = 50,
    iterations: Annotated[int, typer.Option(min=1, help="calls in all")] = 20_000,
    keys: Annotated[int, typer.Option(min=1, help="how many keys they ask for in turn")] = 100,
    rate: Annotated[str, typer.Option(help="what each key may have")] = "1000/minute",
    threshold: Annotated[
        int | None,
        typer.Option(min=0, help="the most one key may be admitted in an interval  [default: the rate's limit]"),
    ] = None,
    processes: Annotated[int | None, typer.Option(min=1, help="[default: as many as processors, 8 at most]")] = None,
    json: JsonOption = False,
) -> None:
    """Drive the limiter from many callers, and judge what it admitted.

    Status 1 where a key was admitted more often in an interval than its rate, or --threshold, allows.
    """
    count = min(concurrency, processes or min(MAX_PROCESSES, os.cpu_count() or 1))
    wanted = Load(url or _url(context), rate, concurrency, iterations, keys, count)
    try:
        check(wanted)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        with ProgressBar("calls", iterations) as bar:
            report = drive(wanted, bar.move)
    except LimiterUnreachableError as error:
        fail(str(error), Status.REDIS)
    told = asdict(report) | {"calls_per_second": report.calls_per_second}
    answer(told, Rows(("", ""), summary(wanted, report)), json=json)
    if report.over_admitted or (threshold is not None and report.most > threshold):
        fail(f"{report.most} of one key were admitted in one interval of {rate}")


def _url(context: typer.Context) -> str:
    """The configured Redis; of who has no configuration the one in the environment, or on this host."""
    try:
        path = settings_path(context.obj)
    except SettingsError:
        return os.environ.get("NOTIFIER_REDIS_URL") or LOCAL
    return load_settings(path, rates={}).redis.url
