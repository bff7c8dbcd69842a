"""What a message costs each Redis when there are several: the same, or capacity would not grow with their number.

Redis's own CPU for accepting and for sending, on one Redis, on one shard and on four, as many messages on each.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from typing import Any, Final

from redis import Redis

from benchmarks.engine import QUEUE, STAGED, notifications
from benchmarks.harness import Figure, at_most, median
from benchmarks.null_worker import RATES
from notifier import Notifier
from notifier.settings import parse_settings
from notifier.testing.embedded import EmbeddedRedis
from tests.processes import await_that, await_workers, child, total

MAX_SHARDS: Final = 4
FLAT: Final = 1.2


def measure(*, quick: bool) -> list[Figure]:
    """µs of Redis's CPU for a message, on the shard that paid most; medians, the three taken in turns."""
    rounds, count = (1, 2_000) if quick else (3, 10_000)
    kinds = ("one Redis", "1 shard", f"{MAX_SHARDS} shards")
    found: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(EmbeddedRedis()) for _ in range(MAX_SHARDS)]
        for _ in range(rounds):
            for kind, some, sharded in zip(kinds, (1, 1, MAX_SHARDS), (False, True, True), strict=True):
                found[kind].append(cpu_of(servers[:some], count, sharded=sharded))
    figures = []
    for n, doing in enumerate(("accepting", "sending")):
        each = {kind: median([pair[n] for pair in pairs]) for kind, pairs in found.items()}
        figures += [Figure(f"Redis CPU a message, {doing}, {kind}", us, "us") for kind, us in each.items()]
        ratio = each[kinds[2]] / each[kinds[1]]
        figures.append(Figure(f"{doing}, {kinds[2]} to 1", ratio, "x", at_most(FLAT), "of the dearest shard"))
    return figures


def cpu_of(servers: Sequence[EmbeddedRedis], count: int, *, sharded: bool) -> tuple[float, float]:
    """Redis's µs a message for accepting and for sending, of the server with the most; `count` messages for each."""
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(contextlib.closing(Redis.from_url(server.url))) for server in servers]
        for client in clients:
            client.flushall()
        before = [cpu_us(client) for client in clients]
        with _producer(servers, clients[0], sharded=sharded) as producer:
            producer.send_many(notifications(count * len(servers)))
        shares = [int(client.llen(QUEUE)) for client in clients]
        accepting = [(cpu_us(c) - at) / share for c, at, share in zip(clients, before, shares, strict=True)]
        for client in clients:
            client.rename(QUEUE, STAGED)
        for server in servers:
            stack.enter_context(child(["-m", "benchmarks.null_worker", "push", server.url]))
        for client in clients:
            await_workers(client, 1)
            await_that(lambda client=client: any(client.scan_iter("notifier:leader:*")), "an idle leader")  # type: ignore[misc]
        before = [cpu_us(client) for client in clients]
        for client in clients:
            client.rename(STAGED, QUEUE)
        after: dict[int, float] = {}

        def all_delivered() -> bool:
            for n, client in enumerate(clients):
                if n not in after and total(client, "delivered") >= shares[n]:
                    after[n] = cpu_us(client)
            return len(after) == len(clients)

        await_that(all_delivered, "all to be delivered", 300, 0.05)
        sending = [(after[n] - before[n]) / share for n, share in enumerate(shares)]
    return max(accepting), max(sending)


def cpu_us(redis: Any) -> float:
    """The µs of CPU that a Redis has used so far."""
    used = redis.info("cpu")
    return float(used["used_cpu_user"] + used["used_cpu_sys"]) * 1_000_000


def _producer(servers: Sequence[EmbeddedRedis], redis: Redis, *, sharded: bool) -> Notifier:
    if not sharded:
        return Notifier(redis, parse_settings(RATES))
    shards = [{"name": f"shard-{n}", "url": server.url} for n, server in enumerate(servers)]
    settings = parse_settings(RATES + f"redis: {json.dumps({'shards': shards})}\n")
    return Notifier.of(settings)
