"""What a person types: the Procfile's line, scaled, and the demo, stopped in the middle."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import PATIENCE_S, Simulators, clean_environ, eventually, note, notifier, write_config

ROOT = Path(__file__).parents[2]
WORKERS = 3


def environ(**more: str) -> dict[str, str]:
    """As after `. .venv/bin/activate`."""
    return clean_environ(**more) | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def running() -> list[str]:
    """The command lines of all processes; the simulators' and the server's name their folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            found.append(path.read_bytes().decode(errors="replace"))
    return found


def test_the_procfile_scales(tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis) -> None:
    """`honcho start -c worker=3` runs three workers that send; SIGTERM ends them all, and nothing is left behind."""
    with Simulators(tmp_path / "simulators") as simulators:
        config = write_config(tmp_path, redis_server.url, simulators.providers())
        log = tmp_path / "honcho.log"
        with log.open("wb") as output:
            honcho = subprocess.Popen(
                [str(Path(sys.executable).with_name("honcho")), "start", "-c", f"worker={WORKERS}"],
                cwd=ROOT,
                env=environ(NOTIFIER_CONFIG=str(config)),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            eventually(lambda: redis.scard("rq:workers") == WORKERS, "three registered workers")
            with notifier(config) as producer:
                producer.send_many(note(f"user-{n}", f"procfile-{n}") for n in range(30))
            eventually(lambda: len(simulators.titles("procfile-")) == 30, "thirty deliveries")
        finally:
            honcho.send_signal(signal.SIGTERM)
            honcho.wait(PATIENCE_S)
    assert redis.scard("rq:workers") == 0, log.read_text()
    assert "Traceback" not in log.read_text()
    assert sorted(simulators.titles("procfile-")) == sorted(f"procfile-{n}" for n in range(30))


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for that of a socket."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


def has_begun(folder: Path, pattern: str) -> bool:
    return bool(list(folder.glob(f"push-throttle-demo-*/{pattern}")))


@pytest.mark.parametrize("moment", ["nothing", "redis", "worker-1.log", "wire.jsonl"])
def test_a_demo_that_is_interrupted_leaves_nothing(short_folder: Path, moment: str) -> None:
    """The demo says at once what it sets up. Ctrl-C then, at each step, and in its middle: one line, status 130,
    no traceback; every process and folder of it is gone.
    """
    demo = subprocess.Popen(
        [sys.executable, "-m", "workers.demo", "--workers", "2"],
        cwd=ROOT,
        env=environ(TMPDIR=str(short_folder)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with demo:
        try:
            assert demo.stderr is not None
            assert demo.stderr.readline().startswith("Setting up Redis, simulators of APNs and FCM, and 2 workers")
            if moment == "redis":  # it starts, or has: a folder of its own beside the demo's, or the demo's
                eventually(lambda: any(each.is_dir() for each in short_folder.iterdir()), "the first folder")
            elif moment != "nothing":
                eventually(lambda: has_begun(short_folder, moment), moment)
        finally:
            demo.send_signal(signal.SIGINT)
        output, errors = demo.communicate(timeout=PATIENCE_S)
    assert demo.returncode == 130, errors
    assert "stopped; everything that the demo had started has ended" in errors
    assert "Traceback" not in errors + output
    assert not list(short_folder.iterdir())
    assert not [args for args in running() if str(short_folder) in args]
