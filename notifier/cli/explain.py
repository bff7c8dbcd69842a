"""Commands that show the present state: status, line, explain, routes."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from itertools import groupby, islice
from typing import Annotated, Any

import typer

from notifier.cli.given import GIVEN
from notifier.cli.options import settings_in_force, usable, without_rates
from notifier.cli.output import Rows, answer, complain, moment
from notifier.operations.explain import Explanation, Inspection, Use, placed, places_by_rule
from notifier.operations.in_force import read_known, read_own
from notifier.operations.route_view import view_routes
from notifier.producer.notifier import Notifier
from notifier.queue.circuits import Held
from notifier.queue.history import Record
from notifier.rules.preferences import FOREVER
from notifier.rules.zones import check_zone
from notifier.settings import load_settings, settings_path
from notifier.store.partitions import opened, opened_all
from notifier.store.published import rates_in_force
from notifier.units import format_duration

JobId = Annotated[str, typer.Argument(help="the id that send printed")]
MAX_SHOWN = 50


def status(
    job_id: JobId,
    *,
    user: Annotated[str | None, typer.Option(help="its user: then it finds also what was delivered long ago")] = None,
) -> None:
    """Show the state of a notification, and what has held it back."""
    settings = settings_in_force()
    with Notifier.of(settings) as notifier:
        found = notifier.status(job_id, user)
    if found is None:
        complain(f"{job_id}: unknown, or no longer kept (see keep_failed and keep_delivered)")
        answer({"job_id": job_id, "state": "unknown"}, right=False)
        return
    ends = {"held by": found.held_by, "by": found.superseded_by, "attempts": found.attempts}
    lines = [
        f"{found.state}" + (f" ({_in_a_line(found.reason)})" if found.reason else ""),
        _expected(found.expected_at, found.not_before or "", "expected at "),
        f"settled at {moment(found.settled_at)}" if found.settled_at is not None else "",
        *(record_lines(found.record) if found.record is not None and not GIVEN.json else ()),
        *(f"{label} {value}" for label, value in ends.items() if value),
    ]
    answer(asdict(found), *filter(None, lines))


def record_lines(record: Record) -> Iterator[str]:
    """Describe how a notification ended, and where the configuration has the rules that held it back."""
    yield record.describe(zone=None)
    path = settings_path(GIVEN.config)
    with opened(load_settings(path), record.user) as redis:
        known = usable(partial(read_known, path, redis, rates_in_force), partial(read_own, path))
        found = Inspection(redis, known.policies, record.user).explain(record.category)
    named = " ".join([record.reason, *record.totals()])
    for rule, place in places_by_rule(placed(found, known)).items():
        if rule in named:
            yield f"{rule}: {place}"


def line(
    user: str,
    *,
    category: Annotated[str | None, typer.Option(help="only this category")] = None,
    limit: Annotated[int, typer.Option(min=1, max=1_000_000, help="show at most this many")] = MAX_SHOWN,
) -> None:
    """List what waits for a user, in order, and when each should go."""
    settings = settings_in_force()
    with opened(settings, user) as redis:
        inspection = Inspection(redis, settings.policies(), user)
        outside = _outside(inspection)
    if category is not None and not GIVEN.json:
        _tell_unknown(category, settings.categories)
    shown = list(islice(inspection.backlog(category), limit))
    left = sum(n for name, n in inspection.record.waiting.items() if category in {None, name}) - len(shown)
    columns, tables = ("place", "job", "for", "priority", "tries", "expected", "expires"), list[str | Rows]()
    for name, entries in groupby(shown, lambda entry: entry.category):
        rows = [
            (s.place, s.job_id, s.count, s.priority, s.attempts, _expected(s.expected_at, s.not_before), s.expires_at)
            for s in entries
        ]
        tables.append(Rows(columns, rows, name))
    more = [f"… and {left:,} more" + (f": --limit {limit * 10}" if len(shown) == limit else "")] if left > 0 else []
    lines = tables or [f"nothing waits in the backlogs of {user}"]
    answer([asdict(entry) for entry in shown], *lines, *more, *outside)


def explain(
    *,
    user: Annotated[str, typer.Option(help="the user")],
    category: Annotated[str, typer.Option(help="the category")] = "default",
    zone: Annotated[str | None, typer.Option(help="the time zone  [default: that of the first that waits]")] = None,
) -> None:
    """Show which limits hold for a user and a category, how much is used, and when the next may go."""
    if zone is not None:
        try:
            check_zone(zone)
        except ValueError as error:
            raise typer.BadParameter(str(error), param_hint="--zone") from None
    path = settings_path(GIVEN.config)
    with opened(load_settings(path), user) as redis:
        known = usable(partial(read_known, path, redis, rates_in_force), partial(read_own, path))
        inspection = Inspection(redis, known.policies, user, known.settings.redis.partitions)
        found, outside = inspection.explain(category, zone), _outside(inspection)
    found = placed(found, known)
    categories = known.settings.categories
    if not GIVEN.json:
        _tell_unknown(category, categories, "; this applies instead:")
    expires_us = categories[category].expires_us if category in categories else None
    answer(
        found.as_json(),
        f"{user}: {found.user_rules}, and {found.category_rules} in the lane {found.lane}",
        *_explained(found, category, outside),
        *_expires(found, category, expires_us, inspection.record.now_us),
    )


def _tell_unknown(category: str, categories: Collection[str], more: str = "") -> None:
    if category not in categories:
        complain(f"{category!r} is not among the categories ({', '.join(categories) or 'there are none'}){more}")


def _outside(inspection: Inspection) -> list[str]:
    """Count the jobs in no backlog, for all users together: Redis keeps no such count by user."""
    counts = inspection.outside()
    return [f"in no backlog, of all users: {counts}; status JOB tells of one"] if counts else []


def _explained(found: Explanation, category: str, outside: list[str]) -> Iterator[str | Rows]:
    if lines := _chosen_lines(found.preferences):
        yield from ("the user chose", *(f"  {line}" for line in lines))
    owner = {"user": "the user", "category": category}
    rows = [(owner[use.scope], use.rule, _used(use), use.free_at or "now", use.at) for use in found.uses]
    yield Rows(("of", "rule", "used", "admits the next", "from"), rows, empty="no rule holds anything back")
    if found.bypass:
        yield f"{category} has bypass: it is counted, but never held back"
    if found.zone is not None:
        yield f"in the time zone {found.zone}"
    waiting = ", ".join(f"{count} of {name}" for name, count in found.waiting.items() if count)
    yield f"waiting: {waiting or 'nothing'}"
    yield from outside
    holds = [*_holds(found)]
    # If other categories wait too, the line names the category that it is about.
    of = f" of {category}" if any(n for name, n in found.waiting.items() if name != category) else ""
    if found.paused is not None or found.suspended:
        yield "nothing goes now:"
    elif found.next_at is None:
        yield f"{'by the rules ' if holds else ''}the next{of} may go now"
    elif found.next_at >= FOREVER:
        yield f"nothing may go: {found.decided_by} has no end"
    else:
        yield f"the next{of} may go at {moment(found.next_at)}: {found.decided_by} decides it"
    yield from holds


def _holds(found: Explanation) -> Iterator[str]:
    if found.suspended:
        yield "suspended by rq suspend: no worker looks for work until rq resume"
    if found.paused is not None:
        yield f"{found.paused.why}, {_ends(found.paused)}"
    for held in found.routes:
        since = "" if held.since is None else f" since {moment(held.since)}"
        yield f"{held.route} {held.state}{since}: {held.why}{_next(held)}"


def _expires(found: Explanation, category: str, expires_us: int | None, now_us: int) -> Iterator[str]:
    wait_us = 0 if found.next_at is None else found.next_at.timestamp() * 1e6 - now_us
    if expires_us and wait_us >= expires_us:
        yield f"one that is accepted now is not sent: {category} expires after {format_duration(expires_us)}"


def _ends(pause: Held) -> str:
    return "until it is resumed" if pause.next_at is None else f"until {moment(pause.next_at)}"


def _next(held: Held) -> str:
    if held.kind == "recovering":
        return ""
    if held.kind == "paused":
        return f"; {_ends(held)}"
    return f"; {'next probe' if held.state == 'stopped' else 'room at'} {moment(held.next_at)}"


def routes() -> None:
    """Show each route: working, slow, stopped or, without a worker, unknown; since when and why.

    Exit status 1 if one is stopped.
    """
    settings = without_rates()
    with opened_all(settings) as partitions:
        found = view_routes(partitions, settings)
    columns = ("route", "state", "since", "why", "to mend", "next probe", "users")
    table = Rows(columns, [_row(each) for each in found], empty="the configuration names no platform")
    right = all(each["state"] != "stopped" for each in found)
    answer(found, table, right=right)


def _row(each: dict[str, Any]) -> tuple[object, ...]:
    probe = each["next_at"] if each["state"] == "stopped" else None
    since, next_at = (moment(at).partition(".")[0] for at in (each["since"], probe))
    return (each["route"], each["state"], since, each["why"], each["whose"], next_at, each["waiting"])


def _expected(at: datetime | None, not_before: str, label: str = "") -> str:
    if at is None:
        return not_before
    return f"not before {moment(at)}: {not_before}" if not_before else f"{label}{moment(at)}"


def _in_a_line(reason: str) -> str:
    """The last line of a traceback. RQ's own worker leaves a traceback, because it cannot read our JSON."""
    last = reason.strip().rpartition("\n")[2]
    return f"{last}: a worker that is no push worker took it" if last.endswith("DeserializationError") else last


def _used(use: Use) -> str:
    return "" if use.limit is None else f"{use.used} of {use.limit}"


def _chosen_lines(given: Mapping[str, Any]) -> list[str]:
    """A line for each choice. given: `Preferences.as_dict`."""
    lines = [
        f"{name}: {', '.join(value) if isinstance(value, list) else value}"
        for name, value in given.items()
        if name != "mutes"
    ]
    for mute in given.get("mutes", ()):
        until = datetime.fromisoformat(mute["until"]).astimezone(UTC)
        ends = "without end" if until >= FOREVER else f"until {until:%Y-%m-%d %H:%M} UTC"
        lines.append(f"muted {ends}: {', '.join(mute.get('categories', ['all']))} ({mute['what']})")
    return lines
