"""Rates published through Redis: `notifier config apply` writes them, and every worker on every host follows.

They replace all rates of each worker's own file (`settings.rates.SECTIONS`), from one moment of Redis's clock on, until
they are withdrawn.
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

HOLDS_IN_US: Final = 2_000_000  # how long after their publication rates hold, so that all workers change at once
PART: Final = 1_000  # entries of a section in a line
MAX_US: Final = 2**53  # no moment is later
# A start further ahead than anyone may ask for means that Redis's clock was set back: the rates hold. See pull.lua.
MAX_DELAY_US: Final = UNITS["m"]

# Fields that a worker adds to its hash rq:worker:<name>, beside RQ's own.
VERSION, SOURCE, PROBLEM = "rates_version", "rates_from", "rates_problem"


@dataclass(frozen=True, slots=True)
class Published:
    """The published rates: their version, '' for none, and when they begin to hold, in µs of Redis's clock."""

    version: str = ""
    at_us: int = 0

    def begins_later(self, now_us: int) -> bool:
        return now_us < self.at_us <= now_us + MAX_DELAY_US


def publish(redis: Any, rates: Mapping[str, Any], delay_us: int) -> Published:
    """Publish rates that hold `delay_us` from now. To publish the same rates again never makes them hold later."""
    now_us, version = time_us(redis), version_of(rates)
    known_version, known_at, so_far = redis.hmget(redis_key("rates"), "version", "at", "rates")
    known, at_us = decode(known_version, known_at), now_us + delay_us
    if known.version == version:
        at_us = min(at_us if known.begins_later(now_us) else now_us, known.at_us)
    made = Published(version, at_us)
    fields: dict[str, Any] = {"version": version, "at": made.at_us, "rates": _written(rates)}
    # Otherwise `before` is right already: this call is a repeat, or the rates that it replaces were never in force.
    if known.version != version and not known.begins_later(now_us):
        fields["before"] = so_far or b""
    # One command, so that nobody reads a part of it.
    redis.hset(redis_key("rates"), mapping=fields)
    return made


def rates_before(redis: Any) -> dict[str, Any] | None:
    """The published rates that were in force before the present ones; None if there were none."""
    written = redis.hget(redis_key("rates"), "before")
    return read_rates(written) if written else None


def published_rates(redis: Any) -> tuple[Published, dict[str, Any] | None]:
    """Return the version that is published and its rates; None in place of the rates if nothing is published."""
    version, at_us, rates = redis.hmget(redis_key("rates"), "version", "at", "rates")
    return decode(version, at_us), None if rates is None else read_rates(rates)


def published_now(redis: Any) -> Published:
    """Return which rates are published, readable or not."""
    return decode(*redis.hmget(redis_key("rates"), "version", "at"))


def rates_in_force(redis: Any) -> tuple[Published, dict[str, Any] | None]:
    """As `published_rates`, but while those begin later, return the rates that hold until then."""
    published, written = written_in_force(redis)
    rates = read_rates(written) if written else None
    if rates is not None and not published.version:
        published = Published(version_of(rates))
    return published, rates


def written_in_force(redis: Any) -> tuple[Published, bytes | None]:
    """As `rates_in_force`, not yet decoded, so that a caller refuses bad rates once. Older rates have no version."""
    version, at_us, rates = redis.hmget(redis_key("rates"), "version", "at", "rates")
    published = decode(version, at_us)
    if published.begins_later(time_us(redis)):
        return Published(), redis.hget(redis_key("rates"), "before")
    return published, rates


def read_due(redis: Any, known: Published) -> Published:
    """Return what is published, or while that begins later `known`; "before" if that is none and older rates hold."""
    published = published_now(redis)
    if published in {known, Published()} or not published.begins_later(time_us(redis)):
        return published
    return known if known.version or not redis.hget(redis_key("rates"), "before") else Published("before")


def _written(rates: Mapping[str, Any]) -> str:
    """JSON lines with some entries of one section each: between two lines, a worker's other threads run."""
    lines = []
    for name, section in rates.items():
        if not isinstance(section, Mapping):
            lines.append(json.dumps({name: section}))
            continue
        entries = list(section.items())
        parts = (dict(entries[first : first + PART]) for first in range(0, len(entries), PART))
        lines += [json.dumps({name: part}) for part in parts]
    return "\n".join(lines) or "{}"  # '' would mean that nothing is published


def read_rates(written: bytes) -> dict[str, Any]:
    """Decode the field `rates` into sections of plain data. Raises SettingsError if it cannot be read."""
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
    """Let every worker's own file hold again, in all partitions. Return False if nothing was published."""
    partitions = Partitions.around(redis)
    # A question of its own: if the answer to `_take_back` is lost, its repeat finds no rates any more.
    were = on_all(partitions, lambda at: at.hexists(redis_key("rates"), "rates"), "; nothing was withdrawn")
    on_all(partitions, _take_back)
    return any(were)


def _take_back(redis: Any) -> None:
    if redis.hexists(redis_key("rates"), "rates"):
        redis.hset(redis_key("rates"), "before", written_in_force(redis)[1] or b"")
        redis.hdel(redis_key("rates"), "version", "at", "rates")


@dataclass(frozen=True, slots=True)
class Follower:
    """A running worker and the rates it follows. problem: why it refused its latest configuration, or ''."""

    name: str
    host: str
    version: str
    source: str
    problem: str


def newest(published: Mapping[int, Published]) -> Published:
    """Return what was published last, in whichever partition."""
    return max(published.values(), key=lambda each: each.at_us)


def followers(redis: Any) -> tuple[dict[int, Published], list[Follower]]:
    """The rates published in each partition, as one that was away has others; and the running workers, by name."""
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
        if texts[1]:  # otherwise the worker has gone, or is not one of ours
            found.append(Follower(key.decode().removeprefix(rq_key("worker", "")), *texts))
    return decode(*published), found


def decode(version: bytes | None, at_us: bytes | None) -> Published:
    """Decode the fields of Redis. A moment that cannot be read counts as past."""
    us = int(at_us) if at_us is not None and at_us.isdigit() and len(at_us) <= len(str(MAX_US)) else 0
    return Published() if version is None else Published(version.decode(errors="replace"), min(us, MAX_US))
