"""The stage of the demo: Redis, the simulators and the workers, in processes that end with the demo."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from redis import Redis

from notifier.errors import NotifierError, RedisUnusableError
from notifier.scripts.keys import rq_key
from notifier.settings import Settings, load_settings
from notifier.simulators.control import tell
from notifier.store.connection import check, connect
from notifier.testing.child import end, spawn
from notifier.testing.embedded import EmbeddedRedis

START_S = 30.0
END_S = 15.0
LATENCY_MS = 15.0  # of the simulators


@dataclass(frozen=True, slots=True)
class Stage:
    """The running stage: the workers' settings and their file, the wire log, and the version of Redis."""

    settings: Settings
    config: Path
    wire_log: Path
    redis: str


@contextlib.contextmanager
def stage(folder: Path, rates: Path, scripts: Mapping[str, Any], workers: int) -> Iterator[Stage]:
    """Start everything in `folder` with the rates in a YAML file; end everything on leaving.

    scripts: by device token, the replies of the simulators. Raises NotifierError if something cannot start.
    """
    with contextlib.ExitStack() as stack:
        url, version = _redis(stack)
        simulators = _simulators(stack, folder, scripts)
        config = folder / "notifier.yaml"
        document = yaml.safe_load(rates.read_text(encoding="utf-8"))
        document["providers"] = {
            "apns": {"client": "h2", **simulators["apns"]},
            "fcm": {"client": "pyfcm", **simulators["fcm"]},
        }
        config.write_text(yaml.safe_dump(document), encoding="utf-8")
        environ = {**os.environ, "NOTIFIER_CONFIG": str(config), "NOTIFIER_REDIS_URL": url}
        settings = load_settings(config, environ)
        with contextlib.closing(connect(settings.redis)) as client:
            check(client)
            if client.dbsize():
                raise RedisUnusableError(f"the database at {url} is not empty; the demo needs an empty one")
            started = [_worker(stack, folder, environ, number + 1) for number in range(workers)]
            _await_workers(client, started)
        yield Stage(settings, config, Path(simulators["wire_log"]), version)


def _worker(
    stack: contextlib.ExitStack, folder: Path, environ: Mapping[str, str], number: int
) -> tuple[subprocess.Popen[bytes], Path]:
    path = folder / f"worker-{number}.log"
    log = stack.enter_context(path.open("wb"))
    command = [sys.executable, "-m", "workers", "--name", f"demo-{number}"]
    return _child(stack, command, log.fileno(), log.fileno(), environ), path


def _await_workers(client: Redis, started: Sequence[tuple[subprocess.Popen[bytes], Path]]) -> None:
    """Wait until all workers have registered, so that the demo measures their work and not their start."""
    deadline = time.monotonic() + START_S
    while client.scard(rq_key("workers")) < len(started):
        for process, log in started:
            if process.poll() is not None or time.monotonic() > deadline:
                last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:]
                raise NotifierError("a worker did not start: " + "".join(last))
        time.sleep(0.05)


def _redis(stack: contextlib.ExitStack) -> tuple[str, str]:
    if url := os.environ.get("NOTIFIER_REDIS_URL"):
        return url, "the Redis of NOTIFIER_REDIS_URL"
    redis = stack.enter_context(EmbeddedRedis())
    return redis.url, f"Redis {redis.version}"


def _simulators(stack: contextlib.ExitStack, folder: Path, scripts: Mapping[str, Any]) -> dict[str, Any]:
    process = _child(stack, [sys.executable, "-m", "notifier.simulators", "--folder", str(folder)], subprocess.PIPE)
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise NotifierError("the simulators did not start")
    listening: dict[str, Any] = json.loads(line)
    slow = {"latency_ms": LATENCY_MS}
    tell(Path(listening["control"]), {"scripts": scripts, "apns": slow, "fcm": slow})
    return listening


def _child(
    stack: contextlib.ExitStack,
    command: list[str],
    output: int,
    errors: int | None = None,
    env: Mapping[str, str] | None = None,
) -> subprocess.Popen[bytes]:
    # On Linux the child ends with the demo, even if Ctrl-C comes before the stack knows the child.
    process = stack.enter_context(spawn(command, output, errors, env))
    stack.callback(end, process, END_S)
    return process
