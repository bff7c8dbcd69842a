"""The watchdog of a worker: a loop that stands still ends it, one that moves is told to systemd and to probes."""

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from workers.configuration.start import pause
from workers.loop.watchdog import ALIVE_FILE, EXIT_STATUS, Watchdog

HANGS = """
import asyncio, os, structlog, time
from workers.loop.watchdog import Watchdog
async def main():
    await asyncio.sleep(0)
    this_is_where_it_hangs = time.sleep(120)
asyncio.run(Watchdog(structlog.get_logger(), os.environ, look_s=0.05).watch(main()))
"""


def test_a_loop_that_stands_still_ends_the_worker() -> None:
    """It ends with a status of its own, and its log says where it stood."""
    done = subprocess.run([sys.executable, "-c", HANGS], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == EXIT_STATUS
    assert "loop_stands_still" in done.stdout + done.stderr
    assert "line 6 in main" in done.stderr


UNREAD = """
import asyncio, os, structlog
from notifier.log import configure_logging
from workers.loop.watchdog import Watchdog
configure_logging("json")
async def main():
    while True:
        structlog.get_logger().info("one line more")
asyncio.run(Watchdog(structlog.get_logger(), os.environ, look_s=0.05).watch(main()))
"""


def test_a_loop_that_hangs_because_nobody_reads_the_log_ends_the_worker() -> None:
    """The pipe is full, so the last words cannot be written either."""
    with subprocess.Popen([sys.executable, "-c", UNREAD], stderr=subprocess.PIPE) as process:
        try:
            assert process.wait(60) == EXIT_STATUS
        finally:
            process.kill()


def test_a_loop_that_moves_is_told(tmp_path: Path) -> None:
    """Systemd hears that it is ready, moves and stops; the file is there for a probe."""
    place, alive = tmp_path / "notify", tmp_path / "alive"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(place))
        systemd.settimeout(30)
        environ = {"NOTIFY_SOCKET": str(place), ALIVE_FILE: str(alive)}

        asyncio.run(Watchdog(structlog.get_logger(), environ).watch(asyncio.sleep(0.0)))
        assert [systemd.recv(99) for _ in range(3)] == [b"READY=1", b"WATCHDOG=1", b"STOPPING=1"]
    assert alive.is_file()


def test_a_worker_that_waits_for_redis_gives_signs_of_life(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe or systemd that kills it would help nobody: it has no event loop yet that could tell."""
    place, alive = tmp_path / "notify", tmp_path / "alive"
    monkeypatch.setenv("NOTIFY_SOCKET", str(place))
    monkeypatch.setenv(ALIVE_FILE, str(alive))
    monkeypatch.setattr("workers.configuration.start.PAUSE_S", 0)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(place))
        systemd.settimeout(30)
        pause()
        assert [systemd.recv(99) for _ in range(2)] == [b"READY=1", b"WATCHDOG=1"]
    assert alive.is_file()
