"""A receiver of the webhook that never comes to an end: one deadline holds for the whole request."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import pytest
from h11 import ProtocolError
from redis import Redis
from redis.backoff import NoBackoff

from notifier.server import webhook
from notifier.server.webhook import Webhook, post
from notifier.settings import parse_settings

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


def closed(peer: socket.socket) -> None:
    while not peer.recv(4096).endswith(b"{}"):
        pass


@pytest.mark.parametrize("script", [trickled, continued, flooded, headed, silent, closed])
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
            asyncio.run(post(url, b"{}", b"secret", TIMEOUT_S))
        assert time.monotonic() - began < 60 * TIMEOUT_S, "the least of them would take two minutes"


def test_a_host_that_nobody_knows_holds_up_no_try(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the resolver does not answer, it is posted again as often as `timeout` says."""
    monkeypatch.setattr(webhook, "BACKOFF", NoBackoff())
    tries, answers, getaddrinfo = threading.Semaphore(0), threading.Event(), socket.getaddrinfo

    def silent_resolver(host: Any, *args: Any, **options: Any) -> Any:
        if host != "hook.test":
            return getaddrinfo(host, *args, **options)
        tries.release()
        answers.wait(120)
        raise socket.gaierror

    monkeypatch.setattr(socket, "getaddrinfo", silent_resolver)
    settings = parse_settings("events: {keep: 1h, webhook: {url: 'http://hook.test/', timeout: 100ms}}").events.webhook
    assert settings is not None
    redis.xadd("notifier:events", {"job_id": "a", "outcome": "delivered", "detail": "", "meta": "{}"})
    posts = Webhook(redis, settings, lambda: "s3cret")
    posts.start()
    try:
        assert all(tries.acquire(timeout=60) for _ in range(3))
    finally:
        answers.set()
        posts.stop()
