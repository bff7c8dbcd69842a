"""All that is known of one user, for a page: the rules and their use, what waits and why."""

from __future__ import annotations

from dataclasses import asdict
from itertools import islice
from typing import Any, Final

from redis import Redis

from notifier.operations.explain import Inspection, placed
from notifier.operations.in_force import Known

MAX_SHOWN: Final = 200


def view_user(redis: Redis, known: Known, user: str, category: str | None = None) -> dict[str, Any]:
    """All that is known of a user, as plain data. category: to explain; None is the first in which something waits.

    line: the first that wait in backlogs, of `waiting_in_all`. outside: see `Inspection`. Raises RedisUnusableError.
    """
    inspection = Inspection(redis, known.policies, known.settings.redis.partitions)
    found = placed(inspection.explain(user, category), known)
    waiting = {name: n for name, n in found.waiting.items() if n}
    return found.as_json() | {
        "user_rules": known.places.of_user(user).path,
        "category_rules": known.places.of_category(found.category).path,
        "categories": sorted({*known.policies.categories, *waiting}),
        "line": [asdict(each) for each in islice(inspection.backlog(user), MAX_SHOWN)],
        "waiting_in_all": sum(waiting.values()),
        "outside": inspection.outside(),
    }
