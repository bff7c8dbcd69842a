"""A process that forks while one of its threads reads the configuration."""

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from notifier.settings import Settings, load_settings
from notifier.store import followed
from tests.harness.support import PATIENCE_S


@contextmanager
def stopped_reading(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Let whoever reads a followed configuration stand still in this process, until the end; the event says that."""
    parent, reads, goes_on = os.getpid(), threading.Event(), threading.Event()

    def read(*args: Any, **options: Any) -> Settings:
        if os.getpid() == parent:
            reads.set()
            goes_on.wait()
        return load_settings(*args, **options)

    monkeypatch.setattr(followed, "load_settings", read)
    try:
        yield reads
    finally:
        goes_on.set()


def exit_of_fork(do: Callable[[], object]) -> int | None:
    """Return the exit status of a fork that does this; None where it hangs."""
    child = multiprocessing.get_context("fork").Process(target=do)
    child.start()
    child.join(PATIENCE_S)
    child.kill()
    return child.exitcode
