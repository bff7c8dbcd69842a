"""The command `redis acl`."""

from __future__ import annotations

import re
from typing import Annotated

import typer

from notifier.cli.options import without_rates
from notifier.cli.output import answer
from notifier.operations import access
from notifier.scripts.keys import RQ, Prefixes, under
from notifier.store.connection import use_keys_of


def acl(
    *,
    role: Annotated[str | None, typer.Option(help=f"{', '.join(access.ROLES)}; else all of them")] = None,
    redis_version: Annotated[str, typer.Option(help="the version of your Redis")] = "7.0",
) -> None:
    """Print lines for Redis's ACL file: a user for each role, with only what it needs. This does not ask Redis.

    The lines have no passwords. Add `#` and the SHA-256 of a password to each line; otherwise nobody can use this user.
    """
    if role is not None and role not in access.ROLES:
        raise typer.BadParameter(f"is one of {', '.join(access.ROLES)}", param_hint="--role")
    version = _version(redis_version)
    config = without_rates().redis
    several = config.partitions > 1
    if not several:
        use_keys_of(config)
    # With several partitions, a star in the patterns replaces the hash tag.
    with under(Prefixes(f"{{*}}{config.prefix}", f"{{*}}{config.prefix}:{RQ}") if several else None):
        lines = {name: access.line(name, version) for name in ([role] if role else access.ROLES)}
    answer(lines, *lines.values())


def _version(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)?", text)
    if found is None or (version := (int(found[1]), int(found[2]))) < (6, 2):
        raise typer.BadParameter("is a version such as 7.2, at least 6.2", param_hint="--redis-version")
    return version
