"""Ports for servers: whoever chooses one has it, though its server listens only later."""

import os
import socket
import subprocess
import sys
from random import SystemRandom
from typing import Any

import pytest

from notifier.testing import ports

CHOOSE = """
from notifier.testing import ports
chosen = []
for _ in range({tries}):
    try:
        chosen.append(ports.free_port())
    except OSError:
        break
print(*chosen, flush=True)
input()
"""


def test_no_two_processes_get_the_same_port() -> None:
    """A port is reserved from its choice on, before a server listens there; when the process ends, it is free again."""
    ours = range(9_980, 9_990)  # where no other test chooses
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ports, "PORTS", ours)
        patch.setattr(ports, "TRIES", len(ours))
        few = f"from notifier.testing import ports\nports.PORTS, ports.TRIES = {ours!r}, {len(ours)}\n"
        command = [sys.executable, "-c", few + CHOOSE.format(tries=5)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
            assert other.stdout is not None
            theirs = {int(port) for port in other.stdout.readline().split()}
            mine = _all_that_are_left()
            assert theirs
            assert not mine & theirs
            other.communicate("\n")
        assert theirs <= _all_that_are_left()


def test_a_server_may_listen_where_it_was_reserved() -> None:
    """The reservation is no server: TCP is free there."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", ports.free_port()))
        server.listen()


def test_a_port_where_somebody_listens_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that chose its port by itself keeps it."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", ports.free_port()))
        server.listen()
        taken = server.getsockname()[1]
        free = ports.free_port()
        os.close(ports._reserved.pop())
        monkeypatch.setattr(ports, "SystemRandom", lambda: _Chosen([taken, free]))
        assert ports.free_port() == free


def test_reservations_do_not_pile_up() -> None:
    """A process that starts thousands of servers keeps the latest."""
    for _ in range(ports.RESERVED_AT_ONCE + 5):
        ports.free_port()
    assert len(ports._reserved) == ports.RESERVED_AT_ONCE


def _all_that_are_left() -> set[int]:
    found = set()
    while True:
        try:
            found.add(ports.free_port())
        except OSError:
            return found


class _Chosen(SystemRandom):
    def __init__(self, chosen: list[int]) -> None:
        super().__init__()
        self.chosen = chosen

    def sample(self, *_: Any, **__: Any) -> list[int]:
        return self.chosen
