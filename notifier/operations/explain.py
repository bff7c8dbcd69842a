"""Read for people a user's backlogs, and how much the user has used of each rule. Changes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from itertools import count
from typing import Any, Final, Literal

from redis import Redis

from notifier.forecast.expected import FIELDS, MUTED, Expected, Forecast, find_record, find_sends
from notifier.notification.json_values import fields_of
from notifier.operations.in_force import Known
from notifier.queue.backlogs import queue_keys
from notifier.queue.circuits import OVERALL, Held
from notifier.queue.history import WORDS
from notifier.queue.pauses import which_holds
from notifier.rules.calendar_windows import CalendarWindow
from notifier.rules.category import DEFAULT_CATEGORY, Category
from notifier.rules.evaluator import Sends, opens
from notifier.rules.hours import closed_minutes, closed_times, text_of
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import Policy
from notifier.rules.quiet_hours import ByClock, said
from notifier.rules.zones import zone_or
from notifier.scripts.keys import redis_key
from notifier.scripts.rule_table import share_of
from notifier.settings.provenance import Places
from notifier.store.connection import redis_answers
from notifier.store.exchange import exchange
from notifier.units import moment

UNKNOWN: Final = Expected(None)
DELETED: Final = Expected(None, "deleted by RQ's tools")
PREFERENCES: Final = "preferences and file"
# A rule's key in the file, by the first word of its text. A window has no such word: its text begins with its limit.
KEYS: Final = {"gap": "gap", "burst": "burst", "quiet": "quiet_hours", "send": "send_hours", "overall": "overall"}
Scope = Literal["user", "category"]


@dataclass(frozen=True, slots=True)
class Standing:
    """One notification in a user's backlog. place: from 1. expires_at: None is never.

    expected_at: when it should go; None if that is unknown, as far back in a backlog, or if it expires before.
    not_before: why it may go later than the user's rules admit, or why it will not go.

    count: itself and the notifications that it superseded. held_by: the rule that holds it the longest,
    such as 'user 10/1m'; '' if none does.
    """

    category: str
    place: int
    job_id: str
    lane: str
    priority: str
    attempts: int
    expected_at: datetime | None
    expires_at: datetime | None
    count: int = 1
    not_before: str = ""
    held_by: str = ""


@dataclass(frozen=True, slots=True)
class Use:
    """A rule, and how much a user has used of it.

    scope: whose rule it is. rule: as in the file, '10/1m' or 'gap 1.5s'. used: the sends that count now, also those
    in flight; None if the rule counts none. free_at: when the rule admits the next send; None is now.
    at: where the rule is written, see `placed`.
    """

    scope: Scope
    rule: str
    used: int | None
    limit: int | None
    free_at: datetime | None
    at: str = ""


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a notification of a category may or may not go to a user now.

    next_at: when the rules first admit it; None is now. decided_by: the rule that holds it until then, if one does.
    waiting: how many notifications each of the user's backlogs has. zone: the time zone, if a rule uses local time.
    preferences: the user's choices, see `Preferences.as_dict`; of the mutes, those in force.
    routes: those of the category's app that do not work, so notifications wait for them. paused: the pause that holds
    it. suspended: whether `rq suspend` stops the workers. user_rules, category_rules: where the rules are written, see
    `placed`.
    """

    user: str
    category: str
    lane: str
    bypass: bool
    uses: list[Use]
    next_at: datetime | None
    decided_by: str | None
    waiting: dict[str, int]
    zone: str | None = None
    routes: tuple[Held, ...] = ()
    paused: Held | None = None
    suspended: bool = False
    preferences: Mapping[str, Any] = field(default_factory=dict)
    user_rules: str = ""
    category_rules: str = ""

    def as_json(self) -> dict[str, Any]:
        paused = None if self.paused is None else self.paused.as_json()
        return asdict(self) | {"routes": [held.as_json() for held in self.routes], "paused": paused}


