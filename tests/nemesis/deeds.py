"""What the nemesis does: each deed strikes at once, and is undone after a while."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

from redis.exceptions import RedisError
from rq.suspension import resume, suspend

from notifier.store.cluster import owner_of
from tests.faults.cluster import RedisCluster
from tests.nemesis.history import History, Trouble, wall_us
from tests.nemesis.machines import NAMES, Machine, Machines, Told

POLL_S: Final = 0.03
LOOKS_US: Final = 1_000_000  # a file that is the same at two looks of a worker is taken for whole
FAULTS: Final = {
    "apns": ("throttled_seconds", "unavailable", "cut", "slow", "silent", "internal", "reset_stream", "go_away"),
    "fcm": ("throttled", "unavailable", "cut", "slow", "silent", "internal", "bad_gateway"),
}


@dataclass
class Begun:
    """A deed that lasts: how long, and how it is undone. Where that takes time, it begins what lasts in turn."""

    seconds: float
    undo: Callable[[], Begun | None]


class Deeds:
    """All deeds by name; each returns what it began, or None where it is over at once or cannot be done now.

    The chances are drawn in a fixed order, so that a seed repeats the plan of a run, though not its times.
    """

    def __init__(self, machines: Machines, history: History, chance: random.Random) -> None:
        self._machines, self._history, self._chance = machines, history, chance
        self._struck: set[str] = set()  # what is stopped, killed or told to misbehave, and not yet right again

    # Workers.

    def kill_worker(self) -> Begun | None:
        """SIGKILL; after a while another with the same lanes takes its place."""
        return self._end_worker(signal.SIGKILL)

    def end_worker(self) -> Begun | None:
        """SIGTERM, as at a deployment."""
        return self._end_worker(signal.SIGTERM)

    def _end_worker(self, number: signal.Signals) -> Begun | None:
        seconds = self._chance.uniform(0, 2)
        worker = self._worker()
        if worker is None:
            return None
        worker.signal(number)
        if number == signal.SIGKILL:
            worker.reap(10)
        trouble = self._history.begin("end of a worker", worker.name, f"{number.name} {worker.name}")
        index = self._machines.place_of(worker)

        def replace() -> Begun | None:
            if "redis" in self._struck:  # a worker that starts while Redis is down ends
                return Begun(POLL_S, replace)
            self._machines.start_worker(index)
            self._history.end(trouble, f"{worker.name} is replaced")
            return None

        return Begun(seconds, replace)

    def stop_worker(self) -> Begun | None:
        """SIGSTOP, for less or more than a lease; then SIGCONT."""
        seconds = self._chance.choice((0.3, 1.5, 4, 7))
        worker = self._worker()
        if worker is None:
            return None
        return self._stop(worker.process.pid, worker.name, "stopped worker", seconds)

    # Redis.

    def stop_redis(self) -> Begun | None:
        """SIGSTOP of Redis."""
        seconds = self._chance.choice((0.3, 1.5, 4))
        if "redis" in self._struck:
            return None
        return self._stop(self._machines.server.pid, "redis", "stopped redis", seconds)

    def kill_redis(self) -> Begun | None:
        """SIGKILL of Redis; it comes back with what had reached its disk, which is all."""
        seconds = self._chance.uniform(0, 2)
        if "redis" in self._struck:
            return None
        self._struck.add("redis")
        trouble = self._history.begin("redis gone", "redis", "SIGKILL redis")  # before: callers see it at once
        self._machines.server.kill()

        def start() -> None:
            self._machines.server.restart()
            self._struck.discard("redis")
            self._history.end(trouble, "redis is back")

        return Begun(seconds, start)

    # The nodes of a cluster.

    def kill_primary(self) -> Begun | None:
        """SIGKILL of the primary of the slot; it comes back, as a replica, when its replica has taken over."""
        cluster = self._cluster()
        if cluster is None:
            return None
        self._struck.add("redis")
        slot = self._chance.choice(self._slots())
        killed = cluster.kill_owner(slot)
        trouble = self._history.begin("redis gone", "redis", "SIGKILL of the primary")

        def start() -> Begun | None:
            if cluster.owner(slot) is killed:
                return Begun(POLL_S, start)
            killed.restart()
            self._struck.discard("redis")
            self._history.end(trouble, "the primary is back, as a replica")
            return None

        return Begun(1.0, start)

    def fail_over(self) -> None:
        """Let the replica take over."""
        self._to_cluster("failover", RedisCluster.fail_over)

    def move_slot(self) -> None:
        """Move a slot to another primary, as `redis-cli --cluster reshard` does."""
        self._to_cluster("slot moves", lambda cluster, slot: cluster.move(slot, cluster.others(slot)[0]))

    def stop_node(self) -> Begun | None:
        """SIGSTOP of a node without a slot of ours: for less than the others bear, or until they take it for dead."""
        seconds = self._chance.choice((0.5, 1.5, 4))
        cluster = self._cluster()
        if cluster is None:
            return None
        owners = [cluster.owner(slot) for slot in self._slots()]
        node = self._chance.choice([node for node in cluster.nodes if node not in owners])
        return self._stop(node.pid, "node", "stopped redis", seconds)

    def _cluster(self) -> RedisCluster | None:
        """The cluster, where all of its nodes are well."""
        cluster = self._machines.cluster
        if cluster is None or {"redis", "node"} & self._struck:
            return None
        try:
            return cluster if all(cluster.is_well(node) for node in cluster.nodes) else None
        except RedisError:
            return None

    def _slots(self) -> list[int]:
        with self._machines.clients() as partitions:
            owners = [owner_of(at.client) for at in partitions]
        return [owner.slot for owner in owners if owner]

    def _to_cluster(self, what: str, do: Callable[[RedisCluster, int], object]) -> None:
        if (cluster := self._cluster()) is not None:
            slot = self._chance.choice(self._slots())
            trouble = self._history.begin("redis gone", "redis", f"{what}: slot {slot}")
            do(cluster, slot)
            self._history.end(trouble, f"{what}: done")

    def cut_redis(self) -> Begun | None:
        """Cut all connections to Redis."""
        return self._once("cut redis", lambda redis: redis.execute_command("CLIENT", "KILL", "TYPE", "normal"))

    def flush_scripts(self) -> Begun | None:
        """Let Redis forget its scripts, as after a failover."""
        return self._once("script flush", lambda redis: redis.script_flush())

    def suspend(self) -> Begun | None:
        """`rq suspend`, and `rq resume`."""
        seconds = self._chance.uniform(0.5, 4)
        if {"rq", "redis"} & self._struck or not self._ask(suspend, of_rq=True):
            return None
        self._struck.add("rq")
        trouble = self._history.begin("suspended", "rq", "rq suspend")

        def go_on() -> Begun | None:
            if "redis" in self._struck or not self._ask(resume, of_rq=True):
                return Begun(POLL_S, go_on)
            self._struck.discard("rq")
            self._history.end(trouble, "rq resume")
            return None

        return Begun(seconds, go_on)

    # Providers.

    def stop_provider(self) -> Begun | None:
        """SIGSTOP of a simulator: what was sent to it stands in its buffers until SIGCONT."""
        platform, seconds = self._platform(), self._chance.choice((0.3, 2, 8))
        if platform in self._struck:
            return None
        return self._stop(self._machines.providers[platform].process.pid, platform, "stopped provider", seconds)

    def kill_provider(self) -> Begun | None:
        """SIGKILL of a simulator; after a while it is back, at the same port, and has forgotten all access tokens."""
        platform, seconds = self._platform(), self._chance.uniform(0, 3)
        if platform in self._struck:
            return None
        self._struck.add(platform)
        self._machines.providers[platform].signal(signal.SIGKILL)
        self._machines.providers[platform].reap(10)
        trouble = self._history.begin("provider gone", platform, f"SIGKILL {platform}")

        def start() -> Begun:
            self._machines.start_provider(platform)
            return Begun(POLL_S, look)

        def look() -> Begun | None:
            if not self._machines.tell(platform, {}):
                return Begun(POLL_S, look)
            self._struck.discard(platform)
            self._history.end(trouble, f"{platform} is back")
            return None

        return Begun(seconds, start)

    def cut_provider(self) -> Begun | None:
        """Cut all connections to a provider."""
        return self._tell_once({"cut": True}, "cut")

    def go_away(self) -> Begun | None:
        """GOAWAY of APNs: all that is open is finished, or half of it, or none."""
        keep = self._chance.choice((1, 0.5, 0))
        if "apns" in self._struck or not self._machines.tell("apns", {"go_away": {"keep": keep}}):
            return None
        self._over("go away", "apns", f"GOAWAY of apns, which finishes {keep:.0%}")
        return None

    def forget_tokens(self) -> Begun | None:
        """FCM takes all access tokens for expired. Apple takes no new one within twenty minutes, which is too long."""
        if "fcm" not in self._struck and self._machines.tell("fcm", {"expire_tokens": True}):
            self._over("forgotten tokens", "fcm", "fcm takes all access tokens for expired")
        return None

    def refuse(self) -> Begun | None:
        """A provider accepts no connection."""
        return self._misbehave({"listening": False}, {"listening": True}, "refused", (0.5, 3))

    def slow(self) -> Begun | None:
        """Answers take longer, some longer than the timeout of 1 s."""
        latency_ms = self._chance.choice((50, 300, 900, 1_500))
        return self._misbehave({"latency_ms": latency_ms}, {"latency_ms": 0}, f"{latency_ms} ms late", (1, 5))

    def few_streams(self) -> Begun | None:
        """Apple admits few streams at once, and says GOAWAY while all of them are in use."""
        streams, seconds = self._chance.randint(4, 20), self._chance.uniform(1, 4)
        if "apns" in self._struck or not self._machines.tell("apns", {"max_streams": streams, "latency_ms": 100}):
            return None
        self._struck.add("apns")
        trouble = self._history.begin("few streams", "apns", f"apns: {streams} streams")

        def go_away() -> Begun:
            self._machines.tell("apns", {"go_away": {"keep": 0.5}})
            self._history.add(f"apns: GOAWAY to {streams} streams")
            return Begun(0.5, right)

        def right() -> None:
            self._machines.tell("apns", {"max_streams": 1000, "latency_ms": 0})
            self._struck.discard("apns")
            self._history.end(trouble, "apns is right again")

        return Begun(seconds, go_away)

    def fail(self) -> Begun | None:
        """A share of the messages meets a fault: 429, 503, a cut, silence …"""
        platform = self._platform()
        fault, share = self._chance.choice(FAULTS[platform]), self._chance.choice((0.1, 0.4, 1))
        told = {"fail": {fault: share}}
        return self._misbehave(told, {"fail": {}}, f"{fault} for {share:.0%}", (0.5, 4), platform)

    # Rates.

    def change_file(self) -> Begun | None:
        """Another configuration in the file."""
        name = self._chance.choice(NAMES)
        self._machines.write_rates(name)
        self._over("rates", "file", f"the file says {name!r}")
        return None

    def half_written_file(self) -> Begun | None:
        """An editor that writes in place, and is seen half way."""
        name, part = self._chance.choice(NAMES), self._chance.uniform(0.02, 0.98)
        if "file" in self._struck:
            return None
        self._struck.add("file")
        said = self._machines.begin_to_write(name, part)
        trouble = self._history.begin("half a file", "file", f"{part:.0%} of {name!r} is written")

        def finish() -> None:
            if said is not None and wall_us() - trouble.since_us >= LOOKS_US:  # this machine was slow to write the rest
                self._machines.told.append(Told(f"{part:.0%} of {name}", "file", said, trouble.since_us))
            self._machines.write_rates(name)
            self._struck.discard("file")
            self._history.end(trouble, f"the file says {name!r}")

        return Begun(self._chance.uniform(0.05, 0.8), finish)

    def apply(self) -> Begun | None:
        """`notifier config apply`."""
        name = self._chance.choice(NAMES)
        if {"redis", "apply"} & self._struck:
            return None
        return self._command(f"config apply of {name!r}", self._machines.apply_rates(name))

    def withdraw(self) -> Begun | None:
        """`notifier config withdraw`."""
        if {"redis", "apply", "file"} & self._struck:
            return None
        return self._command("config withdraw", self._machines.withdraw_rates())

    def _command(self, what: str, command: subprocess.Popen[str]) -> Begun:
        self._struck.add("apply")
        self._history.add(f"{what} …")

        def look() -> Begun | None:
            if command.poll() is None:
                return Begun(POLL_S, look)
            _, problem = command.communicate()
            self._struck.discard("apply")
            self._over("rates", "redis", f"{what} {'failed: ' + problem.strip() if problem else 'is done'}")
            return None

        return Begun(POLL_S, look)

    # What they share.

    def _worker(self) -> Machine | None:
        free = [worker for worker in self._machines.running if worker.name not in self._struck and not worker.ended_by]
        draw = self._chance.random()
        return free[int(draw * len(free))] if free else None

    def _platform(self) -> str:
        return self._chance.choice(("apns", "fcm"))

    def _stop(self, pid: int, name: str, kind: str, seconds: float) -> Begun:
        self._struck.add(name)
        trouble = self._history.begin(kind, name, f"SIGSTOP {name} for {seconds:g} s")
        os.kill(pid, signal.SIGSTOP)

        def go_on() -> None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
            self._struck.discard(name)
            self._history.end(trouble, f"SIGCONT {name}")

        return Begun(seconds, go_on)

    def _ask(self, call: Callable[[Any], Any], *, of_rq: bool = False) -> bool:
        """Ask each partition; that of the programs that have nothing but RQ alone, if it is of RQ."""
        try:
            for at in self._machines.each(socket_timeout=2):
                if at.number == 0 or not of_rq:
                    call(at.client)
        except RedisError:
            return False
        return True

    def _once(self, what: str, call: Callable[[Any], Any]) -> None:
        since_us = wall_us()
        if "redis" not in self._struck and self._ask(call):
            self._over(what, "redis", what)
            self._history.troubles[-1].since_us = since_us

    def _over(self, kind: str, target: str, text: str) -> None:
        trouble = Trouble(kind, target, self._history.add(text))
        trouble.until_us = trouble.since_us
        self._history.troubles.append(trouble)

    def _tell_once(self, document: dict[str, Any], what: str) -> None:
        platform = self._platform()
        if platform not in self._struck and self._machines.tell(platform, document):
            self._over(what, platform, f"{what} {platform}")

    def _misbehave(
        self,
        begin: dict[str, Any],
        end: dict[str, Any],
        what: str,
        seconds: tuple[float, float],
        platform: str | None = None,
    ) -> Begun | None:
        lasts = self._chance.uniform(*seconds)
        where = platform or self._platform()
        if where in self._struck or not self._machines.tell(where, begin):
            return None
        self._struck.add(where)
        trouble = self._history.begin(what, where, f"{where}: {what}")

        def right() -> None:
            self._machines.tell(where, end)
            self._struck.discard(where)
            self._history.end(trouble, f"{where} is right again")

        return Begun(lasts, right)


WEIGHTS: Final = {
    "kill_worker": 6,
    "end_worker": 2,
    "stop_worker": 6,
    "stop_redis": 3,
    "kill_redis": 3,
    "cut_redis": 3,
    "kill_primary": 2,
    "fail_over": 3,
    "move_slot": 6,
    "stop_node": 3,
    "flush_scripts": 1,
    "suspend": 2,
    "stop_provider": 4,
    "kill_provider": 3,
    "cut_provider": 4,
    "go_away": 5,
    "forget_tokens": 1,
    "refuse": 3,
    "slow": 4,
    "few_streams": 5,
    "fail": 10,
    "change_file": 4,
    "half_written_file": 2,
    "apply": 1,
    "withdraw": 1,
}


OF_ONE: Final = ("stop_redis", "kill_redis")  # deeds on a Redis that is alone
OF_CLUSTER: Final = ("kill_primary", "fail_over", "move_slot", "stop_node")


def plan(chance: random.Random, leave_out: Collection[str]) -> Iterator[str]:
    """Which deed comes next, for ever."""
    names = [name for name in WEIGHTS if name not in leave_out]
    while True:
        yield chance.choices(names, [WEIGHTS[name] for name in names])[0]
