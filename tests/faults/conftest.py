"""What the tests of faults share."""

import pytest

from notifier.store.cluster import Owner


@pytest.fixture(autouse=True)
def _waited_for_no_node() -> None:
    """Let a test begin as a process does: without a node that did not answer."""
    Owner.silent.clear()
