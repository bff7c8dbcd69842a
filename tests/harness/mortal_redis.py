"""A Redis that tests kill, and start again at the same place."""

from collections.abc import Sequence
from pathlib import Path

from redis import Redis

from notifier.testing.child import end
from notifier.testing.embedded import STOP_SECONDS, EmbeddedRedis


class MortalRedis(EmbeddedRedis):
    """appendonly: every write is on disk before it is answered."""

    def __init__(self, folder: Path | None = None, extra_args: Sequence[str] = (), *, appendonly: bool = False) -> None:
        self._appendonly = appendonly
        durable = ("--appendonly", "yes", "--appendfsync", "always") if appendonly else ()
        super().__init__(folder, (*durable, *extra_args))

    def restart(self) -> None:
        """End the server in order and start it at the same place with the same data.

        After `kill()` it starts with what had reached the disk: everything with `appendonly`, else what the last
        `restart()` had saved.
        """
        assert self._process is not None
        if self._process.poll() is None:
            if not self._appendonly:
                with Redis.from_url(self.url) as redis:
                    redis.save()
            end(self._process, STOP_SECONDS)
        assert self._start(), f"{self.url} was taken by another process during the restart"

    def kill(self) -> None:
        """Kill the server with SIGKILL, as a power cut would; `restart()` brings it back."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()
