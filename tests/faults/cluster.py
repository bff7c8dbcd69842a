"""A Redis Cluster: three primaries and three replicas on the loopback, and what people and faults do to it."""

import contextlib
import os
import signal
from collections.abc import Iterator, Sequence
from typing import Any, Final, Self

from redis import Redis
from redis.exceptions import RedisError, ResponseError

from tests.harness.mortal_redis import MortalRedis
from tests.harness.processes import await_that, stop

PRIMARIES: Final = 3
SLOTS: Final = 16_384
NODE_TIMEOUT_MS: Final = 2_000
AT_ONCE: Final = 100  # keys of a slot in one MIGRATE
PATIENCE_S: Final = 60  # a pause of a node is no error
UNASKED: Final = "cluster-replica-no-failover"
OPTIONS: Final = (
    *("--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"),
    *("--cluster-node-timeout", str(NODE_TIMEOUT_MS), "--cluster-require-full-coverage", "no"),
    # However long ago a replica lost its primary, it may take over.
    *("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1", "--cluster-replica-validity-factor", "0"),
)


class Node(MortalRedis):
    """One server of a cluster; `name` is its own among them. Its bus has the port 10,000 above its own.

    unasked: whether it takes over from a primary that does not answer.
    """

    def __init__(self, *, unasked: bool = False) -> None:
        super().__init__(extra_args=(*OPTIONS, f"--{UNASKED}", "no" if unasked else "yes"))
        self.name = ""

    @contextlib.contextmanager
    def client(self) -> Iterator[Any]:
        """A client of this node alone."""
        with contextlib.closing(Redis(port=self.port, socket_timeout=PATIENCE_S)) as client:
            yield client

    def ask(self, *command: object) -> Any:
        """What this node answers."""
        with self.client() as client:
            return client.execute_command(*command)


