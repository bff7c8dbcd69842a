"""What the contract tests share."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from tests.harness.patient_loop import PatientLoop

if TYPE_CHECKING:
    from tests.contract.apns_rig import Identity


@pytest.fixture(scope="session")
def identity(tmp_path_factory: pytest.TempPathFactory) -> Identity:
    """The certificates of an APNs simulator, and the key that it knows a team by."""
    from tests.contract.apns_rig import make_identity  # noqa: PLC0415 - its simulator cannot be imported where apns2 is

    return make_identity(tmp_path_factory.mktemp("identity"))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no timeout of a second depend on what else the machine does."""
    monkeypatch.setattr(asyncio.events, "new_event_loop", PatientLoop)
