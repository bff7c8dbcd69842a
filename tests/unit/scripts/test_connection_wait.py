"""Calls take turns at a pool's connections, whatever ends one of them."""

from types import SimpleNamespace

from notifier.scripts.connection_wait import in_turn
from tests.harness.ended import goes_on_wherever_ended
from tests.harness.support import PATIENCE_S


class Pool:
    """A pool of a hundred connections."""

    max_connections, connection_kwargs = 100, {"socket_timeout": PATIENCE_S}


def test_a_call_that_is_ended_anywhere_costs_a_turn_at_most() -> None:
    """The next one goes: no lock of Python's is left behind."""
    client = SimpleNamespace(connection_pool=Pool())
    goes_on_wherever_ended(lambda: in_turn(client, lambda: None))
