"""Every key of ours in Redis, by its name: Python asks `redis_key`, and a script writes `@name` for the same.

A process names its keys under one prefix, as RQ does: `redis.prefix` for ours, RQ's own `RQ_KEY_PREFIX` for RQ's.
All keys of a user share the hash tag `{user}`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Final

from notifier.errors import SettingsError
from notifier.units import to_bytes

PREFIX: Final = "notifier"
RQ: Final = "rq"  # how a script calls RQ's prefix: @rq:job:…
RQ_PREFIX: Final = os.environ.get("RQ_KEY_PREFIX", "rq")
_IN_A_SCRIPT: Final = re.compile(r"@([a-z_]+)")

# What stands after the prefix, up to the next colon -> what it is, and in which script it is told of.
CATALOGUE: Final[Mapping[str, str]] = {
    # A user's.
    "line": ":{user}:<category> zset job id -> order; the backlog: the notifications that wait",
    "lines": ":{user} hash category -> lane of each backlog that is not empty; #pace, #turn, orphans, … too",
    "sent": ":{user}[:<category>] zset permit -> µs; what was sent, and is being sent; see rules.lua",
    "counts": ":{user}[:<category>] zset µs -> how many, of windows with a precision; see counts.lua",
    "burst": ":{user}[:<category>] hash; a burst allowance, see burst.lua",
    "collapse": ":{user}:<category> hash collapse id -> job id, of those that wait; see collapse.lua",
    "arriving": ":{user} zset job id -> µs; under max_waiting, what has not come to a backlog yet",
    "tagged": ":{user} zset job id -> µs; what has tags, see tagged.lua",
    "claim": ":{user}:<category> string; which worker has heads of the backlog in flight, see claims.lua",
    "rests": ":{user}:<category> <route> zset; what of a backlog waits for a route, see routes.lua",
    "history": ":{user}:0, …:1 lists of records of what has ended; see history.lua",
    "usage": ":{user} hash; totals by outcome, first and last time seen",
    "forgotten": " string; and :<hash> the sends of a user who was forgotten; see forgotten.lua",
    "preferences": " hash user -> JSON of what the user chose; see preferences.lua",
    "away": ":{user} hash category -> job id, while the user moves to another shard; see fence.lua",
    # When to look at whom.
    "gates": ":<lane> zset user -> µs of the next look at the user's backlogs",
    "later": " zset job id -> µs; jobs that wait for a time of their own",
    "same_time": " zset µs -> µs; which moment of `later` is free beside one that is taken",
    "expiring": " zset job id -> µs at which what stands behind the head of a backlog expires",
    "leases": " zset job id -> µs at which the worker that holds the job is taken for dead",
    "delivered": " zset job id -> µs; records of what was delivered, kept for keep_delivered",
    "dedupe": ":<dedupe key> string job id",
    "seq": " counter of arrivals and permits",
    "zones": " hash zone -> JSON; what clocks read there, see quiet_hours.lua; :users the same, if only users use it",
    "lanes": " hash category -> lane in which the last of it was accepted; see behind.lua",
    "behind": " hash of the categories whose lane has changed, and :<category> list of job ids; see behind.lua",
    "counting": " string, there while anybody counts by buckets; see counts.lua",
    "exceptions": ":<version> set of the users that have rules of their own; see direct.lua",
    "full": " of an older version; removed where it is met",
    # Idle workers.
    "leaders": " hash lanes of an idle leader -> µs until it sleeps; see idle_leaders.lua",
    "leader": ":<lanes> string, the leader's name",
    "wake": ":<lanes> list on which the leader is woken",
    "handover": ":<lanes> list on which the next leader is woken",
    # Providers.
    "routes": " set of the routes whose circuit is open; see routes.lua",
    "route": ":<name> hash; why and until when the circuit is open",
    "parked": ":<route> zset; what waits for the route",
    "reached": ":<route> string, there while the provider is known to answer; see circuit.lua",
    "doubted": ":<route> who has met faults of the route; see circuit.lua",
    "device": ":<token's hash> zset or hash; a device's own limits, see limits.lua",
    "project": ":<platform app> hash; how many messages a project had by buckets of time",
    "token": ":<name> hash; a provider's token that all workers share, see token.lua",
    # Streams and numbers.
    "feedback": " stream of dead tokens, kept for keep_feedback",
    "events": " stream of how notifications ended, kept for events.keep; see ends.lua",
    "trace": " stream of what is accepted, while somebody records it",
    "actions": " stream of what operators did, and :users of what users chose",
    "stats": " hash of totals",
    "minute": ":<minute> hash; the numbers of a minute, kept for 3 days; see minute.lua",
    # Configuration and workers.
    "rates": " hash; the rates in force, published by `notifier config apply`",
    "reload": ":… how far the users are retimed after a change of the rates",
    "slots": " string; the one worker that looks at RQ's RateLimits now",
    "release": ":<job id> string; the one worker that takes a lost job back",
    # Shards.
    "shard": " string; whose server this is",
    "moves": " hash user -> the shard where it is, or is on the way to; see fence.lua",
    "arrived": ":<shard> set of job ids that have come from there",
    "mover": " string; the one command that moves users",
    # The limiter for any key; see usage.lua.
    "keys": ":<namespace>:{key} zset send -> µs",
    "use": ":<namespace>:{key} hash; what was used of a key",
    "used": ":<namespace> hash minute -> how many of all keys",
    "ranks": ":<namespace>:… zset key -> how many",
    "namespaces": " zset namespace -> µs of a use",
}

# What is kept of a user beside what waits and what is being sent: a key of each, and of the second also one for each
# category. It moves with its user to another shard, and goes where the user is forgotten; so does @history.
OF_USER: Final = ("usage", "arriving", "tagged")
OF_SCOPE: Final = ("sent", "counts", "burst", "collapse")

_prefix = PREFIX
_asked_for = False


def use(prefix: str) -> None:
    """Name all keys of this process under a prefix. Raises SettingsError where it uses another already."""
    global _prefix, _asked_for
    if _asked_for and prefix != _prefix:
        raise SettingsError(
            f"redis.prefix is {prefix!r}, but this process already uses {_prefix!r}: "
            "one process can use one prefix; run one process for each"
        )
    _prefix, _asked_for = prefix, True


def prefix() -> str:
    """What all our keys begin with, up to the first colon."""
    return _prefix


def redis_key(name: str, *rest: object) -> str:
    """The key of this name, and what follows it by colons. Raises KeyError for a name not in the catalogue."""
    CATALOGUE[name]
    return ":".join((_prefix, name, *map(str, rest)))


def user_key(name: str, user: str, category: str | None = None) -> str:
    """A key of a user, or of one category of a user."""
    whose = f"{{{user}}}"
    return redis_key(name, whose) if category is None else redis_key(name, whose, category)


def is_key(key: bytes, name: str) -> bool:
    """Whether a key is one of this name."""
    return key.startswith(redis_key(name, "").encode())


def rq_key(name: str, *rest: str) -> str:
    """A key of RQ's: `rq_key("queue", lane)`."""
    return ":".join((RQ_PREFIX, name, *rest))


def job_key(job_id: str | bytes) -> bytes:
    """The hash of a job; ids that plain producers gave need not be UTF-8."""
    return rq_key("job", "").encode() + (job_id if isinstance(job_id, bytes) else to_bytes(job_id))


def in_script(source: str) -> str:
    """A script's text with the keys' prefixes in place. Raises KeyError for a name not in the catalogue."""
    return _IN_A_SCRIPT.sub(lambda found: RQ_PREFIX if found[1] == RQ else redis_key(found[1]), source)
