"""The command `worker`, which `python -m workers` and Django's `push_worker` run too."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from redis.exceptions import RedisError

from notifier.cli.given import GIVEN
from notifier.errors import RedisAwayError, SettingsError, needs_extra
from notifier.log import configure_logging
from notifier.rules.category import LANES
from notifier.scripts.keys import RQ_VARIABLE, in_force, under, use_prefixes
from notifier.settings import settings_path
from notifier.store.connection import check
from notifier.store.partitions import Partition, connect_all
from workers.configuration.start import load_at_start, those_there_first, when_there


def worker(
    lanes: Annotated[
        list[str] | None, typer.Argument(help="lanes to serve, the most urgent first  [default: all]")
    ] = None,
    *,
    name: Annotated[
        str | None, typer.Option(help="the worker's name in rq info  [default: a random one]", show_default=False)
    ] = None,
    partitions: Annotated[
        str | None,
        typer.Option(help="the partitions to serve, such as 0-15,20  [default: all]", show_default=False),
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="end when nothing is due")] = False,
) -> None:
    """Run one worker until it is told to stop (SIGTERM or Ctrl-C)."""
    if unknown := [lane for lane in lanes or () if lane not in LANES]:
        raise typer.BadParameter(f"{unknown[0]!r} is no lane; the lanes are {', '.join(LANES)}")
    run(GIVEN.config, lanes or LANES, name=name, partitions=partitions, burst=burst)


def run(
    config: Path | None, lanes: Sequence[str], *, name: str | None, partitions: str | None = None, burst: bool
) -> None:
    """Run a worker until it is told to stop. partitions: see `chosen`. Raises NotifierError if it cannot start."""
    config = settings_path(config)
    settings = load_at_start(config)
    configure_logging(settings.log.format, settings.log.level)
    served = those_there_first(chosen(connect_all(settings.redis), partitions))
    if served[0].prefixes is not None:
        use_prefixes(served[0].prefixes)
    connection = served[0].client
    os.environ[RQ_VARIABLE] = in_force().rqs  # RQ reads it at its import
    with needs_extra("a worker", "worker"):
        from workers.push import PushWorker  # noqa: PLC0415

    sys.path.append(str(Path.cwd()))  # for the functions of RQ's own jobs; last, so that it hides no package

    def make() -> PushWorker:
        check(connection)
        check_numbers(served[1:])  # the first one is claimed as the worker registers
        return PushWorker(lanes, name=name, connection=connection, settings=settings, config=config, partitions=served)

    made = when_there(make)
    assert made is not None, "nothing stops it before"
    made.work(burst=burst, logging_level=settings.log.level.upper())


def chosen(partitions: Sequence[Partition], text: str | None) -> Sequence[Partition]:
    """Return the partitions that `--partitions` names. Raises SettingsError."""
    if text is None:
        return partitions
    numbers: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"(\d{1,2})(?:-(\d{1,2}))?", part.strip())
        some = range(int(found[1]), int(found[2] or found[1]) + 1) if found else range(0)
        if not some or some[-1] >= len(partitions):
            raise SettingsError(f"--partitions: write numbers from 0 to {len(partitions) - 1}, such as 0-15,20")
        numbers |= set(some)
    return [partitions[number] for number in sorted(numbers)]


def check_numbers(partitions: Sequence[Partition]) -> None:
    """Check each partition as `Partition.claim`. One that is away is checked later."""
    for at in partitions:
        with under(at.prefixes), suppress(RedisAwayError, RedisError):
            at.claim()
