"""The simulators of the integration tests leave nothing behind that would fail a later test."""

import gc
import socket
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.harness.support import Simulators


@pytest.mark.parametrize("which", ["apns", "fcm"])
def test_a_connection_in_its_handshake_is_closed(which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not closed is told when it is collected, in whichever test that happens."""
    told: list[object] = []
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: told.append(unraisable.exc_value))
    with Simulators(tmp_path) as simulators:
        url = urlsplit(getattr(simulators, which).url)
        client = socket.create_connection((url.hostname, url.port))
    with client:
        gc.collect()
        assert client.recv(1) == b""
    assert told == []
