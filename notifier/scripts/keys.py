"""Every key of ours in Redis, by its name. Python calls `redis_key`; a script writes `@name`.

A process uses one prefix for our keys, `redis.prefix`, and one for RQ's, RQ's own `RQ_KEY_PREFIX`; `under` sets others
for a context. All keys of a user share the hash tag `{user}`.
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
RQ: Final = "rq"  # RQ's prefix in a script: @rq:job:…
RQ_VARIABLE: Final = "RQ_KEY_PREFIX"
_TOKEN: Final = re.compile(r"""--[^\n]*|(#?)('(?:[^'\\\n]|\\.)*'|"(?:[^"\\\n]|\\.)*")""")  # a comment, or a string
_NAME: Final = re.compile(r"@([a-z_]+)(:?)")

# The name after the prefix, up to the next colon -> the rest of the key, its types, and its meaning; see key_types.
CATALOGUE: Final[Mapping[str, str]] = {
    # Of a user.
    "backlog": ":{user}:<category> zset job id -> order; the backlog: the notifications that wait",
    "backlogs": ":{user} hash category -> lane of each backlog that is not empty; #turn, orphans, … too",
    "sent": ":{user}[:<category>] zset permit -> µs; sends, past and in flight; see rules.lua",
    "counts": ":{user}[:<category>] zset µs -> how many sends; for windows with a precision; see counts.lua",
    "burst": ":{user}[:<category>] hash; burst allowances; see burst.lua",
    "collapse": ":{user}:<category> hash collapse id -> job id of a waiting job; see collapse.lua",
    "arriving": ":{user} zset job id -> µs; with max_waiting, jobs that are not in a backlog yet",
    "tagged": ":{user} zset job id -> µs; jobs with tags, see tagged.lua",
    "claim": ":{user}:<category> string; the worker that has heads of the backlog in flight, see claims.lua",
    "rests": ":{user}:<category route> zset job id -> order; parts of jobs that wait for a route, see routes.lua",
    "history": ":{user}:<0 or 1> list of records of ended jobs; see history.lua",
    "forgotten": "[:<hash>[:<sent…>]] string, set, zset or hash; sends of forgotten users; see forgotten.lua",
    "preferences": " hash user -> JSON of the user's preferences; see users_rules.lua",
    "waits": " hash reason -> how many notifications wait for it, see waits.lua",
    # Times and the order of work.
    "wakeups": ":<lane> zset user -> µs of the next look at the user's backlogs",
    "later": " zset job id -> µs; jobs that wait for a time of their own",
    "same_time": " zset µs -> µs; the next free moment in `later` for each moment that is taken",
    "expiring": " zset job id -> µs at which a job behind the head of a backlog expires",
    "leases": " zset job id -> µs at which the lease ends: the worker counts as dead then",
    "delivered": " zset job id -> µs; delivered jobs, kept for keep_delivered",
    "dedupe": ":<dedupe key> string job id",
    "seq": " string, counter of arrivals and permits",
    "zones": " hash zone -> JSON of its local time, see quiet_hours.lua; :users the same, if only users use zones",
    "lanes": " hash category -> lane of its queue; while the lane changes, also the last job there; see enqueue.lua",
    "counting": " string, exists while any user has counts in buckets; see counts.lua",
    "own_rules": ":<version> hash of the users with rules of their own; see users_rules.lua",
    "chosen": ":<version> hash preferences -> rules that result from them; see users_rules.lua",
    "own_rules_writer": ":<version> string, the worker that writes these rules",
    "full": " string, never exists: a script deletes it if its first write must take no memory",
    # Idle workers.
    "leaders": " hash lanes of an idle leader -> µs until it sleeps; see idle_leaders.lua",
    "leader": ":<lanes> string, the leader's name",
    "wake": ":<lanes> list on which the leader is woken",
    "handover": ":<lanes> list on which the next leader is woken",
    # Providers.
    "routes": " set of the names of holds, such as routes whose circuit is open; see routes.lua",
    "route": ":<name> hash; why and until when the hold lasts",
    "waiting_for_route": ":<route> zset; users and parts of jobs that wait for the route",
    "reached": ":<route> zset worker -> µs at which it got through; see circuit.lua",
    "taken": ":<route>:<key's digest> string, exists while a push service is known to accept our key",
    "doubted": ":<route> hash worker -> µs; workers that opened the circuit wrongly; see circuit.lua",
    "device": ":<token's hash> zset, hash or string; a device's own limits, see limits.lua",
    "overall": ":<category> zset permit -> µs; sends to all users in a category with `overall`, see overall.lua",
    "project": ":<platform app> hash; how many messages a project had by buckets of time",
    "token": ":<name> hash; a provider's token that all workers share, see token.lua",
    # Streams and numbers.
    "feedback": " stream of dead tokens, kept for keep_feedback",
    "events": " stream of how notifications ended, kept for events.keep; see ends.lua",
    "trace": " stream of accepted notifications, during a recording",
    "actions": " stream of operators' actions, and :users of changed preferences",
    "stats": " hash of totals",
    "minute": ":<minute> hash; the numbers of a minute, kept for 3 days; see minute.lua",
    # Configuration and workers.
    "looked": " string; µs of the last look for work by any worker",
    "rates": " hash; the rates in force, published by `notifier config apply`",
    "reload": ":… string; the worker that walks over the wake-ups now, or that logs a changed file",
    "halfway": " set of marks: a script has failed in the middle, and no repair has begun since",
    "layout": " string; the number of this layout of keys; see store/layout.py",
    "partition": " string; number of this partition, and of all; see store/partitions.py",
    "slots": " string; the worker that looks at RQ's RateLimits now",
    "release": ":<job id> string; the worker that takes a lost job back",
    "quarantine": ":<key> string, list, set, zset, hash or stream; a key that no script could read, see "
    "workers/loop/mending",
    # The limiter for any key; see sends.lua and usage.lua.
    "keys": ":<namespace>:{key} hash; the sends of a key and their costs, see sends.lua, usage.lua",
    "use": ":<namespace>:{key} hash; the usage of a key",
    "used": ":<namespace> hash minute -> usage of all keys",
    "ranks": ":<namespace>:… zset key -> usage",
    "namespaces": " zset namespace -> µs of the latest use",
}


@dataclass(frozen=True, slots=True)
class Prefixes:
    """The prefixes of our keys and of RQ's, without the colon before the name."""

    ours: str
    rqs: str


_of_process = Prefixes(PREFIX, os.environ.get(RQ_VARIABLE, RQ))
_of_context: ContextVar[Prefixes | None] = ContextVar("prefixes", default=None)
_asked_for = False


def use_prefixes(prefixes: Prefixes) -> None:
    """Use these prefixes in this process. Raises SettingsError if it has used others already."""
    global _of_process, _asked_for
    if _asked_for and prefixes.ours != _of_process.ours:
        raise SettingsError(
            f"redis.prefix is {prefixes.ours!r}, but this process already uses {_of_process.ours!r}: "
            "one process can use one prefix; run one process for each"
        )
    _of_process, _asked_for = prefixes, True


@contextmanager
def under(prefixes: Prefixes | None) -> Iterator[None]:
    """Use these prefixes in this context, which its tasks and threads inherit; None changes nothing."""
    token = _of_context.set(prefixes or _of_context.get())
    try:
        yield
    finally:
        _of_context.reset(token)


def in_force() -> Prefixes:
    """The prefixes of this context."""
    return _of_context.get() or _of_process


def redis_key(name: str, *rest: object) -> str:
    """The key of this name, with `rest` behind colons. Raises KeyError for a name not in the catalogue."""
    CATALOGUE[name]
    return ":".join((in_force().ours, name, *map(str, rest)))


def user_key(name: str, user: str, category: str | None = None) -> str:
    whose = "{" + user + "}"  # an f-string writes a member of a (str, Enum) by its name
    return redis_key(name, whose) if category is None else redis_key(name, whose, category)


def rq_key(name: str, *rest: str) -> str:
    """A key of RQ's: `rq_key("queue", lane)`."""
    return ":".join((in_force().rqs, name, *rest))


def job_key(job_id: str | bytes) -> bytes:
    """The key of a job's hash; ids of plain producers need not be UTF-8."""
    return rq_key("job", "").encode() + (job_id if isinstance(job_id, bytes) else to_bytes(job_id))


def declared() -> tuple[str, str]:
    """The two keys that every call of a script declares: our prefix and RQ's. Keys with these names never exist.

    While a cluster moves a slot, a script that declares no keys, or existing ones, runs until it meets a key that has
    moved, and leaves half of its writes. With two declared keys that do not exist it does not start.
    """
    named = in_force()
    return f"{named.ours}:", f"{named.rqs}:"


def in_script(source: str) -> str:
    """A script's text in which names of keys begin with the keys that the call declares: one text for all prefixes.

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
