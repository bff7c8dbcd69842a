"""What the contract tests share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from notifier.simulators.certificates import Certificates, make_certificates
from tests.contract.rigs import Simulators

if TYPE_CHECKING:
    from tests.contract.apns_rig import Identity


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def simulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulators]:
    """A process of its own, for the rigs."""
    with Simulators(tmp_path_factory.mktemp("simulators")) as running:
        yield running


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """The certificates of an APNs simulator, and the key that it knows a team by."""
    from tests.contract.apns_rig import make_identity  # noqa: PLC0415 - its simulator cannot be imported where apns2 is

    return make_identity(tmp_path_factory.mktemp("identity"))
