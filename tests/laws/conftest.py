"""What the tests of several laws share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.support import Simulators


@pytest.fixture
def simulators(tmp_path: Path) -> Iterator[Simulators]:
    with Simulators(tmp_path / "simulators") as running:
        yield running
