"""Commands that try rules first: preview, trace record."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from notifier.cli.output import JsonOption, ProgressBar, Status, complain, print_json, print_rows, say
from notifier.connection import connect
from notifier.preview.plot import span, svg
from notifier.preview.recording import Recorder, RecordingError
from notifier.preview.report import SIDES, Moment, Report, Side, Waits, compare, timeline
from notifier.preview.trace import Trace, TraceError, read_trace
from notifier.settings import load_settings, settings_path
from notifier.units import UNITS, parse_duration

ENDING: Final = (signal.SIGINT, signal.SIGTERM)
LOOK_EVERY_S: Final = 0.25
LONGEST_LATENCY_US: Final = 10 * UNITS["s"]

trace = typer.Typer(help="Record traffic, to try rules on it: notifier preview.", no_args_is_help=True)


@trace.callback()
def _trace() -> None:
    """Keep `record` a command of its own, though it is the only one."""


@trace.command()
def record(
    context: typer.Context,
    *,
    out: Annotated[Path, typer.Option(help="the file to write, JSON lines; one that exists is refused")],
    lasting: Annotated[str, typer.Option("--for", help="how long, such as 10m or 1d; Ctrl-C ends it earlier")] = "1h",
    hash_users: Annotated[bool, typer.Option("--hash-users", help="write a pseudonym for each user's name")] = False,
    json: JsonOption = False,
) -> None:
    """Record what is accepted from now on: when, whom for, category, priority, expiry; no tokens, no texts, no data.

    Status 1 where somebody else is recording, or where the recording broke off; what is in the file then is right.
    """
    seconds = _duration_us(lasting, "--for", least_us=UNITS["ms"]) / UNITS["s"]
    recorded = 0
    try:
        with (
            _until_interrupted() as interrupted,
            closing(connect(load_settings(context.obj))) as redis,
            Recorder(redis, hash_users=hash_users) as recorder,
            out.open("x", encoding="utf-8") as file,
            ProgressBar(f"recording to {out.name}", seconds) as bar,
        ):
            for passed in _looks(seconds, interrupted):
                for line in recorder.read():
                    file.write(line)
                    recorded += 1
                file.flush()
                bar.advance(passed)
    except RecordingError as error:
        complain(str(error))
        raise typer.Exit(Status.NOT_RIGHT) from None
    except OSError as error:
        complain(f"{out}: cannot be written: {error.strerror}")
        raise typer.Exit(Status.NOT_RIGHT) from None
    print_json({"file": str(out), "recorded": recorded}) if json else say(f"{recorded} recorded in {out}")


def preview(
    context: typer.Context,
    *,
    config: Annotated[Path, typer.Option(help="the YAML whose rates are to be tried")],
    trace: Annotated[Path, typer.Option(help="the traffic, JSON lines; notifier trace record makes one")],
    old: Annotated[
        Path | None, typer.Option(help="the YAML to compare with  [default: the configured one]", show_default=False)
    ] = None,
    user: Annotated[str | None, typer.Option(help="show this user's timeline in place of the report")] = None,
    plot: Annotated[Path | None, typer.Option(help="draw the deliveries over time, as an .svg")] = None,
    latency: Annotated[str, typer.Option(help="how long a send takes; rates count from its end")] = "0s",
    json: JsonOption = False,
) -> None:
    """Replay traffic under old and new rates, in simulated time: who would wait how much longer or shorter."""
    if plot is not None and plot.suffix.lower() != ".svg":
        raise typer.BadParameter("is drawn as SVG; give a name that ends in .svg", param_hint="--plot")
    latency_us = _duration_us(latency, "--latency", most_us=LONGEST_LATENCY_US)
    old = settings_path(old or context.obj)
    before, after = load_settings(old).policies(), load_settings(config).policies()
    traffic = _read(trace)
    if user is not None:
        _show_timeline(user, timeline(traffic, user, before, after, latency_us), json=json)
    if user is None or plot is not None:
        with ProgressBar("replaying", sum(map(len, traffic.values()))) as bar:
            report, sent_at = compare(traffic, before, after, latency_us, bar.advance)
        if plot is not None:
            _write(plot, svg(sent_at, {"old": old.name, "new": config.name}))
        if user is None:
            print_json(asdict(report)) if json else _show(report)


def _read(path: Path) -> Trace:
    try:
        with ProgressBar(f"reading {path.name}", path.stat().st_size if path.is_file() else None) as bar:
            return read_trace(path, bar.advance)
    except TraceError as error:
        complain(str(error))
        raise typer.Exit(Status.NOT_RIGHT) from None


def _show(report: Report) -> None:
    say(f"{report.notifications:,} notifications for {report.users:,} users in {span(report.span_us)}; old → new:")
    rows = [_waits(name, of) for name, of in report.categories.items()]
    columns = ("category", "sent", "expired", "wait p50", "p99", "longest")
    print_rows("", columns, [*rows, _waits("all", report.overall)])
    say(f"{report.longer:,} would wait longer, {report.shorter:,} shorter")
    say(f"waiting at once at most: {_change(f'{n:,}' for n in report.most_held.values())}")
    worst = [
        (
            one.user,
            one.notifications,
            _change(span(us) for us in one.mean_us.values()),
            _change(span(us) for us in one.longest_us.values()),
            _change(map(str, one.expired.values())),
        )
        for one in report.worst
    ]
    of_user = ("user", "notifications", "mean wait", "longest", "expired")
    print_rows("whose mean wait grows most", of_user, worst, empty="nobody's mean wait grows")


def _waits(name: str, of: dict[Side, Waits]) -> tuple[str, ...]:
    def change(show: Callable[[Waits], str]) -> str:
        return _change(show(of[side]) for side in SIDES)

    return (
        name,
        change(lambda waits: f"{waits.sent:,}"),
        change(lambda waits: f"{waits.expired:,}"),
        change(lambda waits: span(waits.p50_us)),
        change(lambda waits: span(waits.p99_us)),
        change(lambda waits: span(waits.longest_us)),
    )


def _change(both: Any) -> str:
    old, new = both
    return str(old) if old == new else f"{old} → {new}"


def _show_timeline(user: str, moments: list[Moment], *, json: bool) -> None:
    if not moments:
        complain(f"nothing in the trace is for {user}")
        raise typer.Exit(Status.NOT_RIGHT)
    if json:
        print_json([asdict(moment) for moment in moments])
        return
    rows = [
        (
            _clock(moment.at_us),
            moment.category + (" (high)" if moment.priority == "high" else ""),
            *(text for side in SIDES for text in (_sent(moment, side), moment.decided_by[side])),
        )
        for moment in moments
    ]
    print_rows(user, ("accepted", "category", "old: sent", "held by", "new: sent", "held by"), rows)


def _sent(moment: Moment, side: Side) -> str:
    at = moment.sent_us[side]
    if at is None:
        return "expires"
    return _clock(at) if at == moment.at_us else f"{_clock(at)} (+{span(at - moment.at_us)})"


def _clock(us: int) -> str:
    """A moment of the trace, hours:minutes:seconds since its beginning."""
    minutes, milliseconds = divmod(us // 1000, 60_000)
    return f"{minutes // 60}:{minutes % 60:02}:{milliseconds / 1000:06.3f}"


def _looks(seconds: float, interrupted: Callable[[], bool]) -> Iterator[float]:
    """Now and then until so many seconds have passed, and once after; gives how many have since the last time."""
    said = begun = time.monotonic()
    while (left := begun + seconds - said) > 0 and not interrupted():
        threading.Event().wait(min(left, LOOK_EVERY_S))
        before, said = said, time.monotonic()
        yield said - before


@contextmanager
def _until_interrupted() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C or SIGTERM has come, which end the command at a moment of its own."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in ENDING}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        complain(f"{path}: cannot be written: {error.strerror}")
        raise typer.Exit(Status.NOT_RIGHT) from None


def _duration_us(text: str, name: str, **bounds: int) -> int:
    try:
        return parse_duration(text, **bounds)
    except ValueError as error:
        raise typer.BadParameter(str(error), param_hint=name) from None
