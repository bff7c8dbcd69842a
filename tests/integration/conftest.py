"""What several integration tests share: the simulators of a module, and a producer by the test's configuration."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from notifier import Notifier
from tests.support import Simulators, notifier


@pytest.fixture(scope="module")
def simulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulators]:
    with Simulators(tmp_path_factory.mktemp("simulators")) as running:
        yield running


@pytest.fixture
def producer(config: Path) -> Iterator[Notifier]:
    """A producer by the fixture `config`, which each module makes with the rates it needs."""
    with notifier(config) as made:
        yield made
