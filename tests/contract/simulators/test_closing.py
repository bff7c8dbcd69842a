"""A simulator that closes while clients connect closes their connections too."""

import asyncio
import gc
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from h2.connection import H2Connection

from notifier.simulators.apns import ApnsSimulator
from notifier.simulators.certificates import Certificates, make_certificates
from notifier.simulators.expo import ExpoSimulator
from notifier.simulators.http2 import Connection
from notifier.simulators.simulator import Simulator
from notifier.simulators.wire import WireLog


def apns(certificates: Certificates) -> Simulator:
    return ApnsSimulator(certificates=certificates, log=WireLog(), topics=set(), team_keys={})


def expo(certificates: Certificates) -> Simulator:
    return ExpoSimulator(certificates=certificates, log=WireLog())


@pytest.mark.parametrize("make", [apns, expo])
def test_no_connection_stays_open(
    make: Callable[[Certificates], Simulator], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many turns of the loop lie between a connection and the close; in one of them it is accepted."""
    simulator = make(make_certificates(tmp_path))
    address = ("127.0.0.1", int(simulator.url.rpartition(":")[2]))
    unclosed: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda told: unclosed.append(told.exc_value))

    async def close_after(turns: int) -> None:
        await simulator.start()
        with socket.socket() as client:
            client.setblocking(False)
            client.connect_ex(address)
            for _ in range(turns):
                await asyncio.sleep(0)
            await simulator.close()

    for turns in range(5):
        asyncio.run(close_after(turns))
        gc.collect()
        assert not unclosed, turns


async def test_who_says_goodbye_and_stays_is_answered_no_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a worker that is killed: its connection ends later. What was to be answered by then is no fault of anybody."""
    simulator = ApnsSimulator(certificates=make_certificates(tmp_path), log=WireLog(), topics=set(), team_keys={})
    simulator.latency_ms = 1
    broken: list[object] = []
    monkeypatch.setattr(asyncio.get_running_loop(), "call_exception_handler", broken.append)
    connection, client = Connection(simulator), H2Connection()
    connection.connection_made(Mock())
    client.initiate_connection()
    path = [(":method", "POST"), (":path", "/3/device/ab"), (":scheme", "https"), (":authority", "x")]
    client.send_headers(1, path, end_stream=True)
    client.close_connection()
    connection.data_received(client.data_to_send())
    await asyncio.sleep(0.01)  # longer than the latency
    assert not broken
