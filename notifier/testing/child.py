"""Child processes: `spawn` starts one that ends with this process, `end` ends any in order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Final

# A bare Python runs this and then becomes the command, so that the process id stays. PR_SET_PDEATHSIG (1) makes the
# kernel kill the child with its parent; getppid shows that the parent died before that call. A preexec_fn would do
# the same, but may deadlock in a process with threads.
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

    On Linux, if the main thread starts the child, the kernel kills it when this process ends, however that happens. The
    child has a session of its own: Ctrl-C reaches this program alone, which then ends its children in order. Raise
    OSError if the command cannot be started.
    """
    # The kernel's "parent" is the thread that forked, so the child of another thread would die with that thread.
    if sys.platform == "linux" and threading.current_thread() is threading.main_thread():
        command = [sys.executable, "-I", "-S", "-c", _BOOTSTRAP, str(os.getpid()), *command]
    return subprocess.Popen(  # noqa: S603 - the caller's own command, no shell
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=env, start_new_session=True
    )


def end(process: subprocess.Popen[bytes], timeout_s: float) -> None:
    """End a child in order by SIGTERM, or by SIGKILL if it has not ended within `timeout_s`."""
    process.send_signal(signal.SIGTERM)  # Popen sends nothing to a child that was waited for
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
