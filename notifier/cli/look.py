"""Commands that look: status, line, explain, routes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from itertools import groupby, islice
from typing import Annotated, Any

import typer

from notifier.cli.chosen import chosen_lines
from notifier.cli.output import JsonOption, Status, complain, moment, print_json, print_rows, say
from notifier.dispatch.circuits import Held
from notifier.operations.explain import Explanation, Inspection, Use, places_of
from notifier.operations.in_force import read_known, settings_in_force
from notifier.producer.notifier import Notifier
from notifier.rules.zones import check_zone
from notifier.settings import load_settings, settings_path
from notifier.shards.map import connect_home

JobId = Annotated[str, typer.Argument(help="the id that send printed")]
MAX_SHOWN = 50


def status(
    context: typer.Context,
    job_id: JobId,
    *,
    user: Annotated[str | None, typer.Option(help="whose it is: finds what was delivered long ago")] = None,
    json: JsonOption = False,
) -> None:
    """Show the state of a notification, and what has held it back."""
    settings = settings_in_force(context.obj)
    with Notifier.of(settings) as notifier:
        found = notifier.status(job_id, user)
    if found is None:
        complain(f"{job_id}: unknown, or no longer kept (see keep_failed and keep_delivered)")
        if json:
            print_json({"job_id": job_id, "state": "unknown"})
        raise typer.Exit(Status.NOT_RIGHT)
    if json:
        print_json(_with_shard(found))
        return
    say(f"{found.state}" + (f" ({_in_a_line(found.reason)})" if found.reason else ""))
    if found.expected_at is not None:
        say(_expected(found.expected_at, found.not_before or "", "expected at "))
    elif found.not_before:
        say(found.not_before)
    if found.settled_at is not None:
        say(f"settled at {moment(found.settled_at)}")
    if found.record is not None:
        say(found.record.describe(zone=None))
    more = {
        "held by": found.held_by,
        "by": found.superseded_by,
        "attempts": found.attempts,
        "on the shard": found.shard,
    }
    for label, value in more.items():
        if value:
            say(f"{label} {value}")


def line(
    context: typer.Context,
    user: str,
    *,
    category: Annotated[str | None, typer.Option(help="only this category")] = None,
    limit: Annotated[int, typer.Option(min=1, help="show at most this many")] = MAX_SHOWN,
    json: JsonOption = False,
) -> None:
    """List what waits for a user, in order, and when each should go."""
    settings = settings_in_force(context.obj)
    with connect_home(settings, user) as (shard, redis):
        standing = list(islice(Inspection(redis, settings.policies()).backlog(user, category), limit + 1))
    shown = standing[:limit]
    if json:
        print_json([asdict(entry) for entry in shown])
        return
    if not shown:
        say(f"nothing waits for {user}{_on(shard)}")
    elif shard:
        say(f"{user}{_on(shard)}")
    for name, entries in groupby(shown, lambda entry: entry.category):
        rows = [
            (s.place, s.job_id, s.count, s.priority, s.attempts, _expected(s.expected_at, s.not_before), s.expires_at)
            for s in entries
        ]
        print_rows(name, ("place", "job", "for", "priority", "tries", "expected", "expires"), rows)
    if len(standing) > limit:
        say(f"… and more: --limit {limit * 10}")


def explain(
    context: typer.Context,
    *,
    user: Annotated[str, typer.Option(help="the user")],
    category: Annotated[str, typer.Option(help="the category")] = "default",
    zone: Annotated[str | None, typer.Option(help="the time zone; else that of the first that waits")] = None,
    json: JsonOption = False,
) -> None:
    """Show which limits hold for a user and a category, how much is used, and when the next may go."""
    if zone is not None:
        try:
            check_zone(zone)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--zone") from None
    path = settings_path(context.obj)
    with connect_home(load_settings(path), user) as (shard, redis):
        known = read_known(path, redis)
        found = Inspection(redis, known.policies).explain(user, category, zone)
    of_user, of_category = known.places.of_user(user), known.places.of_category(category)
    places = places_of(found, of_user, "user") + places_of(found, of_category, "category")
    if json:
        uses = [asdict(use) | {"at": at} for use, at in zip(found.uses, places, strict=True)]
        told = {"uses": uses, "user_rules": of_user.path, "category_rules": of_category.path}
        print_json(asdict(found) | told | ({"shard": shard} if shard else {}))
        return
    categories = known.settings.categories
    if category not in categories:
        configured = ", ".join(categories) or "there are none"
        complain(f"{category!r} is not among the categories ({configured}); this applies instead:")
    say(f"{user}: {of_user.path}, and {of_category.path} in the lane {found.lane}{_on(shard)}")
    _say_explained(found, category, places)


def _say_explained(found: Explanation, category: str, places: Iterable[str]) -> None:
    _say_chosen(found)
    owner = {"user": "the user", "category": category}
    rows = [
        (owner[use.scope], use.rule, _used(use), use.free_at or "now", at)
        for use, at in zip(found.uses, places, strict=True)
    ]
    print_rows("", ("of", "rule", "used", "admits the next", "from"), rows, empty="no rule holds anything back")
    if found.bypass:
        say(f"{category} has bypass: it is counted, but never held back")
    if found.zone is not None:
        say(f"in the time zone {found.zone}")
    waiting = ", ".join(f"{count} of {name}" for name, count in found.waiting.items() if count)
    say(f"waiting: {waiting or 'nothing'}")
    if found.next_at is None:
        say("the next may go now")
    else:
        say(f"the next may go at {moment(found.next_at)}: {found.decided_by} decides it")
    _say_closed(found.routes)
    if any(found.waiting.values()) and found.newcomer_at is not None:
        say(f"one that is accepted now: {_expected(found.newcomer_at, found.not_before)}")


def _say_closed(found: Iterable[Held]) -> None:
    for held in found:
        what = "its project is full; there is room" if held.state == "full" else "its circuit is open; the next try is"
        say(f"what goes by {held.route} waits: {what} at {moment(held.next_at)}")


def _say_chosen(found: Explanation) -> None:
    if lines := chosen_lines(found.preferences, after=datetime.now(UTC)):
        say("the user chose")
    for line in lines:
        say(f"  {line}")


def routes(context: typer.Context, *, json: JsonOption = False) -> None:
    """Show which providers and apps are held up now, and why. Exit status 1 if nothing goes through one."""
    with Notifier.from_config(context.obj, follow=False) as notifier:
        held = notifier.routes()
    if json:
        print_json([_with_shard(each) for each in held])
    else:
        rows = [(h.route, h.state, _why(h), h.since, h.next_at, h.waiting, h.shard) for h in held]
        columns = ("route", "state", "why", "since", "next try", "waiting", "shard")
        shown = len(columns) - (not any(h.shard for h in held))
        print_rows("", columns[:shown], [row[:shown] for row in rows], empty="nothing is held up")
    if any(each.state != "busy" for each in held):
        raise typer.Exit(Status.NOT_RIGHT)


def _expected(at: datetime | None, not_before: str, label: str = "") -> str:
    if at is None:
        return not_before
    return f"not before {moment(at)}: {not_before}" if not_before else f"{label}{moment(at)}"


def _why(held: Held) -> str | None:
    if held.state != "busy":
        return held.reason or held.kind
    return "at its provider's limit" if held.at_once is None else f"its provider serves {held.at_once} at once"


def _in_a_line(reason: str) -> str:
    """The last line of a traceback says why. RQ's own worker leaves one: it cannot read what is JSON."""
    last = reason.strip().rpartition("\n")[2]
    return f"{last}: a worker that is no push worker took it" if last.endswith("DeserializationError") else last


def _with_shard(found: Any) -> dict[str, Any]:
    """All that is known; the shard, where there are several."""
    return {name: value for name, value in asdict(found).items() if name != "shard" or value is not None}


def _on(shard: str) -> str:
    return f", on the shard {shard}" if shard else ""


def _used(use: Use) -> str:
    return "" if use.limit is None else f"{use.used} of {use.limit}"
