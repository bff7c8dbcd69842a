"""What the demo shows: progress while it runs, and the report at its end."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from notifier.notification.job import TERMINAL
from notifier.units import format_duration
from workers.demo.report import Report


class Screen:
    """A live line of progress on a terminal; nothing where `quiet`."""

    def __init__(self, total: int, redis: str, workers: int, *, quiet: bool) -> None:
        self._console = Console(stderr=True, quiet=quiet)
        self._console.print(f"{total} notifications · {workers} workers · {redis} · APNs and FCM simulators")
        self._progress = Progress(
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[said]}"),
            TimeElapsedColumn(),
            console=self._console,
        )
        self._task = self._progress.add_task("", total=total, said="")
        self._live = Live(self._progress, console=self._console, refresh_per_second=10)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._live.__exit__(kind, error, at)
        if not self._console.is_terminal:
            self._console.print()  # only a terminal's line was ended

    def show(self, stats: Mapping[str, int], waiting: int) -> None:
        """Show the totals."""
        ended = sum(stats.get(word, 0) for word in TERMINAL)
        said = f"delivered {stats.get('delivered', 0)} · waiting {waiting}"
        self._progress.update(self._task, completed=ended, said=said)


def print_report(found: Report) -> None:
    """Print the report as tables that fit 80 columns."""
    console = Console(highlight=False)
    table = Table("what", "", title="What became of them", title_justify="left", show_header=False)
    for word, count in found.counts.items():
        if count or word in ("accepted", "delivered", "rejected", "expired"):
            table.add_row(word, str(count))
    table.add_row("still waiting", str(found.waiting))
    table.add_row("dispatches for each message", f"{found.dispatches:.2f}")
    table.add_row("lateness p50 / p99", f"{found.late_p50_us / 1000:.1f} ms / {found.late_p99_us / 1000:.1f} ms")
    table.add_row("out of order / sent twice", f"{found.disorder} / {found.repeats}")
    table.add_row("seconds", f"{found.seconds:.1f}")
    console.print(table)

    laws = Table("user", "scope", "sends", "window: most seen", "gap: least seen", title_justify="left")
    laws.title = "The tightest users, as the simulators saw them"
    for entry in found.tightest:
        windows = [f"{window}: {seen}" for window, seen in zip(entry.policy.windows, entry.largest, strict=True)]
        seen = "-" if entry.smallest_gap_us is None else f"{entry.smallest_gap_us / 1000:.1f}ms"
        gap = f"{format_duration(entry.policy.gap_us)}: {seen}" if entry.policy.gap_us else "-"
        laws.add_row(entry.user, entry.scope, str(entry.sends), "\n".join(windows) or "-", gap)
    console.print(laws)
    for said in found.broken[:20]:
        console.print(f"[red]BROKEN[/red] {said}")
    console.print("[green]The laws held.[/green]" if found.held else "[red]The laws did not hold.[/red]")
