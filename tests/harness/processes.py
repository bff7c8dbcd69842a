"""Child processes and waiting for what they do: for the tests and for the benchmarks."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from redis import Redis

from notifier.scripts.keys import redis_key, rq_key
from notifier.testing.child import end

ROOT: Final = Path(__file__).resolve().parents[2]
END_S: Final = 15.0
POLL_S: Final = 0.005


def environment(extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment of a child: this repository importable, none of the caller's configuration."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NOTIFIER_")}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH", "")]))
    return {**kept, "PYTHONPATH": path, **(extra or {})}


# How a child is started. The tests put in its place what forks one that has done its imports.
launch: Callable[..., subprocess.Popen[bytes]] = partial(subprocess.Popen, start_new_session=True)


@contextlib.contextmanager
def child(arguments: Sequence[str], **kwargs: Any) -> Iterator[subprocess.Popen[bytes]]:
    """Run `python <arguments>`; ended by SIGTERM, and by SIGKILL if that does not help, on leaving."""
    kwargs.setdefault("env", environment())
    with launch([sys.executable, *arguments], **kwargs) as process:
        try:
            yield process
        finally:
            end(process, END_S)


def await_that(condition: Callable[[], bool], what: str, within_s: float = 60.0, poll_s: float = POLL_S) -> float:
    """Return the seconds until the condition held; raise TimeoutError naming `what` where it does not."""
    begun = time.monotonic()
    while not condition():
        if time.monotonic() - begun > within_s:
            raise TimeoutError(f"{what}: not within {within_s:.0f} s")
        time.sleep(poll_s)
    return time.monotonic() - begun


def stop(pid: int) -> None:
    """Stop a process, and return when all of its threads stand still; where there is no /proc, at once."""

    def stands_still() -> bool:
        with contextlib.suppress(OSError):  # a thread has ended
            return all(b"\nState:\tT" in at.read_bytes() for at in Path(f"/proc/{pid}/task").glob("*/status"))
        return False

    os.kill(pid, signal.SIGSTOP)
    await_that(stands_still, f"process {pid} to stand still")


def await_workers(redis: Redis, count: int, within_s: float = 60.0) -> None:
    """Return when as many workers have registered."""
    await_that(lambda: redis.scard(rq_key("workers")) >= count, f"{count} workers", within_s)


def total(redis: Redis, *words: str) -> int:
    """The sum of these totals."""
    return sum(int(value or 0) for value in redis.hmget(redis_key("stats"), list(words)))


def cpu_s(redis: Redis) -> float:
    """The processor's own time that Redis has taken, in seconds: the machine may be busy with others."""
    used: Any = redis.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"])
