"""A signal's handler that raises, at each place in turn of what runs meanwhile."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import Any

from tests.harness.support import PATIENCE_S


class TimeLimitError(Exception):
    """A handler raises it, such as that of a soft time limit."""


def goes_on_wherever_ended(do: Callable[[], object]) -> None:
    """Assert that `do` still ends after it was ended at any one call, line or return of Python's."""
    do()
    event = 1
    while _ends_at(event, do):
        event += 1
        after = threading.Thread(target=do, daemon=True)
        after.start()
        after.join(PATIENCE_S)
        assert not after.is_alive()
    assert event > 1


def _ends_at(event: int, do: Callable[[], object]) -> bool:
    """Whether it has so many events."""
    left = event

    def trace(*_: object) -> Any:
        nonlocal left
        left -= 1
        if left == 0:
            raise TimeLimitError
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        do()
    except TimeLimitError:
        return True
    finally:
        sys.settrace(before)
    return False
