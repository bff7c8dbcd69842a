"""Rates published through Redis: `notifier config apply` puts them there, and every worker on every host follows.

They stand in the place of the sections of the same names in each worker's own file, from one moment on, by Redis's
clock, until they are withdrawn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from notifier.errors import SettingsError
from notifier.scripts.keys import redis_key, rq_key
from notifier.settings.rates import version_of
from notifier.store.connection import time_us
from notifier.store.exchange import Commands, Exchange
from notifier.store.partitions import Partitions
from notifier.store.pipelining import ask_all, on_all
from notifier.units import UNITS

HOLDS_IN_US: Final = 2_000_000  # from when published rates hold, so that all workers change at once
PART: Final = 1_000  # entries of a section in a line
MAX_US: Final = 2**53  # a moment; what is later is none
MAX_DELAY_US: Final = UNITS["m"]  # what is further ahead held before Redis's clock was set back; see also pull.lua

# What a worker tells of itself in its hash rq:worker:<name>, beside RQ's own fields.
VERSION, SOURCE, PROBLEM = "rates_version", "rates_from", "rates_problem"


@dataclass(frozen=True, slots=True)
class Published:
    """Which rates are published, and from when they hold, in µs on Redis's clock; version '' is none."""

    version: str = ""
    at_us: int = 0

    def begins_later(self, now_us: int) -> bool:
        """Whether they do not hold yet."""
        return now_us < self.at_us <= now_us + MAX_DELAY_US


def publish(redis: Any, rates: Mapping[str, Any], delay_us: int) -> Published:
    """Let these rates hold `delay_us` from now, by Redis's clock; if they are published already, no later for that."""
    now_us, version = time_us(redis), version_of(rates)
    known_version, known_at, so_far = redis.hmget(redis_key("rates"), "version", "at", "rates")
    known, at_us = decode(known_version, known_at), now_us + delay_us
    if known.version == version:
        at_us = min(at_us if known.begins_later(now_us) else now_us, known.at_us)
    made = Published(version, at_us)
    fields: dict[str, Any] = {"version": version, "at": made.at_us, "rates": _written(rates)}
    # Else those before stand there already: it is repeated, or what it corrects was never in force.
    if known.version != version and not known.begins_later(now_us):
        fields["before"] = so_far or b""
    # One command, so that nobody reads a part of it.
    redis.hset(redis_key("rates"), mapping=fields)
    return made


def rates_before(redis: Any) -> dict[str, Any] | None:
    """The applied rates that were in force before those that are published; None if none were."""
    written = redis.hget(redis_key("rates"), "before")
    return read_rates(written) if written else None


def published_rates(redis: Any) -> tuple[Published, dict[str, Any] | None]:
    """Return what is published with the rates themselves; None if nothing is."""
    version, at_us, rates = redis.hmget(redis_key("rates"), "version", "at", "rates")
    return decode(version, at_us), None if rates is None else read_rates(rates)


def published_now(redis: Any) -> Published:
    """Return which rates are published, readable or not."""
    return decode(*redis.hmget(redis_key("rates"), "version", "at"))


def rates_in_force(redis: Any) -> tuple[Published, dict[str, Any] | None]:
    """As `published_rates`, until those of a later moment hold: of what is in force until then."""
    published, written = written_in_force(redis)
    rates = read_rates(written) if written else None
    if rates is not None and not published.version:
        published = Published(version_of(rates))
    return published, rates


def written_in_force(redis: Any) -> tuple[Published, bytes | None]:
    """As `rates_in_force`, not yet read: what cannot be is refused once. Those of before have no version."""
    version, at_us, rates = redis.hmget(redis_key("rates"), "version", "at", "rates")
    published = decode(version, at_us)
    if published.begins_later(time_us(redis)):
        return Published(), redis.hget(redis_key("rates"), "before")
    return published, rates