class Inspection:
    """The state of a user in one Redis. Raises RedisUnusableError if Redis does not answer."""

    def __init__(self, redis: Redis, policies: Policies, user: str, partitions: int = 1) -> None:
        """partitions: of the fleet. Each has its share of the `overall` paces of all users."""
        self._redis: Any = redis
        self._user = user
        self._share = partitions
        self.record = exchange(redis, find_record(user))
        self._policies = policies.under({user: self.record.preferences})

    def backlog(self, category: str | None = None) -> Iterator[Standing]:
        """Yield the first thousand notifications of each backlog, or of one category's, in order."""
        forecast = Forecast(self._policies, self._user, self.record)
        for name, jobs in self.record.backlogs.items():
            for place, (job_id, _, fields) in enumerate(jobs if category in {None, name} else (), 1):
                job = dict(zip(FIELDS, fields, strict=True))
                expected = DELETED if job["origin"] is None else forecast.by_job.get(job_id.decode()) or UNKNOWN
                deadline = job["push_deadline"]
                yield Standing(
                    category=name,
                    place=place,
                    job_id=job_id.decode(),
                    lane=(job["origin"] or b"").decode(),
                    priority=str(fields_of(job["meta"]).get("priority", "normal")),
                    attempts=int(job["push_attempts"] or 0),
                    expected_at=expected.at,
                    not_before=expected.not_before,
                    held_by=expected.held_by,
                    expires_at=None if deadline is None else moment(float(deadline)),
                    count=int(job["push_count"] or 1),
                )

    def explain(self, category: str | None = None, zone: str | None = None) -> Explanation:
        """Return the rules for the user and a category, the use of each, and when the next notification may go.

        category: None is the first with a backlog. zone: the time zone; None is that of the backlog's head, or the
        configured one.
        """
        user, policies, record = self._user, self._policies, self.record
        category = category or next((name for name, n in record.waiting.items() if n), DEFAULT_CATEGORY)
        rules, now_us = policies.rules(user, category), record.now_us
        with redis_answers():
            of_user, of_category = exchange(self._redis, find_sends(user, (category,))).values()
            paced = self._overall(rules.category, now_us)
        named, since_us = record.head(category)
        zones = zone_or(zone or named or policies.zone_of(user), policies.zone, now_us)
        clock = ByClock(rules, zones, since_us, policies.lead_us, of_user.latest, of_category.latest)
        from_us, decided_by = now_us, None  # the user's rules are evaluated as of from_us
        for use in paced:
            if use.free_at is not None:
                from_us, decided_by = round(use.free_at.timestamp() * 1e6), f"{category} {use.rule}"
        if (limited_us := record.limited.get(category, 0)) > from_us:
            from_us, decided_by = limited_us, WORDS["device"]
        mute = policies.muted(user, category, from_us)
        at_us, by = opens(rules, of_user, of_category, from_us, mute=mute, clock=clock)
        if by is not None and at_us > from_us:
            decided_by = MUTED if by[1] is mute else said(by, category, at_us, clock.zone)
        at_us = max(at_us, from_us)
        return Explanation(
            user=user,
            category=category,
            lane=rules.category.lane,
            bypass=rules.category.bypass,
            uses=[*_uses("user", clock, of_user, now_us), *_uses("category", clock, of_category, now_us), *paced],
            zone=clock.zone.name if rules.uses_local_time else None,
            next_at=moment(at_us) if at_us > now_us else None,
            decided_by=decided_by,
            waiting=dict(record.waiting),
            preferences=record.preferences.as_dict(),
            routes=tuple(_not_working(record.routes, rules.category)),
            paused=which_holds(record.pauses, user, category, rules.category.lane),
            suspended=record.suspended,
        )

    def outside(self) -> str:
        """Say how many notifications of all users are in no backlog; '' if none is."""
        with redis_answers(), self._redis.pipeline(transaction=False) as pipe:
            for queue in queue_keys():
                pipe.llen(queue)
            *queued, later = pipe.zcard(redis_key("later")).execute()
        counts = (sum(queued), "queued"), (later, "for a retry, a route or a time of their own")
        return ", ".join(f"{n:,} {words}" for n, words in counts if n)

    def _overall(self, category: Category, now_us: int) -> list[Use]:
        """Return how much all users together have used of the category's `overall` pace; see `overall.lua`."""
        if (window := category.overall) is None:
            return []
        key, since_us = redis_key("overall", category.name), now_us - window.interval_us
        limit = share_of(window.limit, self._share)
        used, rank = self._redis.zcount(key, f"({since_us}", "+inf"), limit - 1
        last = self._redis.zrevrange(key, rank, rank, withscores=True)
        free_us = min(int(last[0][1]), now_us) + window.interval_us if last else 0
        of_one = f", the share of one of {self._share} partitions" if self._share > 1 else ""
        return [Use("category", f"overall {window}{of_one}", used, limit, _later(free_us, now_us))]


