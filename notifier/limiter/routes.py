"""What is held: how a worker tells what it has seen of a route, and how people read what is held now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Literal, Self, cast

from redis import Redis

from notifier.limiter.scripts import Call, script

Seen = Literal["down", "up", "retry"]
Kind = Literal["unreachable", "fault", "failing"]
Change = Literal["opened", "closed", "alone", ""]
FULL = "|full"


def circuit(
    worker: str,
    route: str,
    seen: Seen,
    *,
    kind: Kind = "unreachable",
    reason: str = "",
    first_us: int = 0,
    most_us: int = 0,
    share: float = 1.0,
    clock: str = "",
) -> Call[Change]:
    """Tell what a worker has seen of a route; the reply tells what that changed, see *circuit*.

    With 'down': why, and after how long to probe, from first_us, by halves, to most_us; share: of these to wait.
    """
    args: list[str | bytes | int] = [clock, worker, route, seen]
    if seen == "down":
        args += [kind, reason, first_us, most_us, round(share * 1000)]
    return Call(script("circuit"), [], args, lambda reply: cast("Change", str(reply, "utf-8")))


@dataclass(frozen=True, slots=True)
class Held:
    """A route by which nothing goes now.

    state: 'open', its circuit is open; 'closing', it is up again, and those who waited are let go; 'full', its project
    has no room for more. kind and reason: of a circuit, why; 'fault' is ours to mend. since: when it opened. next_at:
    when the next is let go, a probe or what there is room for. waiting: how many users and rests of notifications are
    parked; who comes behind them in a line is not counted. shard: which it is held on, where there are several.
    """

    route: str
    state: Literal["open", "closing", "full"]
    next_at: datetime
    waiting: int
    kind: Kind | None = None
    reason: str = ""
    since: datetime | None = None
    shard: str | None = None

    def seen_on(self, shard: str) -> Self:
        """The same, of a shard."""
        return replace(self, shard=shard)


def read_routes(redis: Redis) -> list[Held]:
    """All that is held now, in the order of the routes; empty when all is well."""
    names: Any = redis.smembers("notifier:routes")
    ordered = sorted(str(name, "utf-8") for name in names)
    with redis.pipeline(transaction=False) as pipe:
        for name in ordered:
            pipe.hgetall(f"notifier:route:{name}")
            pipe.zcard(f"notifier:parked:{name}")
        found = pipe.execute()
    return [_held(name, *found[2 * n : 2 * n + 2]) for n, name in enumerate(ordered) if found[2 * n]]


def _held(name: str, fields: dict[bytes, bytes], waiting: int) -> Held:
    held: dict[str, Any] = {str(key, "utf-8"): str(value, "utf-8") for key, value in fields.items()}
    since = _moment(held["since"]) if "since" in held else None
    next_at = _moment(held["until"])
    route = name.removesuffix(FULL)
    return Held(route, held["state"], next_at, waiting, held.get("kind"), held.get("reason", ""), since)


def _moment(us: str) -> datetime:
    return datetime.fromtimestamp(int(us) / 1e6, tz=UTC)
