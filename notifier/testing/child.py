"""Child processes: one that does not outlive this one, and the end of any."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

# Run by a bare Python that then becomes the command, so the process id stays. PR_SET_PDEATHSIG (1) has the
# kernel kill it with its parent; a parent that died before the call is noticed by its id. Not a preexec_fn,
# which may deadlock in a process with threads.
_BOOTSTRAP: Final = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""


def spawn(
    command: Sequence[str], output: int, errors: int | None = subprocess.STDOUT, env: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command by its full path; output, errors: where it writes, as `Popen` takes them.

    On Linux it is killed when this process ends, however that happens. It has a session of its own, so that
    Ctrl-C reaches this program alone, which then ends its children in order. Raise OSError if it cannot be
    started.
    """
    if sys.platform != "linux":
        return _popen(command, output, errors, env)
    command = [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, str(os.getpid()), *command]
    if threading.current_thread() is threading.main_thread():
        return _popen(command, output, errors, env)
    return _spawn_from_lasting_thread(partial(_popen, command, output, errors, env))


def end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """End a child in order by SIGTERM, or by SIGKILL where it has not ended within `timeout_s`."""
    process.send_signal(signal.SIGTERM)  # none is sent to one that was waited for
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _spawn_from_lasting_thread(start: Callable[[], subprocess.Popen[bytes]]) -> subprocess.Popen[bytes]:
    # The kernel's "parent" is the thread that forked, not the process: a child of a thread that ends is
    # killed. So a thread that stays does it. (Not done from the main thread: a process with threads cannot
    # fork without a warning from Python 3.12 on.)
    started: list[subprocess.Popen[bytes] | OSError] = []
    ready = threading.Event()

    def keep() -> None:
        try:
            started.append(start())
        except OSError as error:
            started.append(error)
        ready.set()
        if isinstance(started[0], subprocess.Popen):
            started[0].wait()

    threading.Thread(target=keep, name="keeps-a-child", daemon=True).start()
    ready.wait()
    if isinstance(started[0], OSError):
        raise started[0]
    return started[0]


def _popen(
    command: Sequence[str], output: int, errors: int | None, env: Mapping[str, str] | None
) -> subprocess.Popen[bytes]:
    return subprocess.Popen(  # noqa: S603 - the caller's own command, no shell
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=env, start_new_session=True
    )
