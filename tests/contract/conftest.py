"""What the contract tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.contract.apns_rig import Identity


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """The certificates of an APNs simulator, and the key that it knows a team by."""
    from tests.contract.apns_rig import make_identity  # noqa: PLC0415 - its simulator cannot be imported where apns2 is

    return make_identity(tmp_path_factory.mktemp("identity"))
