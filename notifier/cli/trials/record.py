"""The command `trace record`, and the recording of `preview --live`."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Final

import typer

from notifier.cli.given import GIVEN
from notifier.cli.options import duration_us
from notifier.cli.output import ProgressBar, answer, fail
from notifier.operations.preview.recording import Recorder
from notifier.settings import Settings, load_settings
from notifier.store.partitions import opened_all
from notifier.units import UNITS

ENDING: Final = (signal.SIGINT, signal.SIGTERM)


def record(
    *,
    out: Annotated[Path, typer.Option(help="the file to write; an existing file is refused")],
    lasting: Annotated[str, typer.Option("--for", help="how long, such as 10m or 1d; Ctrl-C ends it earlier")] = "1h",
) -> None:
    """Record accepted notifications from now on: time, user, category, priority, expiry; no tokens, texts or data.

    Exit status 1 if another recording runs, or if this one broke off. Then the lines in the file are still right.
    """
    lasting_us = duration_us(lasting, "--for", least_us=UNITS["ms"])
    settings, recorded = load_settings(GIVEN.config), 0
    try:
        with (
            recording(settings, lasting_us, f"recording to {out.name}") as parts,
            out.open("x", encoding="utf-8") as file,
        ):
            for lines in parts:
                file.writelines(lines)
                file.flush()
                recorded += len(lines)
    except OSError as error:
        fail(f"{out}: cannot be written: {error.strerror}")
    answer({"file": str(out), "recorded": recorded}, f"{recorded} recorded in {out}")


@contextmanager
def recording(settings: Settings, lasting_us: int, what: str) -> Iterator[Iterator[list[str]]]:
    """Record for `lasting_us`, or until Ctrl-C. Yields an iterator; each of its items is the new lines of the trace.

    what: the title of the progress bar. Raises RecordingError if another recording runs, or if this one breaks off.
    """
    seconds = lasting_us / UNITS["s"]
    with (
        _interruptible() as wait,
        opened_all(settings) as redis,
        Recorder(redis) as recorder,
        ProgressBar(what, seconds) as bar,
    ):
        yield _shown(recorder.parts(seconds, wait), bar)


def _shown(parts: Iterator[list[str]], bar: ProgressBar) -> Iterator[list[str]]:
    begun = time.monotonic()
    for lines in parts:
        yield lines
        bar.move(time.monotonic() - begun)


@contextmanager
def _interruptible() -> Iterator[Callable[[float], bool]]:
    """Yield a function that waits, and returns whether Ctrl-C or SIGTERM came: then the command ends in good order."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda got, _: came.append(got)) for number in ENDING}
    try:
        yield lambda seconds: threading.Event().wait(seconds) or bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