def _by_clock(scope: Scope, clock: ByClock, sends: Sends, now_us: int) -> Iterator[Use]:
    rules, policy = clock.rules, _policy_of(scope, clock.rules)
    for window in policy.calendar:
        # A send counts until the next day, week or month begins.
        latest = [at for n in range(1, window.limit + 1) if (at := sends.latest(n)) is not None]
        starts = [clock.zone.next_start(window.unit, at) for at in latest]
        free_us = next(iter(starts[max(0, window.limit - rules.category.cost) :]), 0)
        used = sum(start > now_us for start in starts)
        yield Use(scope, str(window), used, window.limit, _later(free_us, now_us))
    if scope == "user" and rules.category.ignores_quiet:
        return
    of_each = [(f"quiet {hours}", closed_minutes((hours,), ())) for hours in policy.quiet]
    of_each += [(f"send {text_of(policy.send)}", closed_minutes((), policy.send))] if policy.send else []
    for text, minutes in of_each:
        ends = max((clock.after(hours, now_us) for hours in closed_times(minutes)), default=now_us)
        yield Use(scope, text, None, None, _later(ends, now_us))


def _uses(scope: Scope, clock: ByClock, sends: Sends, now_us: int) -> Iterator[Use]:
    policy, cost = _policy_of(scope, clock.rules), clock.rules.category.cost
    for rule in policy.listed:
        if not isinstance(rule, CalendarWindow):
            used = rule.used(sends, now_us)
            most = None if used is None else rule.max_cost
            yield Use(scope, str(rule), used, most, _later(rule.opens(sends, cost), now_us))
    yield from _by_clock(scope, clock, sends, now_us)


def _policy_of(scope: Scope, rules: Rules) -> Policy:
    return rules.user if scope == "user" else rules.category.policy


def _later(at_us: int, now_us: int) -> datetime | None:
    return moment(at_us) if at_us > now_us else None


def placed(found: Explanation, known: Known) -> Explanation:
    """Add where the rules are written, and each use's rule."""
    places: dict[Scope, Places] = {
        "user": known.places.of_user(found.user),
        "category": known.places.of_category(found.category),
    }
    numbers = {scope: count() for scope in places}

    def place(use: Use) -> str:
        key = KEYS.get(use.rule.partition(" ")[0], "windows")
        if use.scope == "user" and {"tier", key} & found.preferences.keys():
            return PREFERENCES
        return places[use.scope].at(key, *([next(numbers[use.scope])] if key == "windows" else ()))

    uses = [replace(use, at=place(use)) for use in found.uses]
    return replace(found, uses=uses, user_rules=places["user"].path, category_rules=places["category"].path)


def places_by_rule(found: Explanation) -> dict[str, str]:
    """Map each rule's words in the history, such as 'user 10/1m', 'chat gap 5s', 'quiet hours', to its places."""
    owner = {"user": "user", "category": found.category}
    by_words = defaultdict[str, list[str]](list)
    for use in found.uses:
        by_clock = use.rule.startswith(("quiet ", "send "))
        by_words["quiet hours" if by_clock else f"{owner[use.scope]} {use.rule}"].append(use.at)
    return {rule: ", ".join(dict.fromkeys(places)) for rule, places in by_words.items()}


def _not_working(routes: Sequence[Held], category: Category) -> Iterator[Held]:
    """Yield the routes of the category's app: a notification that names no app goes by these."""
    overall = OVERALL + category.name
    for each in routes:
        if each.route == overall or (each.kind != "busy" and _app_of(each.route) == (category.app or "")):
            yield each


def _app_of(route: str) -> str | None:
    return None if route.startswith(OVERALL) else route.partition("@")[0].partition("/")[2]
