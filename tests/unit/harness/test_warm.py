"""A process that is forked from a warm one is a process like any other."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import warm
from tests.harness.support import clean_environ, eventually, type_in

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


@pytest.mark.parametrize("anew", [False, True])
def test_rq_is_imported_anew(anew: bool) -> None:
    """And what imports it: so its prefix of keys is read from the environment of this process."""
    code = "import sys; print('rq' in sys.modules); from notifier.scripts.keys import in_force; print(in_force().rqs)"
    done = warm.run([sys.executable, "-c", code], env=clean_environ(RQ_KEY_PREFIX="mine"), anew=anew)
    assert done.stdout == ("False\nmine\n" if anew else "True\nrq\n"), done.stderr


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


def test_who_does_not_end_in_time_says_where_it_stands(tmp_path: Path) -> None:
    """Each thread and each task: so a test that waited in vain shows what for."""
    # It wakes now and then: a signal just before it dozes off is handled when it wakes.
    says = "async def dozes():\n  print('up', flush=True)\n  while True: await asyncio.sleep(0.05)\n"
    code = f"import asyncio\n{says}asyncio.run(dozes())"
    process, log = begin(tmp_path, code)
    eventually(lambda: log.read_text() == "up\n", "its first line")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    eventually(lambda: "dozes" in log.read_text(), "where it stands")
    process.kill()
    assert process.wait(60) == -signal.SIGKILL


def test_a_pipe_is_read_to_its_end() -> None:
    """What it writes into a pipe can be read, and the pipe ends with it."""
    command = [sys.executable, "-m", "notifier.cli", "--help"]
    with warm.Popen(command, env=clean_environ(), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert b"preview" in process.stdout.read()
    assert process.returncode == 0


def test_a_command_is_run_to_its_end(tmp_path: Path) -> None:
    """As with subprocess.run: its status, what it wrote, its folder; and it is killed when it takes too long."""
    code = "import os, sys; print(os.getcwd()); print('an error', file=sys.stderr); sys.exit(3)"
    done = warm.run([sys.executable, "-c", code], env=clean_environ(), cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (3, f"{tmp_path}\n", "an error\n")
    with pytest.raises(subprocess.TimeoutExpired):  # and without its end this would wait for 600 s
        warm.run([sys.executable, "-c", STAYS], env=clean_environ(), timeout=0.1)


TYPED = """
echo 'print(21 * 2)' | python - | cat
python -c 'import sys; sys.exit(3)' || echo "status $?"
export HERE=shown
python -c 'import os, signal; print(os.environ["HERE"], signal.getsignal(signal.SIGINT) is signal.SIG_IGN)' &
wait %1
cat > stays.py <<'END'
import os, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
open(sys.argv[1], "w").write(str(os.getpid()))
signal.sigwait([signal.SIGTERM])
sys.exit(7)
END
python stays.py asked & until [ -s asked ]; do sleep 0.01; done
kill %1; wait %1 || echo "status $?"
python stays.py killed & until [ -s killed ]; do sleep 0.01; done
kill -KILL %1; wait %1 || echo "status $?"
"""


def test_what_a_shell_starts_is_warm_too(tmp_path: Path) -> None:
    """Its input, output, status, environment and signals are those of the program that was typed."""
    said = type_in(TYPED, tmp_path, "redis://nobody-asks")
    assert [line for line in said.splitlines() if "Killed" not in line] == [
        "42", "status 3", "shown True", "status 7", "status 137"
    ]  # fmt: skip
    pid = (tmp_path / "killed").read_text()
    eventually(lambda: not Path(f"/proc/{pid}").exists(), "the end of what was killed")
