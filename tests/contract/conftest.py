"""What the contract tests share."""

import pytest
from apns_rig import Identity, make_identity


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """The certificates of an APNs simulator, and the key that it knows a team by."""
    return make_identity(tmp_path_factory.mktemp("identity"))
