"""Calls take turns at a pool's connections, whatever ends one of them."""

from __future__ import annotations

import sys
import threading
from types import SimpleNamespace
from typing import Any

from notifier.scripts.connection_wait import in_turn
from tests.harness.support import PATIENCE_S


class TimeLimitError(Exception):
    """A signal's handler raises it, such as that of a soft time limit."""


class Pool:
    """A pool of a hundred connections."""

    max_connections, connection_kwargs = 100, {"socket_timeout": PATIENCE_S}


def ends_at(event: int, client: Any) -> bool:
    """Whether a call that is ended at this event, a call, a line or a return of Python's, had one."""
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
        in_turn(client, lambda: None)
    except TimeLimitError:
        return True
    finally:
        sys.settrace(before)
    return False


def test_a_call_that_is_ended_anywhere_costs_a_turn_at_most() -> None:
    """The next one goes: no lock of Python's is left behind."""
    client, event = SimpleNamespace(connection_pool=Pool()), 1
    in_turn(client, lambda: None)
    while ends_at(event, client):
        event += 1
        after = threading.Thread(target=in_turn, args=(client, lambda: None), daemon=True)
        after.start()
        after.join(PATIENCE_S)
        assert not after.is_alive()
    assert event > 10
