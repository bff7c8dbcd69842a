"""Commands about shards: shards plan."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from notifier.cli.output import JsonOption, print_json, print_rows, say
from notifier.residents import residents
from notifier.settings import Settings, load_settings
from notifier.settings.checks import shard_name, shard_of_url
from notifier.shards import Map, connect_all, home, on_shard

commands = typer.Typer(help="Several Redis: who lives where, and who moves.", no_args_is_help=True)


@commands.callback()
def _shards() -> None:
    """Keep `plan` a command of its own, though it is the only one."""


@commands.command()
def plan(
    context: typer.Context,
    *,
    add: Annotated[list[str] | None, typer.Option(help="a shard to be, its name or URL; may be repeated")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="a shard to go, by name; may be repeated")] = None,
    users: Annotated[
        Path | None, typer.Option(help="a user's id a line  [default: the users in Redis]", show_default=False)
    ] = None,
    who: Annotated[bool, typer.Option("--list", help="name the users that would move")] = False,
    json: JsonOption = False,
) -> None:
    """Say how many users would move, and from where to where, if shards were added or removed. Changes nothing.

    With neither: how many are yet to move because shards are joining or draining.
    """
    settings = load_settings(context.obj)
    now = Map.of(settings.redis)
    after = _after(now, settings, add or [], remove or [])
    total, moves, live = 0, [], Counter(dict.fromkeys(after, 0))
    for user, at in _of_file(users, now) if users else _of_redis(settings):
        total += 1
        to = home(user, after)
        live[to] += 1
        if to != at:
            moves.append((user, at, to))
    share = len(moves) / total if total else 0.0
    counts = Counter((at, to) for _, at, to in moves)
    if json:
        rows = [{"from": at, "to": to, "users": count} for (at, to), count in sorted(counts.items())]
        listed = {"who": [{"user": user, "from": at, "to": to} for user, at, to in moves]} if who else {}
        print_json({"users": total, "moving": len(moves), "share": share, "moves": rows, "after": live} | listed)
        return
    say(f"{len(moves):,} of {total:,} users would move ({share:.1%})")
    print_rows("", ("from", "to", "users"), [(at, to, f"{count:,}") for (at, to), count in sorted(counts.items())])
    print_rows("", ("shard", "users then"), [(name, f"{count:,}") for name, count in sorted(live.items())])
    for user, at, to in moves if who else []:
        say(f"{user} {at} {to}")


def _after(now: Map, settings: Settings, add: list[str], remove: list[str]) -> list[str]:
    try:
        added = [shard_of_url(text) if "://" in text else shard_name(text) for text in add]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--add") from None
    removed = {settings.redis.which(name) for name in remove}
    after = [*dict.fromkeys([*now.names, *added])]
    after = [name for name in after if name not in removed | now.draining]
    if not after:
        raise typer.BadParameter("leaves no shard" if now.names else "is needed: there are no redis.shards yet")
    return after


def _of_file(path: Path, now: Map) -> Iterator[tuple[str, str]]:
    """The users that a file lists, and where each of them lives."""
    try:
        with path.open(encoding="utf-8") as file:
            for line in file:
                if user := line.rstrip("\r\n"):
                    yield user, now.before(user) if now.names else "redis.url"
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "is not UTF-8"
        raise typer.BadParameter(f"{path}: cannot be read: {why}", param_hint="--users") from None


def _of_redis(settings: Settings) -> Iterator[tuple[str, str]]:
    """The users of whom something is kept, and where."""
    with connect_all(settings) as clients:
        for name, redis in clients.items():
            seen: set[str] = set()
            with on_shard(name):
                for some in residents(redis):
                    yield from ((user, name or "redis.url") for user in some - seen)
                    seen |= some
