"""A process that is forked from a warm one is a process like any other."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.support import clean_environ, eventually

SAID = """
import os, sys
print(sys.argv[1:], os.getpid(), os.getsid(0), os.environ["NAME"], sys.path[1], flush=True)
print("an error", file=sys.stderr)
sys.exit(int(sys.argv[1]))
"""
STAYS = "import time\nprint('up', flush=True)\ntime.sleep(600)"


def begin(folder: Path, code: str, *arguments: str, **environ: str) -> tuple[warm.Popen, Path]:
    script, log = folder / "script.py", folder / "said.log"
    script.write_text(code)
    with log.open("wb") as output:
        process = warm.Popen(
            [sys.executable, script, *arguments], env=clean_environ(**environ), stdout=output, stderr=output
        )
    return process, log


def test_it_has_what_it_was_given(tmp_path: Path) -> None:
    """Its arguments, environment, path, output, session and exit status are its own."""
    process, log = begin(tmp_path, SAID, "3", NAME="of this one", PYTHONPATH="/somewhere")
    assert process.wait(60) == process.poll() == 3
    said = log.read_text().splitlines()
    assert said == [f"['3'] {process.pid} {process.pid} of this one /somewhere", "an error"]
    assert process.pid != os.getpid()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_signal_ends_it(tmp_path: Path, number: signal.Signals) -> None:
    """As with subprocess.Popen, the status is the negative number; a signal after the end is no error."""
    process, log = begin(tmp_path, STAYS)
    eventually(lambda: log.read_text() == "up\n", "its first line")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    assert process.poll() is None
    process.send_signal(number)
    assert process.wait(60) == -number
    process.kill()


def test_a_pipe_is_read_to_its_end() -> None:
    """What it writes into a pipe can be read, and the pipe ends with it."""
    command = [sys.executable, "-m", "notifier.cli", "--help"]
    with warm.Popen(command, env=clean_environ(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"preview" in process.stdout.read()
    assert process.returncode == 0
