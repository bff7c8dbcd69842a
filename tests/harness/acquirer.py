"""One of several processes that ask the limiter for the same user: `python -m tests.harness.acquirer <url> <seconds>`.

Prints the moments of its permits, in µs on Redis's clock, as a JSON array.
"""

import contextlib
import json
import sys
import time

from redis import Redis

from notifier.limiter import Hold, Permit
from notifier.rules.kinds.window import Window
from notifier.rules.policy import Policy
from tests.harness.asking import InRedis

POLICY = Policy((Window(10, interval_us=1_000_000),), gap_us=50_000)
USER = "one"
READY, GO = "tests:ready", "tests:go"


def main(url: str, seconds: float) -> None:
    """Acquire, or wait for exactly the time left, for so many seconds from the starting shot."""
    moments = []
    with contextlib.closing(Redis.from_url(url, protocol=2)) as redis:
        limiter = InRedis(redis)
        limiter.peek(USER, POLICY)
        redis.incr(READY)
        redis.blpop([GO], timeout=60)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            match limiter.acquire(USER, POLICY):
                case Permit(at_us=at_us):
                    moments.append(at_us)
                case Hold(time_left_us=left_us):
                    time.sleep(left_us / 1_000_000)
    print(json.dumps(moments))  # noqa: T201 - a command


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
