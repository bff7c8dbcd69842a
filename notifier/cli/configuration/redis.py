"""The commands below `notifier redis`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from notifier.cli.options import JsonOption
from notifier.cli.output import answer
from notifier.errors import SettingsError
from notifier.operations import access
from notifier.scripts.keys import RQ, Prefixes, under
from notifier.settings import load_settings
from notifier.settings.checks import read_secret
from notifier.store.connection import use_keys_of

commands = typer.Typer(help="What Redis has to know of the notifier.", no_args_is_help=True)


@commands.callback()
def _group() -> None:
    """A group, also while it has one command."""


@commands.command()
def acl(
    context: typer.Context,
    *,
    role: Annotated[str | None, typer.Option(help=f"{', '.join(access.ROLES)}; else all of them")] = None,
    password_file: Annotated[
        Path | None, typer.Option(help="its password, of which the line has the SHA-256; needs --role")
    ] = None,
    redis_version: Annotated[str, typer.Option(help="of the Redis that gets the rules")] = "7.0",
    json: JsonOption = False,
) -> None:
    """Print lines for Redis's ACL file: a user for each role, with the least commands and keys. Redis is not asked.

    A user without a password cannot sign in, until `ACL SETUSER notifier-worker ">…"` gives it one.
    """
    if role is not None and role not in access.ROLES:
        raise typer.BadParameter(f"is one of {', '.join(access.ROLES)}", param_hint="--role")
    if password_file is not None and role is None:
        raise typer.BadParameter("each role needs a password of its own: give --role too", param_hint="--password-file")
    version = _version(redis_version)
    config = load_settings(context.obj, rates={}).redis
    several = config.partitions > 1
    if not several:
        use_keys_of(config)
    password = None if password_file is None else read_secret(password_file, "--password-file").rstrip("\r\n")
    if password == "":
        raise SettingsError(f"--password-file: {password_file} is empty")
    # In the patterns of several partitions a star stands for the hash tag.
    with under(Prefixes(f"{{*}}{config.prefix}", f"{{*}}{config.prefix}:{RQ}") if several else None):
        lines = {name: access.line(name, password, version) for name in ([role] if role else access.ROLES)}
    answer(lines, *lines.values(), json=json)


def _version(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"(\d+)\.(\d+)(\.\d+)?", text)
    if found is None or (version := (int(found[1]), int(found[2]))) < (6, 2):
        raise typer.BadParameter("is a version such as 7.2, at least 6.2", param_hint="--redis-version")
    return version
