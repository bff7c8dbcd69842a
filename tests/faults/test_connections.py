"""Connections are opened when something forces one, and not more than once more: the soak in short."""

import asyncio

from notifier.providers.contract import Outcome
from notifier.providers.transport import http1
from notifier.providers.transport.http2 import wire as http2_wire
from tests.harness import soak
from tests.harness.patient_loop import PatientLoop


def test_connections_are_opened_when_forced(tmp_path, monkeypatch) -> None:
    """Idle times, GOAWAYs, cuts, a half-dead connection, a restart: as many connections as forced, all pushes end."""
    monkeypatch.setattr(http2_wire, "IDLE_S", 0.5)
    monkeypatch.setattr(http1, "KEEPALIVE_S", 0.5)
    # aiohttp goes by the machine's clock, which goes on while other programs have the processor.
    monkeypatch.setattr("aiohttp.connector.monotonic", lambda: asyncio.get_running_loop().time())
    (tmp_path / "apns").mkdir()
    (tmp_path / "fcm").mkdir()
    times = {"idle_s": 1.2, "timeout_us": 500_000}

    async def run() -> tuple[soak.Soak, soak.Soak]:
        async with (
            soak.apns(tmp_path / "apns", steady_s=1.2, **times) as apns,
            soak.fcm(tmp_path / "fcm", steady_s=2.0, **times) as fcm,
        ):
            await asyncio.wait_for(asyncio.gather(apns.run(soak.APNS), fcm.run(soak.FCM)), 60)
            return apns, fcm

    with asyncio.Runner(loop_factory=PatientLoop) as runner:
        all_found = runner.run(run())
    for found in all_found:
        assert found.forced <= found.opened() <= found.allowed, found.notes
        assert found.ended.total() == found.given > 100
        assert set(found.ended) <= {Outcome.DELIVERED, Outcome.UNKNOWN}
        # Unknown is what was on its way when its connection broke, a burst each time at most.
        assert found.ended[Outcome.UNKNOWN] <= found.at_once * found.forced
