"""What the hostile tests share."""

import pytest

from tests.contract.apns_rig import Identity, make_identity
from tests.hostile.http2_stage import DELIVERED, Row, play
from tests.hostile.servers import serve_http2_well


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """Certificates and keys, after a first send: what is imported and cached then is none of a row's memory."""
    made = make_identity(tmp_path_factory.mktemp("identity"))
    play(Row(serve_http2_well, DELIVERED, name="well"), made)
    return made
