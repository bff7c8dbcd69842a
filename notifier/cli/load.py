"""The command load: how a limiter does under many callers, and whether it kept its rate."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import Progress

from notifier.cli.output import JsonOption, Status, complain, print_json, print_rows
from notifier.errors import LimiterUnreachableError
from notifier.operations.load import Load, Report, check, drive, summary
from notifier.operations.load_strategies import STRATEGIES

MAX_PROCESSES = 8


def load(
    *,
    url: Annotated[str, typer.Option(help="the Redis; its other keys are left alone")] = "redis://localhost:6379/0",
    concurrency: Annotated[int, typer.Option(min=1, help="callers at once")] = 50,
    iterations: Annotated[int, typer.Option(min=1, help="calls in all")] = 20_000,
    keys: Annotated[int, typer.Option(min=1, help="how many keys they ask for in turn")] = 100,
    rate: Annotated[str, typer.Option(help="what each key may have")] = "1000/minute",
    threshold: Annotated[
        int | None,
        typer.Option(min=0, help="the most one key may be admitted in an interval  [default: the rate's limit]"),
    ] = None,
    strategy: Annotated[str, typer.Option(help=f"{', '.join(STRATEGIES)}")] = "ours",
    processes: Annotated[int | None, typer.Option(min=1, help="[default: as many as processors, 8 at most]")] = None,
    json: JsonOption = False,
) -> None:
    """Drive a limiter from many callers, and judge what it admitted.

    Status 1 where a key was admitted more often in an interval than its rate, or --threshold, allows.
    """
    count = min(concurrency, processes or min(MAX_PROCESSES, os.cpu_count() or 1))
    wanted = Load(url, rate, concurrency, iterations, keys, count, strategy)
    try:
        check(wanted)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    try:
        report = _drive(wanted)
    except LimiterUnreachableError as error:
        complain(str(error))
        raise typer.Exit(Status.REDIS) from None
    if json:
        print_json(asdict(report) | {"calls_per_second": report.calls_per_second, "strategy": strategy})
    else:
        print_rows("", ("", ""), summary(wanted, report))
    if report.over_admitted or (threshold is not None and report.most > threshold):
        complain(f"{report.most} of one key were admitted in one interval of {rate}")
        raise typer.Exit(Status.NOT_RIGHT)


def _drive(wanted: Load) -> Report:
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("calls", total=wanted.iterations)
        return drive(wanted, lambda done: progress.update(task, completed=done))
