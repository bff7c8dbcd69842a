"""Commands about shards: shards plan, move, drain."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from redis import Redis

from notifier.cli.output import JsonOption, Status, complain, counted, print_json, print_rows, say
from notifier.errors import SettingsError
from notifier.rules.policy import LANES
from notifier.scripts.keys import redis_key, rq_key
from notifier.settings import Settings, load_settings
from notifier.settings.checks import shard_name, shard_of_url
from notifier.shards.map import Map, connect_all, home, on_shard
from notifier.shards.migration.migrate import MoveError, Mover, Progress
from notifier.shards.users import list_users
from notifier.store.connection import ask
from notifier.store.published import published_rates

SHOWN_AFTER_S: Final = 10.0

commands = typer.Typer(help="Several Redis: plan and do the move of users between shards.", no_args_is_help=True)


@commands.command()
def plan(
    context: typer.Context,
    *,
    add: Annotated[list[str] | None, typer.Option(help="a shard to add, its name or URL; may be repeated")] = None,
    remove: Annotated[list[str] | None, typer.Option(help="a shard to remove, by name; may be repeated")] = None,
    users: Annotated[
        Path | None,
        typer.Option(help="a file with a user's id on each line  [default: the users in Redis]", show_default=False),
    ] = None,
    who: Annotated[bool, typer.Option("--list", help="list the users that would move")] = False,
    json: JsonOption = False,
) -> None:
    """Show how many users would move, and from where to where, if shards were added or removed. Changes nothing.

    Without --add and --remove: how many still have to move because shards are joining.
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


@commands.command()
def drain(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="the shard to empty, by name or position")],
    *,
    json: JsonOption = False,
) -> None:
    """Move all users of a shard to the others, while everything runs. If interrupted, run it again: it goes on.

    Producers are sent on to the new shards, whatever their configurations say. The shard's workers must run meanwhile.
    Afterwards remove the shard from redis.shards everywhere, and then switch it off.
    """
    settings = _settings(context)
    source = settings.redis.which(name)
    with connect_all(settings) as clients:
        progress = _move(settings, clients, source, everybody=True)
        ended = ask(partial(_ended, clients[source]))
    if json:
        print_json({"shard": source, "users": progress.users, "jobs": progress.jobs, "records": ended})
        return
    say(_moved(source, progress))
    say(f"it is empty, except for {counted(ended, 'record')} of what has ended; remove it from redis.shards everywhere")


@commands.command()
def move(context: typer.Context, *, json: JsonOption = False) -> None:
    """Move users to the shards that are joining, while everything runs. If interrupted, run it again: it goes on.

    Every producer must know the joining shards first. Afterwards remove `joining` everywhere.
    """
    settings = _settings(context)
    joining = Map.of(settings.redis).joining
    if not joining:
        complain("no shard is joining: set joining: true on the new one, in every configuration")
        raise typer.Exit(Status.NOT_RIGHT)
    told = []
    with connect_all(settings) as clients:
        for name in joining:
            with on_shard(name):
                ask(partial(clients[name].delete, redis_key("moves")))  # it may have been drained once
        for name in clients:
            if name not in joining:
                progress = _move(settings, clients, name, everybody=False)
                told.append({"shard": name, "users": progress.users, "jobs": progress.jobs})
                if not json:
                    say(_moved(name, progress))
    if json:
        print_json(told)
    else:
        say("now remove joining everywhere")


def _moved(shard: str, progress: Progress) -> str:
    jobs = counted(progress.jobs, "waiting notification")
    return f"shard {shard}: {counted(progress.users, 'user')} moved, with {jobs}"


def _move(settings: Settings, clients: Mapping[str, Redis], source: str, *, everybody: bool) -> Progress:
    of = Map.of(settings.redis)
    gone = {source} if everybody else set()
    for name, client in clients.items():
        with on_shard(name):
            doing = ask(partial(client.hget, redis_key("moves"), ""))
            gone |= {name} if isinstance(doing, bytes) and doing.endswith(b" all") else set()
    if gone.issuperset(of.names):
        complain(f"no shard is left for the users: there are only {', '.join(sorted(gone))}")
        raise typer.Exit(Status.NOT_RIGHT)
    mover = Mover(
        source=source,
        clients=clients,
        home=partial(of.home, without=gone),
        categories=sorted(settings.categories),
        everybody=everybody,
        keep_failed_us=settings.keep_failed_us,
        on_progress=_Waiting(source).told,
    )
    try:
        return mover.run()
    except MoveError as error:
        complain(str(error))
        raise typer.Exit(Status.NOT_RIGHT) from None


class _Waiting:
    """Says once that it is waiting for long: only the shard's workers can settle what they hold."""

    def __init__(self, shard: str) -> None:
        self._shard = shard
        self._since: float | None = None

    def told(self, progress: Progress) -> None:
        if not progress.waiting:
            self._since = None
        elif self._since is None:
            self._since = time.monotonic()
        elif time.monotonic() - self._since > SHOWN_AFTER_S:
            users = counted(progress.waiting, "user")
            complain(f"{users} of {self._shard} wait for what its workers hold or must take: is a worker running?")
            self._since = float("inf")


def _settings(context: typer.Context) -> Settings:
    """The settings, with all categories that may be in force: what counts for them moves as well."""
    settings = load_settings(context.obj)
    if not settings.redis.shards:
        raise SettingsError("there are no redis.shards: the configuration has one Redis")
    with connect_all(settings) as clients:
        for name, client in clients.items():
            with on_shard(name):
                _, rates = ask(partial(published_rates, client))
            if rates is not None:
                extra = load_settings(context.obj, rates=rates).categories
                settings = settings.model_copy(update={"categories": {**extra, **settings.categories}})
    return settings


def _ended(redis: Redis) -> int:
    """How many notifications are kept, there alone, because they ended there."""
    client: Any = redis
    return int(sum(client.zcard(rq_key(kind, lane)) for kind in ("failed", "canceled") for lane in LANES))


def _after(now: Map, settings: Settings, add: list[str], remove: list[str]) -> list[str]:
    try:
        added = [shard_of_url(text) if "://" in text else shard_name(text) for text in add]
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint="--add") from None
    removed = {settings.redis.which(name) for name in remove}
    after = [*dict.fromkeys([*now.names, *added])]
    after = [name for name in after if name not in removed]
    if not after:
        raise typer.BadParameter("no shard would be left" if now.names else "give --add: there are no redis.shards yet")
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
                for some in list_users(redis):
                    yield from ((user, name or "redis.url") for user in some - seen)
                    seen |= some
