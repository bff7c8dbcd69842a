"""Python processes that begin warm: each is forked from one that has imported `workers`, and is real in all else.

To import `workers` takes more than a second of CPU, and the tests start hundreds of processes that do. `Popen` takes
the command of such a process: this Python with `-m` or a script, or a script beside it (`rq`, `notifier`).

Start it cold where the test asks what a process does before its imports are done, or what /proc says of its command.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import functools
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Self

# What a worker imports, also when it starts, and what RQ's command line does. What is not named here is imported late.
MODULES: Final = (
    "workers.push",
    "notifier.providers.apns.provider",
    "notifier.providers.transport.http2.channel",
    "notifier.providers.fcm.provider",
    "notifier.simulators.apns",
    "notifier.simulators.fcm",
    "notifier.simulators.webpush",
    "rq.cli",
)
MAX_BYTES: Final = 1 << 20
PR_SET_PDEATHSIG: Final = 1


class Popen:
    """A process that was forked, with what the tests use of subprocess.Popen; its session is its own."""

    def __init__(self, args: Sequence[object], *, env: Mapping[str, str], stdout: Any, stderr: Any = None) -> None:
        self.args = [str(arg) for arg in args]
        self.returncode: int | None = None
        self._lock = threading.Lock()
        self.stdout, writes_to = _opened(stdout)
        errors_to = 2 if stderr is None else stderr.fileno()
        request = {"args": self.args, "env": dict(env), "folder": str(Path.cwd())}
        self._told, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            files = [theirs.fileno(), writes_to, errors_to]
            socket.send_fds(_forker(), [json.dumps(request).encode()], files)
        if self.stdout is not None:
            os.close(writes_to)
        words = self._told.recv(64)
        if not words:
            raise RuntimeError("the process that the others are forked from has ended")
        self.pid = int(words)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.stdout is not None:
            self.stdout.close()
        self.wait()

    def poll(self) -> int | None:
        """Its exit status, negative for a signal; None while it runs."""
        with self._lock:
            if self.returncode is None and _readable(self._told, 0):
                self.returncode = int(self._told.recv(64) or -signal.SIGKILL)
                self._told.close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return its exit status; raise subprocess.TimeoutExpired if that takes too long."""
        if self.poll() is None:
            _readable(self._told, timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return status

    def communicate(self, timeout: float | None = None) -> tuple[bytes, None]:
        """What it writes until its end; there is nothing to tell it."""
        assert self.stdout is not None
        reader = threading.Thread(target=lambda: said.append(self.stdout.read()))  # type: ignore[union-attr]
        said: list[bytes] = []
        reader.start()
        try:
            self.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            reader.join()
        return said[0], None

    def send_signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it ends just now
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _opened(stdout: Any) -> tuple[IO[bytes] | None, int]:
    if stdout != subprocess.PIPE:
        return None, stdout.fileno()
    reads_from, writes_to = os.pipe()
    return os.fdopen(reads_from, "rb"), writes_to


def _readable(told: socket.socket, timeout: float | None) -> bool:
    poll = select.poll()  # select.select takes no file number above 1,023
    poll.register(told, select.POLLIN)
    return bool(poll.poll(None if timeout is None else timeout * 1000))


def launch(args: Sequence[object], **kwargs: Any) -> Any:
    """Start a child of tests.processes: warm, unless it puts other clocks in their place before all imports."""
    if "--clock-hours" in args:
        return subprocess.Popen(args, start_new_session=True, **kwargs)
    return Popen(args, **kwargs)


@functools.cache
def _forker() -> socket.socket:
    """The way to the process that the others are forked from; it ends with this one."""
    mine, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        environ = {k: v for k, v in os.environ.items() if not k.startswith(("NOTIFIER_", "RQ_", "PYTHON"))}
        process = subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            env=environ,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )

    @atexit.register
    def end() -> None:
        mine.close()
        process.wait()

    return mine


def _serve(control: socket.socket) -> list[str] | None:
    """Fork for whoever asks, and tell the end of each; returns its command in each child, None in the end."""
    ends: dict[int, socket.socket] = {}
    bell, rung = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(rung, warn_on_full_buffer=False)
    while True:
        ready, _, _ = select.select([control, bell], [], [])
        if bell in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(bell, 4096)
            _reap(ends)
        if control not in ready:
            continue
        told, files, _, _ = socket.recv_fds(control, MAX_BYTES, 3)
        if not told:
            return None
        request, told_to = json.loads(told), socket.socket(fileno=files[0])
        pid = os.fork()
        if not pid:
            for other in (control, told_to, *ends.values()):
                other.close()
            os.close(bell)
            signal.set_wakeup_fd(-1)
            os.close(rung)
            return _become(request, files[1:])
        for number in files[1:]:
            os.close(number)
        told_to.send(str(pid).encode())
        ends[pid] = told_to


def _reap(ends: dict[int, socket.socket]) -> None:
    while ends:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with ends.pop(pid) as told_to, contextlib.suppress(BrokenPipeError, ConnectionResetError):
            told_to.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict[str, Any], outputs: Sequence[int]) -> list[str]:
    """Take on what subprocess would have given a process, and what Python would have made of it."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    os.setsid()
    for number, output in enumerate(outputs, start=1):
        os.dup2(output, number)
        os.close(output)
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["env"])
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    return request["args"]


def _run(args: list[str]) -> None:
    """Go on as the command would have begun."""
    if args[0] == sys.executable:
        args = args[1:]
    more = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if args[0] == "-m":
        sys.argv = args[1:]
        sys.path[:1] = [str(Path.cwd()), *more]
        runpy.run_module(args[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = args
        sys.path[:1] = [str(Path(args[0]).parent), *more]
        runpy.run_path(args[0], run_name="__main__")


def main() -> None:
    """Import, then fork."""
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    sys.path[0] = str(Path.cwd())
    for module in MODULES:
        # What it cannot import, no worker imports here. The h2 of apns2's environment raises AttributeError.
        with contextlib.suppress(ImportError, AttributeError):
            importlib.import_module(module)
    gc.collect()
    gc.freeze()
    if (args := _serve(control)) is not None:
        _run(args)


if __name__ == "__main__":
    main()
