"""Show the demo: progress while it runs, and the report at its end."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from notifier.notification.job import TERMINAL

MEANING = {
    "accepted": "",
    "delivered": "a device took it",
    "rejected": "its devices are dead",
    "expired": "too late to be of use",
}
NEXT = """
What to try next:
  - Change the rates in {rates}, and run the demo again.
  - Send one notification yourself: "First steps" in README.md.
  - Make a provider fail while you send: docs/how-to/simulators.md.
  - Give one user another rate: docs/tutorials/rates.md.
"""
# For an installed package, which has neither README.md nor docs/.
NEXT_INSTALLED = """
What to try next:
  - Copy the rates, change them, and run the demo with --rates demo.yaml:
    cp {rates} .
  - Write a configuration of your own: notifier config init
"""


class Screen(Progress):
    """A live line of progress on a terminal. quiet: show nothing."""

    def __init__(self, total: int, redis: str, *, quiet: bool) -> None:
        columns = BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.fields[said]}"), TimeElapsedColumn()
        super().__init__(*columns, console=Console(stderr=True, quiet=quiet, highlight=False))
        self.console.print(f"Running on {redis}. Sending {total:,} notifications …")
        self._task = self.add_task("", total=total, said="")

    def explain(self, dead: int, short_lived: int) -> None:
        """Say which notifications will not be delivered, so that the report surprises nobody."""
        self.console.print(f"Part of the plan: {dead} go to dead devices only; the providers reject them.")
        self.console.print(f"Part of the plan: {short_lived} have an expiry; those that wait too long expire.")

    def show(self, stats: Mapping[str, int], waiting: int) -> None:
        ended = sum(stats.get(word, 0) for word in TERMINAL)
        said = f"delivered {stats.get('delivered', 0)} · waiting {waiting}"
        self.update(self._task, completed=ended, said=said)


def print_report(found: Mapping[str, Any], rates: Path) -> None:
    """Print the report as tables that fit 80 columns, and what to do next with the file of `rates`."""
    console = Console(highlight=False)
    table = Table("what", "", "", title="Results", title_justify="left", show_header=False)
    for word in ("accepted", *TERMINAL):
        if found[word] or word in MEANING:
            table.add_row(word, f"{found[word]}", MEANING.get(word, ""))
    table.add_row("still waiting", f"{found['still_waiting']}", "")
    table.add_row("attempts for each message", f"{found['dispatches_per_message']:.2f}", "1.00 is the least possible")
    late = " / ".join(f"{ms:.1f} ms" for ms in found["lateness_ms"].values())
    table.add_row("lateness p50 / p99", late, "after it was allowed")
    table.add_row("out of order / sent twice", f"{found['out_of_order']} / {found['sent_twice']}", "")
    table.add_row("seconds", f"{found['seconds']}", "")
    console.print(table)

    laws = Table("user", "scope", "sends", "limit: most seen", "gap: least seen", title_justify="left")
    laws.title = "The busiest users, as the simulators saw them"
    for entry in found["tightest"]:
        windows = [f"{window}: {seen}" for window, seen in entry["windows"].items()]
        seen = "-" if entry["smallest_gap_ms"] is None else f"{entry['smallest_gap_ms']:.1f}ms"
        gap = f"{entry['gap']}: {seen}" if entry["gap"] else "-"
        laws.add_row(entry["user"], entry["scope"], str(entry["sends"]), "\n".join(windows) or "-", gap)
    console.print(laws)
    for said in found["broken"][:20]:
        console.print(f"[red]BROKEN[/red] {said}")
    if not found["laws_held"]:
        console.print("[red]A promise was broken: see above.[/red]")
        return
    console.print("[green]No limit was exceeded, nothing was lost, and the order was kept.[/green]")
    suggestions = NEXT_INSTALLED if rates.parent == Path(__file__).parent else NEXT
    console.print(suggestions.format(rates=rates), end="", soft_wrap=True)
