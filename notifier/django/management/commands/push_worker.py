"""`manage.py push_worker` runs `notifier worker` with the configuration of the Django project."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from notifier.django.sending import config_path
from notifier.errors import NotifierError, needs_extra
from notifier.rules.category import LANES


class Command(BaseCommand):
    """Runs one worker until it is told to stop."""

    help = "Run one push worker until it is told to stop (SIGTERM or Ctrl-C)."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "lanes", nargs="*", help=f"lanes to serve, the most urgent first (default: {' '.join(LANES)})"
        )
        parser.add_argument("--name", help="the worker's name in `rq info` (default: a random one)")
        parser.add_argument("--burst", action="store_true", help="end when nothing is due")

    def handle(self, *_: Any, **options: Any) -> None:
        lanes = options["lanes"] or LANES
        if unknown := [lane for lane in lanes if lane not in LANES]:
            raise CommandError(f"{unknown[0]!r} is no lane; the lanes are {', '.join(LANES)}", returncode=2)
        try:
            with needs_extra("manage.py push_worker", "worker"):
                from notifier.cli.worker import run  # noqa: PLC0415 - other commands of manage.py need no RQ
            run(config_path(), lanes, name=options["name"], burst=options["burst"])
        except NotifierError as error:
            raise CommandError(str(error), returncode=error.exit_status) from None
