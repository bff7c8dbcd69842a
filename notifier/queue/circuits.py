"""Circuits: workers report what they have seen of a route, and people read which routes are held."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from itertools import chain
from operator import attrgetter
from typing import Any, Final, Literal, cast

from notifier.scripts.keys import redis_key, rq_key
from notifier.scripts.loader import Call, script
from notifier.scripts.records import CircuitFields
from notifier.store.exchange import Commands, Exchange
from notifier.units import clock_us, from_bytes, moment, to_bytes

Kind = Literal["unreachable", "fault", "failing", "full", "busy", "recovering", "paused"]
Change = Literal["opened", "closed", "paused", "resumed", "alone", ""]
FULL, BUSY = "|full", "|busy|"
OVERALL: Final = "overall:"  # before a category whose rate for all users, `overall`, is used up
FAR_US: Final = 4_102_444_800_000_000  # 2100, as in routes.lua
# The kind of a state of `routes.lua`; an open circuit says its kind itself.
KINDS: Final[dict[str, Kind]] = {"full": "full", "busy": "busy", "closing": "recovering", "paused": "paused"}
SCOPES: Final = ("category", "user", "lane", "route")
BUSY_SHOWN_US = 2_000_000  # a route that nobody used for a while is busy for a moment until its limit has grown
# A field of a worker's hash rq:worker:<name>: JSON {route: how many sends it may have under way}.
LIMITS = "push_limits"


def circuit(args: CircuitFields) -> Call[Change]:
    """Report what a worker has seen of a route, or pause or resume it. The reply is the change."""
    return Call(script("circuit"), [], args, lambda reply: cast("Change", str(reply, "utf-8")))


def is_pause(name: str) -> bool:
    """Whether a name of `routes.lua` is a pause of something other than a route."""
    scope, colon, _ = name.partition(":")
    return bool(colon) and scope in {"all", *SCOPES}


def paused_words(name: str) -> str:
    """Return the name of a pause as people write it."""
    return "all" if name == "all:" else name if is_pause(name) else f"route:{name}"


State = Literal["stopped", "slow"]
Whose = Literal["provider", "ours", "person"]
WORDS: Final[dict[Kind, str]] = {
    "unreachable": "it cannot be reached",
    "failing": "it answers with errors",
    "fault": "it refuses our key or our settings",
    "full": "its quota is used up",
    "busy": "it takes no more at once",
    "recovering": "it works again; what waited is let go in batches",
    "paused": "paused",
}


@dataclass(frozen=True, slots=True)
class Held:
    """A route that is stopped or slow.

    state: 'stopped': nothing is sent by it; 'slow': less is sent than waits. All other routes work.
    kind: why. If stopped: 'unreachable', 'failing' (its answers are errors), 'fault' (it refuses our key or settings),
    'full' (it said that its quota is used up) or 'paused' (by a person). If slow: 'full' (our count of its quota is at
    the limit), 'busy' (as many sends are in flight as it can handle, and others have waited for two seconds) or
    'recovering'.
    reason: the observation, such as 'connection refused at localhost:8443'.
    who: the person who paused it.
    since: when it began.
    next_at: when the next notification is sent by it, as a probe or because there is room; None for a pause without an
    end.
    waiting: how many users, and notifications for the rest of their devices, wait for it; without the notifications
    behind them in a backlog.
    at_once: how many sends all workers together may have in flight.
    """

    route: str
    state: State
    next_at: datetime | None
    waiting: int
    kind: Kind = "unreachable"
    reason: str = ""
    since: datetime | None = None
    at_once: int | None = None
    who: str = ""

    @property
    def why(self) -> str:
        """Why it is not working, for people."""
        if self.kind == "paused":
            return f"paused by {self.who or 'somebody'}" + (f": {self.reason}" if self.reason else "")
        if self.at_once is not None:
            return f"its provider serves {self.at_once} at once"
        if self.route.startswith(OVERALL):
            return "as many as overall allows have gone to all users"
        if self.kind == "full" and not self.reason:
            return "our count of its quota is at the limit"
        return self.reason or WORDS.get(self.kind, self.kind)

    @property
    def whose(self) -> Whose:
        """Return who has to mend it: the provider, we, or the person who paused it."""
        if self.kind == "paused":
            return "person"
        return "ours" if self.kind == "fault" or (self.kind == "full" and not self.reason) else "provider"

    def as_json(self) -> dict[str, Any]:
        """All of it as plain data. what: the name by which people pause and resume it."""
        return asdict(self) | {"what": paused_words(self.route), "why": self.why, "whose": self.whose}


def find_routes() -> Exchange[list[Held]]:
    """All routes that are not working, in their order; empty when all is well."""
    found = [held for held in (yield from find_holds()) if not is_pause(held.route)]
    if not any(held.kind == "busy" for held in found):
        return found
    (now,) = yield Commands(lambda pipe: pipe.time())
    before = moment(clock_us(now) - BUSY_SHOWN_US)
    limits = yield from find_limits()
    lanes = [held for held in found if held.kind == "busy" and held.next_at and held.next_at <= before]
    busy = [replace(held, since=held.next_at, at_once=limits.get(held.route)) for held in lanes]
    return by_route([[held for held in found if held.kind != "busy"], busy])


def find_limits() -> Exchange[dict[str, int]]:
    """How many sends all workers together may have under way, by route."""
    (workers,) = yield Commands(lambda pipe: pipe.smembers(rq_key("workers")))
    told = yield Commands(lambda pipe: [pipe.hget(str(key, "utf-8"), LIMITS) for key in workers])
    limits: Counter[str] = Counter()
    for each in told:
        limits.update(json.loads(each) if each else {})
    return limits


def by_route(
    found: Iterable[Iterable[Held]], which: Callable[[Held], object] = attrgetter("route", "kind")
) -> list[Held]:
    """Merge holds of several lanes and partitions: one for each route and kind.

    It has the earliest `since` and `next_at`, and the sum of `waiting`. which: holds with the same value become one, in
    the worst of their states.
    """
    alike: dict[object, list[Held]] = {}
    for held in chain.from_iterable(found):
        alike.setdefault(which(held), []).append(held)
    return sorted(map(_as_one, alike.values()), key=lambda held: held.route)


def worst(found: Iterable[Held]) -> dict[str, Held]:
    """Each route that is not working, by its name, in the worst of its states; see `by_route`."""
    return {held.route: held for held in by_route([found], attrgetter("route"))}


def _as_one(alike: Sequence[Held]) -> Held:
    state = max(held.state for held in alike)  # 'stopped' comes after 'slow'
    same = [held for held in alike if held.state == state]
    first = min(same, key=lambda held: held.since or moment(FAR_US))
    next_at = min((held.next_at for held in same if held.next_at is not None), default=None)
    return replace(first, next_at=next_at, waiting=sum(held.waiting for held in alike))


def find_holds() -> Exchange[list[Held]]:
    """All holds: routes, one for each reason, and pauses of other things."""
    (names,) = yield Commands(lambda pipe: pipe.smembers(redis_key("routes")))
    ordered = sorted(from_bytes(name) for name in names)

    def ask(pipe: Any) -> None:
        for name in ordered:
            pipe.hgetall(to_bytes(redis_key("route", name)))
            pipe.zcard(to_bytes(redis_key("waiting_for_route", name)))

    found = yield Commands(ask)
    return [_held(name, *found[2 * n : 2 * n + 2]) for n, name in enumerate(ordered) if found[2 * n]]


def _held(name: str, fields: dict[bytes, bytes], waiting: int) -> Held:
    held = {str(key, "utf-8"): from_bytes(value) for key, value in fields.items()}
    state = held["state"]
    since, until_us = moment(int(held["since"])) if "since" in held else None, int(held["until"])
    return Held(
        name if is_pause(name) else name.partition(BUSY)[0].removesuffix(FULL),
        "stopped" if state in {"open", "paused"} else "slow",
        moment(until_us) if until_us < FAR_US else None,
        waiting,
        KINDS.get(state) or cast("Kind", held["kind"]),
        held.get("reason", "") if state in {"open", "paused"} else "",
        since,
        who=held.get("who", ""),
    )
