"""Every key of ours in Redis, by its name: Python asks `redis_key`, and a script writes `@name` for the same.

A process names its keys under one prefix, as RQ does: `redis.prefix` for ours, RQ's own `RQ_KEY_PREFIX` for RQ's. What
runs `under` other prefixes names them by those. All keys of a user share the hash tag `{user}`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Final

from notifier.errors import SettingsError
from notifier.units import to_bytes

PREFIX: Final = "notifier"
RQ: Final = "rq"  # how a script calls RQ's prefix: @rq:job:…
RQ_VARIABLE: Final = "RQ_KEY_PREFIX"
_TOKEN: Final = re.compile(r"""--[^\n]*|(#?)('(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")""")  # a comment, or a string
_NAME: Final = re.compile(r"@([a-z_]+)(:?)")

# What stands after the prefix, up to the next colon -> what follows there; its types, and what it is; see key_types.
CATALOGUE: Final[Mapping[str, str]] = {
    # A user's.
    "backlog": ":{user}:<category> zset job id -> order; the backlog: the notifications that wait",
    "backlogs": ":{user} hash category -> lane of each backlog that is not empty; #turn, orphans, … too",
    "sent": ":{user}[:<category>] zset permit -> µs; what was sent, and is being sent; see rules.lua",
    "counts": ":{user}[:<category>] zset µs -> how many, of windows with a precision; see counts.lua",
    "burst": ":{user}[:<category>] hash; burst allowances; see burst.lua",
    "collapse": ":{user}:<category> hash collapse id -> job id, of those that wait; see collapse.lua",
    "arriving": ":{user} zset job id -> µs; under max_waiting, what has not come to a backlog yet",
    "tagged": ":{user} zset job id -> µs; what has tags, see tagged.lua",
    "claim": ":{user}:<category> string; which worker has heads of the backlog in flight, see claims.lua",
    "rests": ":{user}:<category route> zset; what of a backlog waits for a route, see routes.lua",
    "history": ":{user}:<0 or 1> list of records of what has ended; see history.lua",
    "forgotten": "[:<hash>[:<sent…>]] string, set, zset or hash; sends of who was forgotten; see forgotten.lua",
    "preferences": " hash user -> JSON of what the user chose; see users_rules.lua",
    "waits": " hash why -> how many notifications of backlogs wait for it, see waits.lua",
    # When to look at whom.
    "wakeups": ":<lane> zset user -> µs of the next look at the user's backlogs",
    "later": " zset job id -> µs; jobs that wait for a time of their own",
    "same_time": " zset µs -> µs; which moment of `later` is free beside one that is taken",
    "expiring": " zset job id -> µs at which what stands behind the head of a backlog expires",
    "leases": " zset job id -> µs at which the worker that holds the job is taken for dead",
    "delivered": " zset job id -> µs; records of what was delivered, kept for keep_delivered",
    "dedupe": ":<dedupe key> string job id",
    "seq": " string, counter of arrivals and permits",
    "zones": " hash zone -> JSON; what clocks read there, see quiet_hours.lua; :users the same, if only users use it",
    "lanes": " hash category -> lane of its queue, and while that changes the last of it there; see enqueue.lua",
    "counting": " string, there while anybody counts by buckets; see counts.lua",
    "own_rules": ":<version> hash of the users whose rules are not those of everyone; see users_rules.lua",
    "chosen": ":<version> hash what users chose -> what comes of it; see users_rules.lua",
    "own_rules_writer": ":<version> string, the worker that writes these rules",
    "full": " string, never there: a script deletes it first where its first write must take no memory",
    # Idle workers.
    "leaders": " hash lanes of an idle leader -> µs until it sleeps; see idle_leaders.lua",
    "leader": ":<lanes> string, the leader's name",
    "wake": ":<lanes> list on which the leader is woken",
    "handover": ":<lanes> list on which the next leader is woken",
    # Providers.
    "routes": " set of the routes whose circuit is open; see routes.lua",
    "route": ":<name> hash; why and until when the circuit is open",
    "waiting_for_route": ":<route> zset; what waits for the route",
    "reached": ":<route> hash, there while the provider is known to answer; see circuit.lua",
    "taken": ":<route>:<key's digest> string, there while a push service is known to take our key",
    "doubted": ":<route> hash; who has met faults of the route; see circuit.lua",
    "device": ":<token's hash> zset, hash or string; a device's own limits, see limits.lua",
    "overall": ":<category> zset permit -> µs; what all users were sent of a category with `overall`, see overall.lua",
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
    "looked": " string; µs of the last look for work by any worker",
    "rates": " hash; the rates in force, published by `notifier config apply`",
    "reload": ":… string; the one worker that walks over the wake-ups now; who logs a changed file",
    "halfway": " set of marks: a script has failed in the middle, and nobody has repaired it yet",
    "layout": " string; the number of this layout of keys; see store/layout.py",
    "partition": " string; which partition this is, of how many; see store/partitions.py",
    "slots": " string; the one worker that looks at RQ's RateLimits now",
    "release": ":<job id> string; the one worker that takes a lost job back",
    "quarantine": ":<key> string, list, set, zset, hash or stream; what no script could read, see workers/loop/mending",
    # The limiter for any key; see sends.lua and usage.lua.
    "keys": ":<namespace>:{key} hash; the sends of a key, and what each costs, see sends.lua, usage.lua",
    "use": ":<namespace>:{key} hash; what was used of a key",
    "used": ":<namespace> hash minute -> how many of all keys",
    "ranks": ":<namespace>:… zset key -> how many",
    "namespaces": " zset namespace -> µs of a use",
}


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The beginnings of keys, up to their first colon: ours, and up to their first name RQ's."""

    ours: str
    rqs: str


_of_process = Prefixes(PREFIX, os.environ.get(RQ_VARIABLE, RQ))
_of_context: ContextVar[Prefixes | None] = ContextVar("prefixes", default=None)
_asked_for = False


def use_prefixes(prefixes: Prefixes) -> None:
    """Name all keys of this process so. Raises SettingsError where it names them otherwise already."""
    global _of_process, _asked_for
    if _asked_for and prefixes.ours != _of_process.ours:
        raise SettingsError(
            f"redis.prefix is {prefixes.ours!r}, but this process already uses {_of_process.ours!r}: "
            "one process can use one prefix; run one process for each"
        )
    _of_process, _asked_for = prefixes, True


@contextmanager
def under(prefixes: Prefixes | None) -> Iterator[None]:
    """Name keys so in this context, which tasks and threads that are begun in it inherit; None: as before."""
    token = _of_context.set(prefixes or _of_context.get())
    try:
        yield
    finally:
        _of_context.reset(token)


def in_force() -> Prefixes:
    """By which keys are named here."""
    return _of_context.get() or _of_process


def redis_key(name: str, *rest: object) -> str:
    """The key of this name, and what follows it by colons. Raises KeyError for a name not in the catalogue."""
    CATALOGUE[name]
    return ":".join((in_force().ours, name, *map(str, rest)))


def user_key(name: str, user: str, category: str | None = None) -> str:
    whose = "{" + user + "}"  # an f-string writes a member of a (str, Enum) by its name
    return redis_key(name, whose) if category is None else redis_key(name, whose, category)


def rq_key(name: str, *rest: str) -> str:
    """A key of RQ's: `rq_key("queue", lane)`."""
    return ":".join((in_force().rqs, name, *rest))


def job_key(job_id: str | bytes) -> bytes:
    """The hash of a job; ids that plain producers gave need not be UTF-8."""
    return rq_key("job", "").encode() + (job_id if isinstance(job_id, bytes) else to_bytes(job_id))


def declared() -> tuple[str, str]:
    """The two keys that every call of a script declares: what the names of our keys and of RQ's begin with.

    They never exist. While a cluster moves their slot, a script that declared none, or one that is there, would run
    until the first key that has gone, and leave half of what it writes; with two that are not there it does not begin.
    """
    named = in_force()
    return f"{named.ours}:", f"{named.rqs}:"


def in_script(source: str) -> str:
    """A script's text, in which names of keys begin with what the call declares: one text for all prefixes.

    Raises KeyError for a name not in the catalogue.
    """
    made = _TOKEN.sub(_spelled, source)
    return made if made == source else f"local OURS, RQS = KEYS[1], KEYS[2]; {made}"


def _spelled(token: re.Match[str]) -> str:
    length, text = token.groups(default="")
    if "@" not in text:
        return token[0]
    quote, spelled = text[0], _NAME.sub(_begun, text).replace("\0", text[0])
    spelled = spelled.removeprefix(f"{quote}{quote} .. ").removesuffix(f" .. {quote}{quote}")
    return f"{length}({spelled})" if length else spelled


def _begun(name: re.Match[str]) -> str:
    if name[1] == RQ:
        return "\0 .. RQS .. \0"
    CATALOGUE[name[1]]
    return f"\0 .. OURS .. \0{name[1]}{name[2]}"
