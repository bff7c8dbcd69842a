"""Limits of a WSGI program on gunicorn, which makes it once and then forks its processes."""

import http.client
import itertools
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from redis import Redis

from notifier.limiter import Limiter
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import clean_environ, eventually

PROGRAM = """
import os
from notifier.limiter import Limiter
from notifier.limiter.middleware import WebLimit, WSGILimits

limiter = Limiter.from_url({url!r}, namespace="web")
limiter.check("warm", "500/day")  # its connection is there before the fork


def program(environ, start_response):
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [str(os.getpid()).encode()]


app = WSGILimits(program, limiter, WebLimit("api", "30/day", key=lambda request: request.path))
"""


def get(port: int, path: str) -> tuple[int, bytes, http.client.HTTPMessage]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read(), response.headers
    finally:
        connection.close()


@pytest.mark.parametrize("preload", [True, False])
def test_all_processes_share_a_limit(preload: bool, redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """However the processes came about, together they admit exactly the limit, and each permit is counted once."""
    (tmp_path / "site_of_test.py").write_text(PROGRAM.format(url=redis_server.url))
    with socket.create_server(("127.0.0.1", 0)) as listener:  # gunicorn is handed the socket: no port is guessed
        port = listener.getsockname()[1]
        options = ["--workers", "2", "--bind", f"fd://{listener.fileno()}", "--log-level", "critical"]
        options += ["--no-control-socket", *(["--preload"] if preload else [])]
        command = [sys.executable, "-m", "gunicorn", *options, "site_of_test:app"]
        with subprocess.Popen(
            command, cwd=tmp_path, env=clean_environ(), pass_fds=[listener.fileno()], start_new_session=True
        ) as server:
            try:
                processes, paths = set(), itertools.count()

                def both() -> bool:
                    processes.add(get(port, f"/{next(paths)}")[1])
                    return len(processes) > 1

                eventually(both, "an answer of each process")
                answers = [get(port, "/all") for _ in range(35)]
                assert [status for status, _, _ in answers] == [200] * 30 + [429] * 5
                assert {headers["RateLimit"].partition(";t=")[0] for _, _, headers in answers[29:]} == {'"api";r=0'}
                assert Limiter(redis, namespace="web").count("api:{/all}", last="1d") == 30
            finally:
                server.terminate()
