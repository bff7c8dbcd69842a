"""The server of `notifier serve` for tests: over real HTTP, in a thread of this process."""

from __future__ import annotations

import base64
import http.client
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import urlencode

import uvicorn

from notifier.server import state
from notifier.server.run import make_server
from tests.harness.support import eventually

TOKEN = "a-token-of-the-test"
EVIL = "<script>alert(1)</script>\"'&"
Answer = tuple[int, str, dict[str, str]]


def basic(password: str, name: str = "any") -> str:
    return "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()


class Client:
    """Asks a server that listens on this host. headers: given with each question."""

    server: uvicorn.Server  # of serving()

    def __init__(self, port: int, **headers: str) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"
        self._headers = headers

    def __call__(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, **headers)

    def post(self, path: str, given: Any = None, **headers: str) -> Answer:
        """Post JSON."""
        return self.ask("POST", path, json.dumps(given or {}), **{"Content_Type": "application/json", **headers})

    def submit(self, path: str, _headers: dict[str, str] | None = None, **fields: str) -> Answer:
        """Post a form."""
        kind = {"Content_Type": "application/x-www-form-urlencoded"}
        return self.ask("POST", path, urlencode(fields), **kind, **(_headers or {}))

    def ask(self, method: str, path: str, body: str | None, **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=90)
        given = {name.replace("_", "-"): value for name, value in {**self._headers, **headers}.items()}
        try:
            connection.request(method, path, body=body, headers=given)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), {k.lower(): v for k, v in answer.getheaders()}
        finally:
            connection.close()

    def with_token(self, name: str = "ann") -> Client:
        """The same, with the token."""
        return Client(self.port, Authorization=basic(TOKEN, name))


@contextmanager
def serving(
    config: Path,
    token: str | Callable[[], str] = "",
    *,
    is_open: bool = False,
    answer_s: float = 60,
    **options: Any,
) -> Iterator[Client]:
    """The application under uvicorn, in a thread, on a port of its own.

    answer_s: after how long a Redis that hangs is answered for; no machine is slow enough for that to come by itself.
    options: as for `make_server`.
    """
    with socket.create_server(("127.0.0.1", 0)) as listening, patch.object(state, "ANSWER_S", answer_s):
        server: Any = make_server(
            config, token if callable(token) else lambda: token, is_open=is_open, log_level="error", **options
        )
        thread = threading.Thread(target=server.run, args=([listening],))
        thread.start()
        try:
            eventually(lambda: server.started, "the server")
            client = Client(listening.getsockname()[1])
            client.server = server
            yield client
        finally:
            server.should_exit = True
            thread.join(30)
            assert not thread.is_alive()
            # Who still asked when the server ended may have connected again. What is left to the garbage collector
            # fails whichever test runs then.
            of = server._state
            of._threads.shutdown()
            of.redis.close()
