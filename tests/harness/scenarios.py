"""The scenarios of the laws that are about time: measured by `make bench`; tests/laws holds their counts."""

import contextlib
import json
import subprocess
import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from redis import Redis

from notifier.notification.job import TERMINAL
from notifier.rules.kinds.window import largest_count
from tests.harness.acquirer import GO, POLICY, READY
from tests.harness.fleet import Fleet, broken_rules, notification, sends, start_fleet
from tests.harness.processes import await_that, child, total

SECOND_US: Final = 1_000_000
IDEAL_DRAIN_S: Final = 19.0


@dataclass(frozen=True, slots=True)
class Acquired:
    """Permits of all processes: the most in any window, the smallest gap, and the share of what is ideal."""

    most: int
    smallest_gap_us: int
    share: float


def acquire_together(redis: Redis, url: str, *, processes: int = 16, seconds: float = 10.0) -> Acquired:
    """Let so many processes acquire for one user at 10 per 1 s with a gap of 50 ms."""
    with contextlib.ExitStack() as stack:
        # They outlast the time that counts, which begins with the first permit.
        command = ["-m", "tests.harness.acquirer", url, str(seconds + 1)]
        running = [stack.enter_context(child(command, stdout=subprocess.PIPE)) for _ in range(processes)]
        await_that(lambda: int(redis.get(READY) or 0) == processes, "all processes to be ready")
        redis.rpush(GO, *["go"] * processes)
        said = [process.communicate(timeout=seconds + 60)[0] for process in running]
    moments = sorted(at_us for words in said for at_us in json.loads(words))
    (window,) = POLICY.windows
    counted = sum(at_us < moments[0] + seconds * SECOND_US for at_us in moments)
    return Acquired(
        most=largest_count(moments, window.interval_us),
        smallest_gap_us=min(after - before for before, after in pairwise(moments)),
        share=counted / (window.limit * seconds * SECOND_US / window.interval_us),
    )


@dataclass(frozen=True, slots=True)
class Drained:
    """seconds: from the first call of the producer to the last arrival; order: the numbers as they arrived."""

    seconds: float
    dispatches: float
    order: list[int]
    broken: list[str]


def drain(count: int = 200, workers: int = 4) -> Drained:
    """So many notifications of one user at 10 per 1 s, with answers after 5 ms."""
    with start_fleet({"user": {"windows": ["10/1s"]}}, workers=workers, latency_ms=5) as fleet:
        begun_us = time.time_ns() // 1000
        with fleet.notifier() as notifier:
            notifier.send_many(notification("one", n) for n in range(count))
        fleet.await_ended(count, count / 10 * 2 + 30)
        arrivals = fleet.arrivals()
        return Drained(
            seconds=(arrivals[-1].at_us - begun_us) / SECOND_US,
            dispatches=total(fleet.redis, "dispatched", "looked") / count,
            order=[int(arrival.data["n"]) for arrival in arrivals],
            broken=broken_rules(fleet, sends(arrivals, dict.fromkeys(range(count), ("one", "default")))),
        )


@dataclass(frozen=True, slots=True)
class Bystanders:
    """late_us: from the call of the producer to the wire, of each.

    in_vain: looks meanwhile that let nothing go, within so many seconds.
    """

    late_us: list[int]
    in_vain: int
    seconds: float


def bystanders(count: int = 100, blocked: int = 3_000, every_s: float = 0.03) -> Bystanders:
    """Users with nothing waiting, one after the other, behind one user's backlog."""
    rates = {"user": {"windows": ["10/1s"]}, "categories": {"default": {"lane": "default"}}}
    with start_fleet(rates) as fleet, fleet.notifier() as notifier:
        notifier.send_many(notification("hog", count + n) for n in range(blocked))
        await_that(
            lambda: fleet.redis.zcard("notifier:backlog:{hog}:default") > blocked * 0.9, "the backlog to line up"
        )
        called_us = {}
        begun = time.monotonic()
        in_vain = total(fleet.redis, "looked")
        for n in range(count):
            called_us[n] = time.time_ns() // 1000
            notifier.send(notification(f"bystander-{n}", n))
            time.sleep(every_s)
        await_that(lambda: len(_arrived(fleet, count)) == count, "the bystanders")
        in_vain = total(fleet.redis, "looked") - in_vain
        seconds = time.monotonic() - begun
        return Bystanders([at_us - called_us[n] for n, at_us in _arrived(fleet, count).items()], in_vain, seconds)


def _arrived(fleet: Fleet, count: int) -> dict[int, int]:
    numbers = ((int(arrival.data["n"]), arrival.at_us) for arrival in fleet.arrivals())
    return {n: at_us for n, at_us in numbers if n < count}


@dataclass(frozen=True, slots=True)
class Punctual:
    """lateness_us: from each wake-up as Redis held it to the wire; broken: the rules broken there.

    dispatches: for each message, what was let go and looked at in vain.
    """

    lateness_us: list[int]
    broken: list[str]
    dispatches: float


def wake_ups(users: int = 40, waves: int = 3, workers: int = 4) -> Punctual:
    """Idle workers and users with one wake-up each, 50 ms apart, that open in several waves."""
    gap_s, apart_s = users * 0.05 + 1.0, 0.05
    with start_fleet({"user": {"gap": f"{int(gap_s * 1000)}ms"}}, workers=workers) as fleet:
        with fleet.notifier() as notifier:
            for user in range(users):
                notifier.send_many(notification(f"u{user}", user * (waves + 1) + n) for n in range(waves + 1))
                time.sleep(apart_s)
        held: dict[str, set[int]] = defaultdict(set)  # when the wake-ups of each user open, as Redis had it

        def ended() -> bool:
            scores: Any = fleet.redis.zrange("notifier:wakeups:default", 0, -1, withscores=True)
            for user, at in scores:
                held[user.decode()].add(int(at))
            return fleet.total(*TERMINAL) >= users * (waves + 1)

        await_that(ended, "all to end", 120)
        who = {n: (f"u{n // (waves + 1)}", "default") for n in range(users * (waves + 1))}
        arrived = sends(fleet.arrivals(), who)
        before: dict[str, int] = {}
        late = []
        for send in arrived:
            if send.user in before:  # while one is on its way, the next waits for longer than its wake-up
                late.append(send.first_us - min(at for at in held[send.user] if at > before[send.user]))
            before[send.user] = send.first_us
        dispatches = total(fleet.redis, "dispatched", "looked") / len(arrived)
        return Punctual(late, broken_rules(fleet, arrived), dispatches)
