"""A redis-server whose clock can be set while it runs: `with SteppedRedis() as server: server.step(-5)`.

A small library, compiled here and preloaded into the server, adds what stands in a shared file to every look at the
time of day. The monotonic clock stays, as it does when somebody sets a machine's clock.
"""

import os
import shutil
import stat
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Final, Self

from notifier.testing.embedded import EmbeddedRedis, find_redis_server

SOURCE: Final = r"""
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile long long *off_us;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("STEPPED_CLOCK");
  int file = path ? open(path, O_RDONLY) : -1;
  if (file >= 0) off_us = mmap(NULL, sizeof *off_us, PROT_READ, MAP_SHARED, file, 0);
}

int clock_gettime(clockid_t which, struct timespec *at) {
  int failed = syscall(SYS_clock_gettime, which, at);
  if (failed || which != CLOCK_REALTIME || !off_us) return failed;
  long long us = at->tv_sec * 1000000LL + at->tv_nsec / 1000 + *off_us;
  at->tv_sec = us / 1000000;
  at->tv_nsec = us % 1000000 * 1000;
  return 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
  at->tv_sec = now.tv_sec;
  at->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}
"""


def compiler() -> str | None:
    """A C compiler, if there is one; without it, or elsewhere than on Linux, no clock can be stepped."""
    return shutil.which("cc") if os.uname().sysname == "Linux" else None


class SteppedRedis:
    """`url` and `pid` as of the server."""

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="notifier-clock-")
        folder = Path(self._folder.name)
        self._file = folder / "off_us"
        self._file.write_bytes(struct.pack("q", 0))
        source, library, wrapper = folder / "clock.c", folder / "clock.so", folder / "redis-server"
        source.write_text(SOURCE, encoding="utf-8")
        subprocess.run([compiler() or "cc", "-O2", "-shared", "-fPIC", "-o", library, source], check=True)
        server, _ = find_redis_server()
        wrapper.write_text(f'#!/bin/sh\nSTEPPED_CLOCK={self._file} LD_PRELOAD={library} exec {server} "$@"\n')
        wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
        before = os.environ.get("NOTIFIER_REDIS_SERVER")
        os.environ["NOTIFIER_REDIS_SERVER"] = str(wrapper)
        try:
            self._server = EmbeddedRedis().__enter__()
        finally:
            del os.environ["NOTIFIER_REDIS_SERVER"]
            if before is not None:
                os.environ["NOTIFIER_REDIS_SERVER"] = before
        self.url, self.pid = self._server.url, self._server.pid
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()
        self._folder.cleanup()

    def step(self, seconds: float) -> None:
        """Put the clock so far off the true time, at once."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("q", int(seconds * 1_000_000)))
