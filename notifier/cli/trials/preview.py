"""The command `preview`."""

from __future__ import annotations

import time
from collections.abc import Container, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from notifier.cli.given import GIVEN
from notifier.cli.options import duration_us
from notifier.cli.output import ProgressBar, Rows, answer, complain, fail
from notifier.cli.trials.record import recording
from notifier.cli.users import entries_in
from notifier.forecast.trace import Recorded, read_trace, trace_of
from notifier.operations.in_force import read_known
from notifier.operations.preview.plot import svg
from notifier.operations.preview.report import SIDES, Moment, Report, Side, compare, timeline
from notifier.producer.notifier import Notifier
from notifier.rules.policies import Policies
from notifier.rules.preferences import Preferences, among
from notifier.settings import Settings, load_settings, settings_path
from notifier.store.partitions import opened_all
from notifier.texts import seconds_text
from notifier.units import UNITS


def preview(
    *,
    new: Annotated[Path, typer.Option(help="the file with the new rates")],
    trace: Annotated[
        Path | None, typer.Option(help="the traffic: a file of `notifier trace record`", show_default=False)
    ] = None,
    live: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="instead of --trace: first record for this time, such as 10m"),
    ] = None,
    user: Annotated[str | None, typer.Option(help="show this user's timeline instead of the report")] = None,
    plot: Annotated[Path | None, typer.Option(help="draw the deliveries over time, as an .svg")] = None,
    preferences: Annotated[
        Path | None,
        typer.Option(help="the choices of users: a file of `notifier users export`; not needed with --live"),
    ] = None,
) -> None:
    """Replay traffic with the old and with the new rates, in simulated time, and compare how long notifications wait.

    The old rates are those of the configured file. With --live they are those in force, also if they were applied.
    """
    if (trace is None) == (live is None):
        raise typer.BadParameter("give one: a file, or --live TIME to record now", param_hint="--trace")
    if plot is not None and plot.suffix.lower() != ".svg":
        raise typer.BadParameter("is drawn as SVG; give a name that ends in .svg", param_hint="--plot")
    live_us = None if live is None else duration_us(live, "--live", least_us=UNITS["ms"])
    path = settings_path(GIVEN.config)
    settings = load_settings(path)
    before, after = settings.policies(), _policies_in(new)
    names: dict[Side, str] = {"old": path.name, "new": new.name}
    if live_us is None:
        assert trace is not None
        traffic = _read(trace)
        chosen = {} if preferences is None else _chosen_in(preferences, traffic)
    else:
        with opened_all(settings) as partitions:
            known = partitions.ask_any(partial(read_known, path))
        before, applied = known.policies, known.published.version
        names["old"] = f"applied {applied}" if applied else path.name
        traffic = _recorded(settings, live_us)
        with Notifier.of(settings) as notifier:
            chosen = among(notifier.users.export(), traffic)
    before, after = before.under(chosen), after.under(chosen)
    begins_us = time.time_ns() // 1_000 if traffic.began_us is None else traffic.began_us
    if user is not None:
        _show_timeline(user, timeline(traffic, user, before, after, begins_us=begins_us))
    if user is None or plot is not None:
        with ProgressBar("replaying", sum(map(len, traffic.values()))) as bar:
            report, sent_at = compare(traffic, before, after, bar.advance, begins_us=begins_us)
        if plot is not None:
            _write(plot, svg(sent_at, names))
        if user is None:
            answer(asdict(report), *_report(report))


def _policies_in(new: Path) -> Policies:
    settings = load_settings(new)
    if settings.max_waiting is not None or settings.user.max_waiting is not None:
        complain(f"{new.name}: max_waiting is not replayed: what it refuses or drops is shown as waiting")
    return settings.policies()


def _chosen_in(file: Path, users: Container[str]) -> dict[str, Preferences]:
    try:
        with file.open(encoding="utf-8-sig") as lines:
            return among((entry for _, entry in entries_in(lines)), users)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{file} is no file of `notifier users export`: {error}") from None


def _recorded(settings: Settings, lasting_us: int) -> Recorded:
    with recording(settings, lasting_us, "recording") as parts:
        return trace_of(line.encode() for lines in parts for line in lines)


def _read(path: Path) -> Recorded:
    with ProgressBar(f"reading {path.name}", path.stat().st_size if path.is_file() else None) as bar:
        return read_trace(path, bar.advance)


def _report(report: Report) -> Iterator[str | Rows]:
    yield f"{report.traffic()}; old → new:"
    yield Rows(*report.by_category())
    yield report.moved()
    yield Rows(*report.by_user(), "whose mean wait grows most", "nobody's mean wait grows")


def _show_timeline(user: str, moments: list[Moment]) -> None:
    if not moments:
        fail(f"nothing in the trace is for {user}")
    rows = [
        (
            _clock(moment.at_us),
            moment.category + (" (high)" if moment.priority == "high" else ""),
            *(text for side in SIDES for text in (_waited(moment, side), moment.decided_by[side])),
        )
        for moment in moments
    ]
    columns = ("accepted", "category", "old: waits", "held by", "new: waits", "held by")
    answer([asdict(moment) for moment in moments], Rows(columns, rows, user))


def _waited(moment: Moment, side: Side) -> str:
    at = moment.sent_us[side]
    return moment.ended[side] if at is None else seconds_text((at - moment.at_us) / 1e6)


def _clock(us: int) -> str:
    """Write a time since the beginning of the trace as hours:minutes:seconds."""
    minutes, milliseconds = divmod(us // 1000, 60_000)
    return f"{minutes // 60}:{minutes % 60:02}:{milliseconds / 1000:06.3f}"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        fail(f"{path}: cannot be written: {error.strerror}")
