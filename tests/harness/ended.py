"""A signal's handler that raises, at each place in turn of what runs meanwhile."""

import sys
import threading
from collections.abc import Callable

from tests.harness.support import PATIENCE_S


class TimeLimitError(Exception):
    """A handler raises it, such as that of a soft time limit."""


def goes_on_wherever_ended(do: Callable[[], object]) -> None:
    """Assert that another thread's `do` still ends after it was ended at any one of its events."""
    do()
    event = 1
    while ends_at(event, do):
        event += 1
        after = threading.Thread(target=do, daemon=True)
        after.start()
        after.join(PATIENCE_S)
        assert not after.is_alive()
    assert event > 1


def ends_at(event: int, do: Callable[[], object]) -> bool:
    """Raise in the so many-th event of what is done, and return whether it has so many."""
    left = event

    def profile(_frame: object, what: str, _of: object) -> None:
        nonlocal left
        # Python lets a handler run when a function begins, and when one of C has returned: never before the end of a
        # `with`, where a line begins too. A return of Python's is a call's end for who calls it from C.
        left -= what != "c_call"
        if left == 0:
            sys.setprofile(None)
            raise TimeLimitError

    sys.setprofile(profile)
    try:
        do()
    except Exception:  # redis-py may raise one of its own then, or go on
        if left > 0:
            raise
    finally:
        sys.setprofile(None)
    return left <= 0
