"""A receiver of the webhook that never comes to an end: one deadline holds for the whole request."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

import pytest
from h11 import ProtocolError

from notifier.server.webhook import post

TIMEOUT_S = 1.0


def trickled(peer: socket.socket) -> None:
    for byte in b"HTTP/1.1 200 OK" * 100:
        peer.sendall(bytes([byte]))
        time.sleep(0.1)


def continued(peer: socket.socket) -> None:
    while True:
        peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        time.sleep(0.01)


def flooded(peer: socket.socket) -> None:
    while True:
        peer.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)


def headed(peer: socket.socket) -> None:
    peer.sendall(b"HTTP/1.1 200 OK\r\n")
    while True:
        peer.sendall(b"X: y\r\n")
        time.sleep(0.1)


def silent(peer: socket.socket) -> None:
    peer.recv(1)
    threading.Event().wait(60)


@pytest.mark.parametrize("script", [trickled, continued, flooded, headed, silent])
def test_one_deadline_for_all(script: Callable[[socket.socket], None]) -> None:
    """Whatever trickles in, the request ends within its time, and not of each read's."""

    def serve() -> None:
        peer, _ = listening.accept()
        with peer, suppress(OSError):
            script(peer)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        threading.Thread(target=serve, daemon=True).start()
        url = urlsplit(f"http://127.0.0.1:{listening.getsockname()[1]}/hook")
        began = time.monotonic()
        with pytest.raises((OSError, ProtocolError)):
            post(url, b"{}", b"secret", TIMEOUT_S)
        assert time.monotonic() - began < 60 * TIMEOUT_S, "the least of them would take two minutes"
