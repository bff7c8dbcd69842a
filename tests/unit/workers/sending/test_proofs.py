"""Proofs: how long a send is waited for that its provider does not answer."""

import asyncio
from types import SimpleNamespace
from typing import Any

from structlog.testing import capture_logs

from notifier.notification import Device
from tests.harness.patient_loop import skip
from workers.sending.proofs import MAX_SILENCE_S, Proofs, Silence


async def test_nobody_is_waited_for_longer_than_a_connection_lasts() -> None:
    """Law 2: a service may have ended for good, and what was sent to it is to end as well."""

    async def probe(_: Device) -> bool:
        return False

    silent: Any = SimpleNamespace(service=lambda _: "a service", probe=probe)
    with capture_logs() as told:
        waits = asyncio.create_task(Proofs().of([Silence(silent, Device("webpush", "a-token"))]))
        for passes_s, has_ended in ((0.0, False), (MAX_SILENCE_S - 1, False), (1.0, True)):
            skip(passes_s)
            for _ in range(9):
                await asyncio.sleep(0)
            assert waits.done() is has_ended
    await waits
    assert [line["event"] for line in told] == ["silent", "no_proof"]
