"""What stands in Redis, read for people: a user's backlogs, and what the user has used of each rule.

Changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any, Final, Literal

from redis import Redis

from notifier.dispatch.circuits import Held, find_routes
from notifier.limiter import Hold, RedisLimiter
from notifier.operations.forecast import Expected, Forecast, find_forecast
from notifier.rules.hours import closed_minutes, closed_times, text_of
from notifier.rules.policies import Policies, Rules
from notifier.rules.policy import Category, Policy
from notifier.rules.preferences import Preferences
from notifier.rules.quiet_hours import ByClock, said
from notifier.rules.zones import Zone, zone_or
from notifier.scripts.keys import job_key, redis_key, user_key
from notifier.scripts.rule_table import decoded
from notifier.settings.provenance import Places
from notifier.store.connection import redis_answers, time_us
from notifier.store.exchange import exchange
from notifier.units import from_bytes, moment, to_bytes

CHUNK: Final = 100
UNKNOWN: Final = Expected(None)
PREFERENCES: Final = "preferences and file"
CHOSEN_BY: Final = {"gap": "gap", "burst": "tier", "quiet": "quiet_hours", "send": "send_hours"}  # else windows
Scope = Literal["user", "category"]


@dataclass(frozen=True, slots=True)
class Standing:
    """One notification in a user's backlog. place: from 1. expires_at: or never.

    expected_at: when it should go, reckoned for the first thousand; None for the others, and for one that expires
    before. not_before: what else than the user's rules decides, so that it may go later, or why it will not go.

    count: how many it stands for, those that it superseded and itself. held_by: the rule that lets it go last, such
    as 'user 10/1m'; '' where it waits for none.
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
    """A rule and what a user has used of it.

    scope: whose rule it is. rule: as in the file, '10/1m' or 'gap 1.5s'. used: sends that count now,
    those in flight among them; None for a gap. free_at: when the rule admits the next send; None is now.
    """

    scope: Scope
    rule: str
    used: int | None
    limit: int | None
    free_at: datetime | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a notification of a category may or may not go to a user now.

    next_at: the first moment the rules admit one; None is now. decided_by: the rule that holds it, if one does.
    waiting: how many stand in each of the user's backlogs. zone: whose clock decides, where a rule goes by one.
    preferences: what the user chose, see `Preferences.as_dict`.
    newcomer_at: when one that is accepted now should go, behind what waits; not_before: see `Standing`.
    routes: of the category's app, those whose circuit is open or whose project is full: what goes by them waits.
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
    newcomer_at: datetime | None = None
    not_before: str = ""
    routes: tuple[Held, ...] = ()
    preferences: Mapping[str, Any] = field(default_factory=dict)


