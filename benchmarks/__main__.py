"""`python -m benchmarks [--only NAME …] [--quick]`: everything measured, in one table; status 1 if a bar is missed."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from benchmarks import (
    acquire,
    cluster,
    engine,
    enqueue,
    features,
    idle,
    memory,
    preferences,
    priority,
    rates,
    sizes,
    slow,
    timeliness,
)
from benchmarks.harness import Figure

ALL: Final[dict[str, Callable[..., list[Figure]]]] = {
    "engine": engine.measure,
    "features": features.measure,
    "enqueue": enqueue.measure,
    "acquire": acquire.measure,
    "timeliness": timeliness.measure,
    "memory": memory.measure,
    "idle": idle.measure,
    "rates": rates.measure,
    "preferences": preferences.measure,
    "priority": priority.measure,
    "slow": slow.measure,
    "sizes": sizes.measure,
    "cluster": cluster.measure,
}
LONG: Final = {"sizes", "cluster"}  # minutes, and gigabytes or seven servers: measured where they are asked for


def main(benchmarks: Mapping[str, Callable[..., list[Figure]]], prog: str, argv: Sequence[str] | None = None) -> int:
    """Run those of the benchmarks that were asked for and print the table; 1 if a bar was missed."""
    parser = argparse.ArgumentParser(prog=prog, description="Print one table; status 1 if a bar is missed.")
    parser.add_argument("--only", action="append", choices=list(benchmarks), help="this one alone; may be repeated")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, smaller counts: rough figures")
    options = parser.parse_args(argv)
    figures: list[Figure] = []
    for name in options.only or [name for name in benchmarks if name not in LONG]:
        begun = time.monotonic()
        print(f"{name} …", end="", file=sys.stderr, flush=True)
        figures += benchmarks[name](quick=options.quick)
        print(f" {time.monotonic() - begun:.0f} s", file=sys.stderr)
    print_table(figures)
    return 0 if all(figure.met for figure in figures) else 1


def print_table(figures: Sequence[Figure]) -> None:
    """One line for each figure: name, figure, bar, whether it was met."""
    rows = [("name", "figure", "bar", "met?", "")]
    for figure in figures:
        value = f"{figure.value:,.0f}" if abs(figure.value) >= 1_000 else f"{figure.value:.4g}"  # noqa: PLR2004
        met = "" if figure.bar is None else ("yes" if figure.met else "NO")
        bar = "" if figure.bar is None else str(figure.bar)
        rows.append((figure.name, f"{value} {figure.unit}".strip(), bar, met, figure.note))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


if __name__ == "__main__":
    sys.exit(main(ALL, "python -m benchmarks"))
