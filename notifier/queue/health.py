"""Which workers are alive. Each worker notes once a second, by Redis's clock, that it has looked for work.

RQ's own heartbeat says less: a process whose event loop hangs keeps its entry for minutes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from redis.exceptions import ResponseError

from notifier.scripts.keys import rq_key
from notifier.store.connection import OUT_OF_MEMORY, REFUSALS, ask_each, refusal
from notifier.store.exchange import Commands, Exchange
from notifier.units import clock_us, moment

# Our fields in a worker's hash rq:worker:<name>, beside RQ's own.
LOOKED: Final = "push_looked"  # µs at which it last looked for work, or at a job of another function that it runs
RELEASE: Final = "push_release"  # of this package
SUSPENDED: Final = "push_suspended"  # µs at which it saw `rq suspend`; 0 if workers are not suspended
IN_FLIGHT: Final = "push_in_flight"  # how many sends are under way or about to begin
FIELDS: Final = (
    *("hostname", "current_job", "rates_version", "rates_problem", "birth"),
    *(LOOKED, RELEASE, SUSPENDED, IN_FLIGHT),
)
WITHIN_US: Final = 30_000_000  # a worker looks once a second; one that waits for slow providers may take longer
RQ_BEAT_US: Final = 90_000_000  # RQ beats every 30 s while a job of another function runs, which blocks our own loop


@dataclass(frozen=True, slots=True)
class Alive:
    """A worker that Redis knows.

    age_us: since it last looked for work.
    rq_job: the job of another function that it runs now, during which it does not look for work; or ''.
    version: of this package.
    rates: the version of the rates that it follows.
    in_flight: how many sends are under way or about to begin.
    since: when it started.
    suspended: since when it has seen `rq suspend`, or None.
    refuses: what is wrong with published rates that it does not follow, or ''.
    """

    name: str
    host: str
    age_us: int
    rq_job: str = ""
    version: str = ""
    rates: str = ""
    in_flight: int = 0
    since: datetime | None = None
    suspended: datetime | None = None
    refuses: str = ""

    def is_healthy(self, within_us: int = WITHIN_US) -> bool:
        """Whether it has looked for work within this time, or runs a job of another function."""
        limit = max(within_us, RQ_BEAT_US) if self.rq_job else within_us
        return self.age_us <= limit


def find_workers() -> Exchange[list[Alive]]:
    """All push workers that Redis knows, by name. Changes nothing."""
    (keys,) = yield Commands(lambda pipe: pipe.smembers(rq_key("workers")))
    keys = sorted(keys)
    now, *found = yield Commands(lambda pipe: [pipe.time(), *(pipe.hmget(key, FIELDS) for key in keys)])
    now_us = clock_us(now)
    told = [{name: (value or b"").decode() for name, value in zip(FIELDS, each, strict=True)} for each in found]
    return [
        _alive(key.decode().removeprefix(rq_key("worker", "")), now_us, of)
        for key, of in zip(keys, told, strict=True)
        if of[LOOKED]
    ]


def read_others(redis: Any, lanes: Collection[str]) -> list[str]:
    """The names of RQ workers that serve one of these lanes and are no push workers. Changes nothing.

    Workers that started in the last seconds are left out: a push worker has noted nothing yet then either.
    """
    keys = sorted(redis.smembers(rq_key("workers")))
    found = ask_each(redis, keys, lambda pipe, key: pipe.hmget(key, "queues", "birth", LOOKED))
    before = datetime.now(UTC) - timedelta(seconds=10)
    return [
        key.decode().removeprefix(rq_key("worker", ""))
        for key, (queues, birth, looked) in zip(keys, found, strict=True)
        if queues and birth and looked is None
        if not set(lanes).isdisjoint(queues.decode().split(","))
        if datetime.fromisoformat(birth.decode()).astimezone(UTC) < before
    ]


def find_refusal(memory: Mapping[str, Any]) -> Exchange[str]:
    """Why Redis refuses writes, so that no worker can note that it looks; '' if it does not. memory: of INFO."""
    if 0 < memory.get("maxmemory", 0) <= memory["used_memory"]:
        return OUT_OF_MEMORY
    try:
        # A Redis that cannot save refuses PING too.
        _, of = yield Commands(lambda pipe: (pipe.ping(), pipe.info("replication")))
    except ResponseError as error:
        return refusal(error)
    return REFUSALS["READONLY"] if of.get("slave_read_only") else ""


def _alive(name: str, now_us: int, told: Mapping[str, str]) -> Alive:
    # A time ahead was noted before Redis's clock was set back; a worker that is alive notes a new one at once.
    age_us = abs(now_us - int(told[LOOKED]))
    since_us = int(told[SUSPENDED] or 0)
    return Alive(
        name,
        told["hostname"],
        age_us,
        told["current_job"],
        told[RELEASE],
        told["rates_version"],
        int(told[IN_FLIGHT] or 0),
        datetime.fromisoformat(told["birth"]).astimezone(UTC) if told["birth"] else None,
        moment(since_us) if since_us else None,
        told["rates_problem"],
    )