class RedisCluster:
    """`url` leads to it. The slots are spread evenly; each primary has a replica.

    unasked: whether a replica takes over by itself. Else it waits for `await_takeover`: a primary that a busy machine
    lets stand still for longer than the timeout keeps its slots, and a dead one is missed for as long as a test looks.
    """

    def __init__(self, primaries: int = PRIMARIES, *, unasked: bool = False) -> None:
        self.primaries, self.unasked = primaries, unasked
        self.frozen: Node | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.nodes = [stack.enter_context(Node(unasked=self.unasked)) for _ in range(2 * self.primaries)]
            self._join()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def url(self) -> str:
        """The URL, by two of the nodes."""
        return f"redis+cluster://127.0.0.1:{self.nodes[0].port},127.0.0.1:{self.nodes[1].port}"

    def _join(self) -> None:
        count = self.primaries
        primaries, replicas = self.nodes[:count], self.nodes[count:]
        for n, node in enumerate(self.nodes):
            node.name = node.ask("CLUSTER", "MYID").decode()
            node.ask("CLUSTER", "SET-CONFIG-EPOCH", n + 1)
        for n, node in enumerate(primaries):
            node.ask("CLUSTER", "ADDSLOTS", *range(n * SLOTS // count, (n + 1) * SLOTS // count))
        for node in self.nodes[1:]:
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port)
        await_that(lambda: all(len(self.known_by(node)) == len(self.nodes) for node in self.nodes), "all to meet")
        for primary, replica in zip(primaries, replicas, strict=True):
            replica.ask("CLUSTER", "REPLICATE", primary.name)
        await_that(lambda: all(self.is_well(node) for node in self.nodes), "a cluster that is well", 30)

    @contextlib.contextmanager
    def one_more(self) -> Iterator[Node]:
        """A primary more, that has no slots yet; in the end it has none again, and leaves."""
        with Node() as node:
            node.name = node.ask("CLUSTER", "MYID").decode()
            self.nodes[0].ask("CLUSTER", "MEET", "127.0.0.1", node.port)
            self.nodes.append(node)
            count = len(self.nodes)
            await_that(lambda: all(len(self.known_by(each)) == count for each in self.nodes), "all to meet")
            await_that(lambda: self.is_well(node), "the new one to know the slots", 30)
            yield node
            self.nodes.remove(node)
            for each in self.nodes:
                each.ask("CLUSTER", "FORGET", node.name)

    @staticmethod
    def known_by(node: Node) -> list[bytes]:
        """The nodes that this one knows."""
        lines: list[bytes] = node.ask("CLUSTER", "NODES").splitlines()
        return [line for line in lines if b"handshake" not in line]

    @staticmethod
    def is_well(node: Node) -> bool:
        """Whether this node says that the cluster is well, and is in step with its primary."""
        with node.client() as client:
            replication = client.info("replication")
            state = client.execute_command("CLUSTER", "INFO")
        lacks = replication["role"] == "slave" and replication["master_link_status"] != "up"
        return b"cluster_state:ok" in state and b"cluster_slots_ok:16384" in state and not lacks

    def alive(self) -> list[Node]:
        """The nodes that answer."""
        found = []
        for node in self.nodes:
            with contextlib.suppress(RedisError):
                if node is not self.frozen:
                    node.ask("PING")
                    found.append(node)
        return found

    def owner(self, slot: int) -> Node:
        """The primary that has a slot, as most of the others see it."""
        seen = [port for node in self.alive() if (port := self._owner_seen_by(node, slot))]
        port = max(set(seen), key=seen.count)
        return next(node for node in self.nodes if node.port == port)

    @staticmethod
    def _owner_seen_by(node: Node, slot: int) -> int:
        for first, last, primary, *_ in node.ask("CLUSTER", "SLOTS"):
            if first <= slot <= last:
                return int(primary[1])
        return 0

    def others(self, slot: int) -> Sequence[Node]:
        """The primaries that do not have a slot."""
        owners = {self.owner(n * SLOTS // PRIMARIES + 7).port for n in range(PRIMARIES)} - {self.owner(slot).port}
        return [node for node in self.nodes if node.port in owners]

    def begin_move(self, slot: int, target: Node) -> Node:
        """Open a slot for its move to another primary; no key has gone yet. Returns the one that has it."""
        source = self.owner(slot)
        target.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", source.name)
        source.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", target.name)
        return source

    def move_keys(self, slot: int, source: Node, target: Node, most: int | None = None) -> int:
        """Move keys of an open slot, all or so many; returns how many went."""
        moved = 0
        while most is None or moved < most:
            count = AT_ONCE if most is None else min(AT_ONCE, most - moved)
            if not (found := source.ask("CLUSTER", "GETKEYSINSLOT", slot, count)):
                break
            source.ask("MIGRATE", "127.0.0.1", target.port, "", 0, PATIENCE_S * 1_000, "KEYS", *found)
            moved += len(found)
        return moved

    def end_move(self, slot: int, source: Node, target: Node) -> None:
        """Give an open slot, all of whose keys have gone, to its new primary."""
        for node in (target, source, *self.alive()):
            with contextlib.suppress(RedisError):  # a replica may not be told
                node.ask("CLUSTER", "SETSLOT", slot, "NODE", target.name)
        await_that(lambda: self.owner(slot) is target, "the slot to have moved")

    def move(self, slot: int, target: Node) -> None:
        """Move a slot as `redis-cli --cluster reshard` does."""
        source = self.begin_move(slot, target)
        while self.move_keys(slot, source, target):
            pass
        self.end_move(slot, source, target)

    def replica_of(self, primary: Node) -> Node:
        """The replica of a primary."""
        for node in self.alive():
            with node.client() as client:
                if client.info("replication").get("master_port") == primary.port:
                    return node
        raise AssertionError("it has no replica")

    def fail_over(self, slot: int) -> None:
        """Let the replica take over from the primary of a slot, in order."""
        before = self.owner(slot)
        replica = self.replica_of(before)
        while self.owner(slot) is not replica:  # the others agree to one in twice their timeout
            try:
                replica.ask("CLUSTER", "FAILOVER")
            except ResponseError as error:
                if "CLUSTER FAILOVER to a replica" not in str(error):  # it has taken over; others do not know it
                    raise
            with contextlib.suppress(TimeoutError):
                await_that(lambda: self.owner(slot) is replica, "the failover", NODE_TIMEOUT_MS / 1_000)

    def kill_owner(self, slot: int) -> Node:
        """Kill the primary of a slot; returns it."""
        before = self.owner(slot)
        before.kill()
        return before

    @contextlib.contextmanager
    def frozen_owner(self, slot: int, *, takeover: bool = True) -> Iterator[None]:
        """The primary of a slot takes calls and answers none. takeover: its replica has taken over."""
        self.frozen = self.owner(slot)
        stop(self.frozen.pid)
        try:
            if takeover:
                self.await_takeover(slot, self.frozen)
            yield
        finally:
            os.kill(self.frozen.pid, signal.SIGCONT)
            self.frozen = None
            await_that(lambda: all(self.is_well(node) for node in self.nodes), "a replica again", 60)

    def await_takeover(self, slot: int, before: Node) -> None:
        """Let the cluster find out by itself that one is dead, and wait until another has the slot."""
        for node in self.alive():
            node.ask("CONFIG", "SET", UNASKED, "no")
        await_that(lambda: self.owner(slot) is not before, "the takeover", 60)
        for node in self.alive() if not self.unasked else ():
            node.ask("CONFIG", "SET", UNASKED, "yes")
