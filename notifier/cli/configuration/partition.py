"""The command `partition`: in which partition a user is."""

from __future__ import annotations

from typing import Annotated

import typer

from notifier.cli.options import without_rates
from notifier.cli.output import answer
from notifier.scripts.keys import RQ_VARIABLE, in_force
from notifier.settings.redis_url import is_cluster
from notifier.store.connection import use_keys_of
from notifier.store.tags import number_of, prefixes_of, tag_of


def partition(
    *,
    user: Annotated[str, typer.Option(help="the user")],
) -> None:
    """Print a user's partition, its hash tag, and its prefix of RQ's keys. This does not ask Redis."""
    config = without_rates().redis
    if is_cluster(config.url):
        number = number_of(user, config.partitions)
        prefixes, tag = prefixes_of(config, number), tag_of(number, config.partitions)
    else:
        use_keys_of(config)
        number, prefixes, tag = 0, in_force(), ""
    value = {"partition": number, "of": config.partitions, "tag": tag, RQ_VARIABLE: prefixes.rqs}
    where = f"partition {number} of {config.partitions}" + (f", hash tag {{{tag}}}" if tag else "")
    answer(value, where, f"{RQ_VARIABLE}='{prefixes.rqs}'")
