"""What the contract tests share."""

import pytest

from notifier.simulators.certificates import Certificates, make_certificates
from tests.contract.apns_rig import Identity, make_identity


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """The certificates of an APNs simulator, and the key that it knows a team by."""
    return make_identity(tmp_path_factory.mktemp("identity"))
