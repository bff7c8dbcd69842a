"""All that is known of one user, for a page: the rules and their use, what waits and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Final

from redis import Redis

from notifier.operations.explain import Explanation, Inspection, Standing, places_of
from notifier.operations.in_force import Known
from notifier.operations.outside_backlogs import Elsewhere, find_elsewhere
from notifier.rules.policy import DEFAULT_CATEGORY
from notifier.scripts.keys import user_key
from notifier.store.connection import redis_answers

MAX_SHOWN: Final = 200
MAX_CATEGORIES: Final = 6  # explained at once


@dataclass(frozen=True, slots=True)
class UserView:
    """One user. chosen: the category that was asked for, with the time at which a new one should go.

    explained: the chosen category first, then those in which something waits. places: where each use stands in the
    configuration, in the order of the uses of each. standing: the first that wait in backlogs, out of `waiting` in all.
    elsewhere: what stands in no backlog; is_all: whether all of it was looked for. totals: what was counted for the
    user.
    """

    user: str
    chosen: Explanation
    explained: list[Explanation]
    places: list[list[str]]
    rules: str
    category_rules: list[str]
    categories: list[str]
    standing: list[Standing]
    waiting: int
    elsewhere: list[Elsewhere]
    is_all: bool
    totals: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data."""
        told = [
            found.as_json() | {"category_rules": rules, "uses": _uses(found, places)}
            for found, places, rules in zip(self.explained, self.places, self.category_rules, strict=True)
        ]
        return told[0] | {
            "user_rules": self.rules,
            "others": told[1:],
            "categories": self.categories,
            "line": [asdict(each) for each in self.standing],
            "waiting_in_all": self.waiting,
            "elsewhere": [asdict(each) for each in self.elsewhere],
            "elsewhere_is_all": self.is_all,
            "totals": self.totals,
        }


def view_user(redis: Redis, known: Known, user: str, category: str | None = None) -> UserView:
    """Read what is known of a user. category: to explain; None is the first in which something waits.

    Raises RedisUnusableError.
    """
    inspection = Inspection(redis, known.policies)
    with redis_answers():
        waiting = {name: n for name, n in inspection.waiting(user).items() if n}
        usage: Any = redis.hgetall(user_key("usage", user))
    first = category or next(iter(waiting), DEFAULT_CATEGORY)
    names = list(dict.fromkeys([first, *waiting]))[:MAX_CATEGORIES]
    explained = [inspection.explain(user, name, accepted_now=name == first) for name in names]
    of_user = known.places.of_user(user)
    of_categories = [known.places.of_category(name) for name in names]
    elsewhere, is_all = find_elsewhere(redis, user)
    return UserView(
        user=user,
        chosen=explained[0],
        explained=explained,
        places=[
            places_of(found, of_user, "user") + places_of(found, of, "category")
            for found, of in zip(explained, of_categories, strict=True)
        ],
        rules=of_user.path,
        category_rules=[of.path for of in of_categories],
        categories=sorted({*known.policies.categories, *waiting}),
        standing=list(islice(inspection.backlog(user), MAX_SHOWN)),
        waiting=sum(waiting.values()),
        elsewhere=elsewhere,
        is_all=is_all,
        totals={name.decode(): int(n) for name, n in sorted(usage.items()) if n.isdigit()},
    )


def _uses(found: Explanation, places: Sequence[str]) -> list[dict[str, Any]]:
    return [asdict(use) | {"at": at} for use, at in zip(found.uses, places, strict=True)]
