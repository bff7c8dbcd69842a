"""`notifier worker [lane …]`, also `python -m workers`: one PushWorker by the configuration."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from notifier.errors import NotifierError
from notifier.log import configure_logging
from notifier.rules.policy import LANES
from notifier.settings import settings_path
from notifier.shards.map import claim
from notifier.store.connection import connect
from workers.push import PushWorker, wait_for_redis
from workers.start import load_at_start


def main(argv: list[str] | None = None, prog: str = "python -m workers") -> int:
    """Run a worker until it is told to stop; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog=prog, description="Run one worker until it is told to stop (SIGTERM or Ctrl-C)."
    )
    parser.add_argument(
        "lanes", nargs="*", default=list(LANES), help="lanes to serve, the most urgent first (default: all)"
    )
    parser.add_argument(
        "--config", help="the configuration file (default: $NOTIFIER_CONFIG, else config/notifier.yaml)"
    )
    parser.add_argument("--name", help="the worker's name in `rq info` (default: a random one)")
    parser.add_argument(
        "--shard", help="which of redis.shards to serve: its name or position (default: $NOTIFIER_SHARD)"
    )
    parser.add_argument("--burst", action="store_true", help="end when nothing is due")
    arguments = parser.parse_args(argv)
    try:
        config = settings_path(arguments.config)
        settings = load_at_start(config)
        configure_logging(settings.log.format, settings.log.level)
        shard = settings.redis.which(arguments.shard or os.environ.get("NOTIFIER_SHARD") or None)
        connection = connect(settings.redis.shard(shard))
        wait_for_redis(connection)
        if shard:
            claim(connection, shard)
    except NotifierError as error:
        print(error, file=sys.stderr)  # noqa: T201 - for people
        return error.exit_status
    sys.path.append(str(Path.cwd()))  # where the functions of other jobs are; last, so that it hides no package
    worker = PushWorker(arguments.lanes, name=arguments.name, connection=connection, settings=settings, config=config)
    worker.work(burst=arguments.burst, logging_level=settings.log.level.upper())
    return 0


if __name__ == "__main__":
    sys.exit(main())
