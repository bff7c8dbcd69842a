"""Takes as a worker does: pull, and again where it was asked for more, until it is asked for nothing."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

import pytest

from notifier.notification.job import targets_in
from notifier.queue import calls
from notifier.queue.backlogs import aim
from notifier.queue.calls import Pulled, Room
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy
from notifier.rules.zones import zone_or
from notifier.scripts.keys import redis_key
from notifier.scripts.loader import Script, run, script
from notifier.scripts.rule_table import RuleTable
from notifier.units import to_bytes

VISITED: Final = script("pull").source.replace("direct.room = left", "direct.room = 0")
BY_VISITS: Final = Script("pull", VISITED, hashlib.sha1(VISITED.encode(), usedforsecurity=False).hexdigest(), True)


@contextmanager
def direct_way_shut() -> Iterator[None]:
    """Have pulls go by the same script with that way shut, so that all are visited."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(calls, "script", lambda name: BY_VISITS if name == "pull" else script(name))
        yield


def take(redis: Any, worker: calls.Worker, room: Room, rules: RuleTable) -> Pulled:
    """One look of a worker; what each of its calls gave, as if it were the reply of one."""
    found = pulled = run(redis, calls.pull(worker, room, rules))
    while asks(pulled) and len(found.leased) < room.max_jobs:
        left = Room(room.max_jobs - len(found.leased), pulled.rooms)
        tell(redis, pulled, rules)
        pulled = run(redis, calls.pull(worker, left, rules))
        found = replace(
            pulled,
            leased=found.leased + pulled.leased,
            rq_jobs=found.rq_jobs + pulled.rq_jobs,
            orphans=found.orphans + pulled.orphans,
            taken=found.taken + pulled.taken,
            idle=found.idle + pulled.idle,
            unread=found.unread + pulled.unread,
        )
    return found


def asks(pulled: Pulled) -> bool:
    """Whether the worker is to write something down, and to look again at once."""
    return bool(pulled.asked or pulled.chosen or pulled.unpublished)


def tell(redis: Any, pulled: Pulled, rules: RuleTable) -> None:
    """Write down what a worker is asked for."""
    if pulled.unpublished:
        publish_own_rules(redis, rules)
    write_down(redis, rules, pulled)
    for zone in filter(None, [zone for _, _, zone in pulled.asked]):
        redis.hset(rules.zones, zone, zone_or(zone, "UTC", pulled.now_us).encode())
    run(redis, aim({job_id: targets_in(data) for job_id, data, zone in pulled.asked if not zone}))


def publish_own_rules(redis: Any, rules: RuleTable) -> None:
    """Write who has rules of their own, and which, as a worker does."""
    if rules.own_rules:
        redis.hset(redis_key("own_rules", rules.own_rules), mapping=dict(rules.own_fields()))


def write_down(redis: Any, rules: RuleTable, pulled: Pulled) -> None:
    """Write what comes of what users chose, where a pull asked for it."""
    for user, text in pulled.chosen:
        redis.hset(redis_key("chosen", rules.chosen_version), *map(to_bytes, rules.chosen_field(user, text)))


def enter(redis: Any, worker: calls.Worker, room: Room, *categories: str) -> Pulled:
    """Have what has come enter its backlogs, and nothing go: the worker is asked for everybody's rules, and dies.

    All are due then.
    """
    rules = RuleTable(
        Policies(users={"nobody": Policy()})
    )  # Redis was not told that nobody else has rules of their own
    know(rules, categories)
    return run(redis, calls.pull(worker, room, rules))


def know(rules: RuleTable, categories: Iterable[str]) -> None:
    """Have a table take these categories for configured, with the rules of `default`."""
    table = json.loads(rules.text)
    table["categories"] = dict.fromkeys(categories, table["categories"]["default"]) | table["categories"]
    rules.text = json.dumps(table)