class Inspection:
    """Reads the state of one Redis. Every method raises RedisUnusableError where it does not answer."""

    def __init__(self, redis: Redis, policies: Policies) -> None:
        self._redis: Any = redis
        self._policies = policies

    def backlog(self, user: str, category: str | None = None) -> Iterator[Standing]:
        """A user's backlogs, or the one of a category, in the order of each backlog; a hundred are read at a time."""
        with redis_answers():
            forecast = exchange(self._redis, find_forecast(self._policies, user))
            for name in self._categories(user) if category is None else [category]:
                yield from self._backlog(user, name, forecast)

    def explain(self, user: str, category: str, zone: str | None = None, *, newcomer: bool = True) -> Explanation:
        """The rules for a user and a category, what is used of each, and when the next may go.

        zone: whose clock decides; None is that of the first that waits, or the configured one.
        newcomer: whether to reckon when one that is accepted now should go.
        """
        with redis_answers():
            preferences = self._preferences(user)
            policies = self._policies.under({user: preferences})
            rules = policies.rules(user, category)
            now_us = time_us(self._redis)
            held = RedisLimiter(self._redis, clock=str(now_us)).peek(user, rules.without_local_time)
            clock = self._clock(user, policies, rules, zone, now_us)
            of_user = replace(rules.user, quiet=(), send=()) if rules.category.ignores_quiet else rules.user
            uses = self._uses(user, None, rules.user, now_us)
            uses += self._by_clock(user, None, of_user, clock.zone, now_us)
            uses += self._uses(user, rules.category.name, rules.category.policy, now_us)
            uses += self._by_clock(user, rules.category.name, rules.category.policy, clock.zone, now_us)
            expected = self._newcomer(user, category) if newcomer else UNKNOWN
            waiting = self.waiting(user)
            routes = self._closed_routes(rules.category.app)
        at_us, decided_by = (now_us + held.time_left_us, held.rule) if isinstance(held, Hold) else (now_us, None)
        if mute := policies.muted(user, category, now_us):
            at_us, decided_by = (mute.until_us, "the user's mute") if mute.until_us > at_us else (at_us, decided_by)
        if not rules.category.bypass:
            at_us, by = clock.first_open(at_us)
            decided_by = decided_by if by is None else said(by, category, at_us, clock.zone)
        return Explanation(
            user=user,
            category=category,
            lane=rules.category.lane,
            bypass=rules.category.bypass,
            uses=uses,
            zone=clock.zone.name if rules.uses_local_time else None,
            next_at=moment(at_us) if at_us > now_us else None,
            decided_by=decided_by,
            waiting=waiting,
            newcomer_at=expected.at,
            not_before=expected.not_before,
            preferences=preferences.as_dict(),
            routes=routes,
        )

    def _preferences(self, user: str) -> Preferences:
        text = self._redis.hget(redis_key("preferences"), to_bytes(user))
        return Preferences() if text is None else decoded(from_bytes(text))

    def _closed_routes(self, app: str | None) -> tuple[Held, ...]:
        """Those by which nothing goes now: a notification that names no app goes by those of its category's."""
        held = exchange(self._redis, find_routes())
        return tuple(each for each in held if each.state != "busy" and _app_of(each.route) == app)

    def waiting(self, user: str) -> dict[str, int]:
        """How many stand in each of the user's backlogs."""
        return {name: self._redis.zcard(_backlog_key(user, name)) for name in self._categories(user)}

    def _newcomer(self, user: str, category: str) -> Expected:
        return exchange(self._redis, find_forecast(self._policies, user, newcomer=category)).newcomer or UNKNOWN

    def _clock(self, user: str, policies: Policies, rules: Rules, zone: str | None, now_us: int) -> ByClock:
        """The rules that go by the clock, for the first that waits, or for one that came now."""
        head = self._redis.zrange(_backlog_key(user, rules.category.name), 0, 0)
        named, since = self._redis.hmget(job_key(head[0]), "push_zone", "push_since") if head else (None, now_us)
        zone = zone or (named.decode() if named else None) or policies.zone_of(user)
        return ByClock(
            rules,
            zone_or(zone, self._policies.zone, now_us),
            int(since or 0),
            self._policies.lead_us,
            partial(self._latest, _sent_key(user, None)),
            partial(self._latest, _sent_key(user, rules.category.name)),
        )

    def _latest(self, key: str, n: int) -> int | None:
        found = self._redis.zrevrange(key, n - 1, n - 1, withscores=True)
        return int(found[0][1]) if found else None

    def _by_clock(self, user: str, category: str | None, policy: Policy, zone: Zone, now_us: int) -> Iterator[Use]:
        """The uses of what goes by the clock."""
        scope: Scope = "user" if category is None else "category"
        for window in policy.calendar:
            sends = self._redis.zrevrange(_sent_key(user, category), 0, window.limit - 1, withscores=True)
            # What was sent counts until the day after its own begins.
            starts = [zone.next_start(window.unit, int(at)) for _, at in sends]
            free_us = starts[-1] if len(starts) == window.limit else 0
            used = sum(start > now_us for start in starts)
            yield Use(scope, str(window), used, window.limit, moment(free_us) if free_us > now_us else None)
        of_each = [(f"quiet {hours}", closed_minutes((hours,), ())) for hours in policy.quiet]
        of_each += [(f"send {text_of(hours)}", closed_minutes((), (hours,))) for hours in policy.send]
        for text, minutes in of_each:
            times = closed_times(minutes)
            ends = max((zone.first_outside(c.from_us, c.to_us, now_us, c.every_us) for c in times), default=now_us)
            yield Use(scope, text, None, None, moment(ends) if ends > now_us else None)

    def _categories(self, user: str) -> list[str]:
        # Beside the categories stand what the scripts note of the user, under names that no category can have.
        return sorted(name.decode() for name in self._redis.hkeys(user_key("lines", user)) if name[:1] != b"#")

    def _backlog(self, user: str, category: str, forecast: Forecast) -> Iterator[Standing]:
        place, more = 0, True
        while more:
            ids = self._redis.zrange(_backlog_key(user, category), place, place + CHUNK - 1)
            more = len(ids) == CHUNK
            with self._redis.pipeline(transaction=False) as pipe:
                for job_id in ids:
                    pipe.hmget(job_key(job_id), "origin", "meta", "push_attempts", "push_deadline", "push_count")
                jobs = pipe.execute()
            for job_id, (origin, meta, attempts, deadline, count) in zip(ids, jobs, strict=True):
                place += 1
                expected = forecast.of(job_id.decode()) or UNKNOWN
                yield Standing(
                    category=category,
                    place=place,
                    job_id=job_id.decode(),
                    lane=(origin or b"").decode(),
                    priority=str(json.loads(meta or b"{}").get("priority", "normal")),
                    attempts=int(attempts or 0),
                    expected_at=expected.at,
                    not_before=expected.not_before,
                    held_by=expected.held_by,
                    expires_at=None if deadline is None else moment(float(deadline)),
                    count=int(count or 1),
                )

    def _uses(self, user: str, category: str | None, policy: Policy, now_us: int) -> list[Use]:
        limiter = RedisLimiter(self._redis, clock=str(now_us))  # all as of one moment

        def left_us(rule: Policy, cost: int = 1) -> int:
            rules = rule if category is None else Rules(Policy(), Category(category, policy=rule))
            answer = limiter.peek(user, rules, cost=cost)
            return answer.time_left_us if isinstance(answer, Hold) else 0

        def use(text: str, used: int | None, limit: int | None, rule: Policy) -> Use:
            free_us = left_us(rule)
            free_at = moment(now_us + free_us) if free_us else None
            return Use("user" if category is None else "category", text, used, limit, free_at)

        uses = []
        for window in policy.windows:
            used = self._sent_since(user, category, now_us - window.interval_us)
            uses.append(use(str(window), used, window.limit, Policy((window,))))
        if policy.gap_us:
            rule = Policy(gap_us=policy.gap_us)
            uses.append(use(str(rule), None, None, rule))
        if (burst := policy.burst) is not None:
            # All of it is there once it is full again, and each send is so long in coming back.
            used = -(-left_us(Policy(burst=burst), burst.limit) // burst.every_us)
            uses.append(use(str(burst), used, burst.limit, Policy(burst=burst)))
        return uses

    def _sent_since(self, user: str, category: str | None, since_us: int) -> int:
        key = f"{{{user}}}:{category}" if category else f"{{{user}}}"
        in_set = int(self._redis.zcount(redis_key("sent", key), f"({since_us}", "+inf"))
        totals = [
            (int(at), int(total)) for at, total in self._redis.zrange(redis_key("counts", key), 0, -1, withscores=True)
        ]
        before = max((total for at, total in totals if at <= since_us), default=0)
        return in_set + (totals[-1][1] - before if totals else 0)


def places_of(found: Explanation, places: Places, scope: Scope) -> list[str]:
    """Where each of the uses of this scope stands, in their order."""
    windows = iter(places.windows)
    others = {"gap": places.gap, "burst": places.burst, "quiet": places.quiet, "send": places.send}
    chosen = found.preferences.keys() if scope == "user" else set()

    def place(use: Use) -> str:
        kind = use.rule.partition(" ")[0]
        if {"tier", CHOSEN_BY.get(kind, "windows")} & chosen:
            return PREFERENCES
        return others[kind] if kind in others else next(windows)

    return [place(use) for use in found.uses if use.scope == scope]


def _sent_key(user: str, category: str | None) -> str:
    return user_key("sent", user) + (f":{category}" if category else "")


def _backlog_key(user: str, category: str) -> str:
    return user_key("line", user, category)


def _app_of(route: str) -> str | None:
    return route.partition("@")[0].partition("/")[2] or None