def read_due(redis: Any, known: Published) -> Published:
    """Return what is published; while that begins later `known`, or that others still hold, for who knows of none."""
    published = published_now(redis)
    if published in {known, Published()} or not published.begins_later(time_us(redis)):
        return published
    return known if known.version or not redis.hget(redis_key("rates"), "before") else Published("before")


def _written(rates: Mapping[str, Any]) -> str:
    """JSON lines, each some entries of one section: a worker that reads them is never stopped for all of it at once."""
    lines = []
    for name, section in rates.items():
        if not isinstance(section, Mapping):
            lines.append(json.dumps({name: section}))
            continue
        entries = list(section.items())
        parts = (dict(entries[first : first + PART]) for first in range(0, len(entries), PART))
        lines += [json.dumps({name: part}) for part in parts]
    return "\n".join(lines) or "{}"  # '' is none


def read_rates(written: bytes) -> dict[str, Any]:
    """The sections, as plain data, out of the field `rates`. Raises SettingsError where nobody can read them."""
    rates: dict[str, Any] = {}
    try:
        for line in written.splitlines():
            for name, entries in json.loads(line).items():
                if isinstance(entries, dict):
                    rates.setdefault(name, {}).update(entries)
                else:
                    rates[name] = entries
    except (ValueError, AttributeError, RecursionError):
        raise SettingsError("the published rates cannot be read; apply others, or withdraw them") from None
    return rates


def withdraw(redis: Any) -> bool:
    """Let every worker's own file hold again, in all partitions; False where nothing was published."""
    partitions = Partitions.around(redis)
    # Asked for itself: where the answer to the second is lost, it is repeated, and finds nothing more.
    were = on_all(partitions, lambda at: at.hexists(redis_key("rates"), "rates"), "; nothing was withdrawn")
    on_all(partitions, _take_back)
    return any(were)


def _take_back(redis: Any) -> None:
    if redis.hexists(redis_key("rates"), "rates"):
        redis.hset(redis_key("rates"), "before", written_in_force(redis)[1] or b"")
        redis.hdel(redis_key("rates"), "version", "at", "rates")


@dataclass(frozen=True, slots=True)
class Follower:
    """A running worker and the rates it follows. problem: why it refused what it was told last, or ''."""

    name: str
    host: str
    version: str
    source: str
    problem: str


def newest(published: Mapping[int, Published]) -> Published:
    """Return what was published last, in whichever partition."""
    return max(published.values(), key=lambda each: each.at_us)


def followers(redis: Any) -> tuple[dict[int, Published], list[Follower]]:
    """The rates published in each partition, as one that was away has others; and each running worker, by name."""
    told = ask_all(Partitions.around(redis), _find_followers)
    found = {worker.name: worker for _, workers in told.all for worker in workers}
    return {number: published for number, (published, _) in told.found.items()}, [found[name] for name in sorted(found)]


def _find_followers() -> Exchange[tuple[Published, list[Follower]]]:
    published, keys = yield Commands(
        lambda pipe: [pipe.hmget(redis_key("rates"), "version", "at"), pipe.smembers(rq_key("workers"))]
    )
    told = yield Commands(lambda pipe: [pipe.hmget(key, "hostname", VERSION, SOURCE, PROBLEM) for key in keys])
    found = []
    for key, fields in zip(keys, told, strict=True):
        texts = [(value or b"").decode() for value in fields]
        if texts[1]:  # else it is gone, or not one of ours
            found.append(Follower(key.decode().removeprefix(rq_key("worker", "")), *texts))
    return decode(*published), found


def decode(version: bytes | None, at_us: bytes | None) -> Published:
    """From the fields as Redis keeps them. A moment that cannot be read is past."""
    us = int(at_us) if at_us is not None and at_us.isdigit() and len(at_us) <= len(str(MAX_US)) else 0
    return Published() if version is None else Published(version.decode(errors="replace"), min(us, MAX_US))
