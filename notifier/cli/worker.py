"""The command that works."""

from __future__ import annotations

from typing import Annotated

import typer

from notifier.rules.category import LANES


def worker(
    context: typer.Context,
    lanes: Annotated[
        list[str] | None, typer.Argument(help="lanes to serve, the most urgent first  [default: all]")
    ] = None,
    *,
    name: Annotated[
        str | None, typer.Option(help="the worker's name in rq info  [default: a random one]", show_default=False)
    ] = None,
    partitions: Annotated[
        str | None,
        typer.Option(help="of a fleet of several: those to serve, such as 0-15,20  [default: all]", show_default=False),
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="end when nothing is due")] = False,
) -> None:
    """Run one worker until it is told to stop (SIGTERM or Ctrl-C)."""
    if unknown := [lane for lane in lanes or () if lane not in LANES]:
        raise typer.BadParameter(f"{unknown[0]!r} is no lane; the lanes are {', '.join(LANES)}")
    from workers.__main__ import run  # noqa: PLC0415 - no other command needs RQ's worker

    raise typer.Exit(run(context.obj, lanes or LANES, name=name, partitions=partitions, burst=burst))
