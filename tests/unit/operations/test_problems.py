"""What is wrong now, in sentences: what, since when, why, whose it is to mend, how many wait, and what comes next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from notifier.dispatch.circuits import Held
from notifier.dispatch.health import Alive
from notifier.dispatch.waits import Waits
from notifier.operations.problems import find_problems
from notifier.operations.stats import LaneNow, Now, Stats

AT = datetime(2026, 11, 23, 12, tzinfo=UTC)
WELL = Alive("w1", "vm", 100_000)
KEY = Held("apns", "stopped", AT + timedelta(seconds=20), 3, "fault", "403 InvalidProviderToken", AT)


def now(**fields: Any) -> Now:
    base: dict[str, Any] = {
        "lanes": {"default": LaneNow(7, 20, 0, 0.0, 5.0)},
        "later": 0,
        "in_flight": 0,
        "routes": [],
        "workers": [WELL],
        "totals": {},
        "memory": (1, 0),
        "minute": 0,
    }
    return Now(**base | fields)


def said(of: Now) -> list[str]:
    at = AT + timedelta(minutes=4)
    return [problem.text(at) for problem in find_problems(Stats(of).as_json()["now"])]


def test_a_stopped_route_says_how_many_wait_for_it() -> None:
    """Those who wait for it, whatever else others wait for; of a category with the name of a route, none."""
    waits = [Waits("route", "apns stopped", 6_912), Waits("rule", "apns 1/1d", 5), Waits("route", "apns2 stopped", 1)]
    assert said(now(routes=[KEY], waits=waits)) == [
        "apns stopped for 4 min 00 s: 403 InvalidProviderToken, ours to mend; 6,912 wait; next probe in 0 ms"
    ]


def test_a_pause_says_by_whom() -> None:
    """Who, why, how many wait for it, and until when."""
    pause = Held("category:chat", "stopped", None, 1, "paused", "wrong text", AT, None, "anna")
    assert said(now(pauses=[pause], waits=[Waits("paused", "the pause of category:chat", 1)])) == [
        "category:chat paused for 4 min 00 s by anna: wrong text, until it is resumed; 1 waits"
    ]


def test_suspended_says_since_when_something_waits() -> None:
    """RQ does not note since when it is suspended; for how long the oldest has waited tells it."""
    (line,) = said(now(suspended=True))
    assert line.endswith("until rq resume; the oldest has waited for 5.0 s; 7 wait")


def test_when_it_is_empty_is_not_promised_while_something_is_stopped() -> None:
    """No time is said as long as some cannot go at all: what keeps them is said."""

    def empty(**fields: Any) -> Any:
        return Stats(now(**fields)).as_live()["now"]["empty"]

    assert empty(routes=[KEY]) == "not while apns is stopped"
    assert empty(suspended=True) == "not while all is suspended"
    assert empty(workers=[]) == "not while no worker works"
    assert empty(lanes={"default": LaneNow(0, 0, 0, 0.0)}) == "nothing waits"
    assert empty() == "not at this rate"
