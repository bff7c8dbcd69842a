"""A primary, a replica and a sentinel that promotes it: real servers, on free ports of the loopback."""

import contextlib
import os
import signal
import tempfile
from pathlib import Path
from typing import Final, Self

from redis import Redis
from redis.exceptions import RedisError

from notifier.testing.child import end, spawn
from notifier.testing.embedded import EmbeddedRedis, find_redis_server
from notifier.testing.ports import free_port
from tests.harness.mortal_redis import MortalRedis
from tests.harness.processes import await_that

SERVICE: Final = "push"
DOWN_AFTER_MS: Final = 500
NEVER_MS: Final = 600_000


class WatchedRedis:
    """`url` leads to whichever of the two is the primary, through the sentinel.

    It replaces a primary when `await_promotion` is called: on a busy machine a living one stands still too.
    """

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.primary = stack.enter_context(MortalRedis())
            replica_of = ("--replicaof", "127.0.0.1", str(self.primary.port), "--repl-diskless-sync-delay", "0")
            self.replica = stack.enter_context(EmbeddedRedis(extra_args=replica_of))
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="notifier-sentinel-")))
            self._start_sentinel(stack, folder)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._primary_pid, signal.SIGCONT)
        self._stack.close()

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/{SERVICE}/0"

    def _start_sentinel(self, stack: contextlib.ExitStack, folder: Path) -> None:
        self.port = free_port()
        configuration = folder / "sentinel.conf"
        configuration.write_text(
            f"port {self.port}\nbind 127.0.0.1\ndir {folder}\nprotected-mode no\n"
            f"sentinel monitor {SERVICE} 127.0.0.1 {self.primary.port} 1\n"
            f"sentinel down-after-milliseconds {SERVICE} {NEVER_MS}\n"
            f"sentinel failover-timeout {SERVICE} 3000\n",
            encoding="utf-8",
        )
        server, _ = find_redis_server()
        log = stack.enter_context((folder / "sentinel.log").open("wb"))
        process = spawn([str(server), str(configuration), "--sentinel"], log.fileno())
        stack.callback(end, process, 5.0)
        self.sentinel = stack.enter_context(contextlib.closing(Redis(port=self.port, decode_responses=True)))
        self._primary_pid = self.primary.pid
        self.await_replica()

    def await_replica(self) -> None:
        """Wait until the sentinel knows a replica that has all the data."""

        def known() -> bool:
            with contextlib.suppress(RedisError):
                replicas = self.sentinel.sentinel_slaves(SERVICE)
                return any(r["master-link-status"] == "ok" and not r["is_sdown"] for r in replicas)
            return False

        await_that(known, "a replica that the sentinel knows")

    def await_promotion(self) -> None:
        """Let the sentinel find out that the primary does not answer, and wait until the replica is it."""

        def promoted() -> bool:
            state = self.sentinel.sentinel_master(SERVICE)
            return state["port"] == self.replica.port and not (state["is_sdown"] or state["is_odown"])

        self._miss_after(DOWN_AFTER_MS)
        await_that(promoted, "the promotion of the replica", 60)
        self._miss_after(NEVER_MS)

    def _miss_after(self, ms: int) -> None:
        self.sentinel.sentinel_set(SERVICE, "down-after-milliseconds", ms)

    def freeze(self) -> None:
        """Stop the primary without ending a connection, as a host that hangs does."""
        os.kill(self._primary_pid, signal.SIGSTOP)
