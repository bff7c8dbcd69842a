"""What is wrong now, in sentences: what, since when, why, whose it is to mend, how many wait, and what comes next."""

import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from notifier.errors import RedisUnusableError
from notifier.operations.problems import find_problems, problem_lines
from notifier.operations.stats import LaneNow, Now, Stats, _together
from notifier.queue.circuits import Held
from notifier.queue.health import Alive
from notifier.queue.minutes import Numbers
from notifier.queue.waits import Waits
from notifier.rules.category import LANES
from notifier.store.connection import OUT_OF_MEMORY
from notifier.store.pipelining import Told

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
        "served": {0: 1},
    }
    return Now(**base | fields)


def said(of: Now) -> list[str]:
    at = AT + timedelta(minutes=4)
    return [problem.text(at) for problem in find_problems(Stats(of).as_json()["now"])]


def test_a_stopped_route_says_how_many_wait_for_it() -> None:
    """Those who wait for it, whatever else others wait for; of a category with the name of a route, none."""
    waits = [Waits("route", "apns stopped", 6_912), Waits("rule", "apns 1/1d", 5), Waits("route", "apns2 stopped", 1)]
    (line,) = said(now(routes=[KEY], waits=waits))
    assert line.startswith("apns stopped for 4 min (since 12:00): 403 InvalidProviderToken, ours to mend; 6,912 ")
    assert line.endswith(" wait; next probe in 0 ms")


def test_a_route_is_told_once_in_the_worst_of_its_states() -> None:
    """One that is silent is stopped, and takes no more at once too: the same ones wait for both."""
    waits = [Waits("route", "apns stopped", 2), Waits("route", "apns slow", 16)]
    (line,) = said(now(routes=[replace(KEY, state="slow", kind="busy", at_once=1), KEY], waits=waits))
    assert line.startswith("apns stopped for 4 min")
    assert "; 18 wait;" in line
    (slow,) = find_problems(live(routes=[replace(KEY, state="slow", kind="busy", at_once=1)]))
    assert (slow.level, "to mend" in slow.says) == ("warning", False)


def test_a_pace_that_is_full_is_no_problem() -> None:
    """It holds back what the configuration says; that a provider's quota is used up is told still."""
    pace = Held("overall:heavy", "slow", AT + timedelta(seconds=20), 3, "full", since=AT)
    assert said(now(routes=[pace], waits=[Waits("route", "heavy overall", 9)])) == []
    assert said(now(routes=[pace, replace(pace, route="fcm")])) == [
        "fcm slow for 4 min (since 12:00): our count of its quota is at the limit, ours to mend"
    ]


def test_all_times_are_by_the_clock_of_redis() -> None:
    """What is told is as of the moment at which Redis was asked; this machine's clock is months away."""
    at_s = (AT + timedelta(minutes=4)).timestamp()
    (line,) = problem_lines(Stats(now(routes=[KEY], at_s=at_s)).as_json())
    assert line.startswith("✖ apns stopped for 4 min (since 12:00): 403 InvalidProviderToken")


def test_a_shell_is_told_by_its_own_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """As all other times of `stats` are; a page tells them all by UTC."""
    told = Stats(now(routes=[replace(KEY, since=AT - timedelta(hours=7))], at_s=AT.timestamp())).as_json()
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "Asia/Kathmandu")
        time.tzset()
        (line,) = problem_lines(told)
    time.tzset()
    assert "(since 10:45)" in line
    assert "(since 05:00)" in find_problems(told["now"])[0].text(told["at"])


def test_what_began_by_a_clock_that_is_set_back_since_began_just_now() -> None:
    """No time is told that is less than none."""
    (line,) = said(now(routes=[replace(KEY, since=AT + timedelta(hours=1))]))
    assert line.startswith("apns stopped for 0 ms: 403 InvalidProviderToken")


def test_a_pause_says_by_whom() -> None:
    """Who, why, how many wait for it, and until when."""
    pause = Held("category:chat", "stopped", None, 1, "paused", "wrong text", AT, None, "anna")
    assert said(now(pauses=[pause], waits=[Waits("paused", "the pause of category:chat by anna", 1)])) == [
        "category:chat paused for 4 min (since 12:00) by anna: wrong text, until it is resumed; 1 waits"
    ]
    pause = replace(pause, route="apns", next_at=AT + timedelta(minutes=5))
    (line,) = said(now(pauses=[pause], waits=[Waits("route", "apns stopped", 2)]))
    assert line.endswith(": wrong text; 2 wait; ends in 1 min")


def test_a_pause_says_where_it_is_missing() -> None:
    """A partition that was away when somebody paused sends when it is back."""
    pause = Held("all:", "stopped", None, 1, "paused", "wrong text", AT, None, "anna")
    (line,) = said(now(unpaused={"all:": [0, 1, 2, 5]}, pauses=[pause]))
    assert line.startswith("all paused for 4 min (since 12:00) by anna: wrong text, until it is resumed, but not")
    assert line.endswith(" in partition 0-2, 5: pause it again")
    lanes = dict.fromkeys(LANES, LaneNow(0, 0, 0, 0.0))
    (line,) = said(_together(Told({0: now(pauses=[pause], lanes=lanes), 1: now(lanes=lanes)}, {})))
    assert line.endswith(" in partition 1: pause it again")


def test_suspended_says_since_when_a_worker_saw_it() -> None:
    """RQ does not keep who suspended the workers, nor when: the first worker that saw it tells since when."""
    workers = [replace(WELL, suspended=AT), replace(WELL, suspended=AT + timedelta(seconds=1)), WELL]
    (line,) = said(now(suspended={0: 7}, workers=workers, waits=[Waits("rule", "user 3/1h", 20)]))
    assert line.startswith("Suspended for 4 min (since 12:00): rq suspend keeps")
    assert line.endswith("RQ does not keep who suspended them; 7 wait")


def test_no_worker_says_since_when() -> None:
    """Since the last look for work by any; where there never was any, that."""
    (line,) = said(now(workers=[], looked_us=int(AT.timestamp() * 1e6)))
    assert line == "No worker for 4 min (since 12:00): none looks for work, so nothing is sent; 7 wait"
    never = "No worker: none has ever looked for work, so nothing is sent; 7 wait"
    assert said(now(workers=[], served={0: 0})) == [never]
    assert said(now(served={0: 1, 1: 0})) == ["Unserved: no worker serves partition 1, so nothing is sent to its users"]


@pytest.mark.parametrize(("refuses", "says"), [(OUT_OF_MEMORY, "is full"), ("cannot save", "refuses")])
def test_a_redis_that_refuses_is_said_of_its_partitions(refuses: str, says: str) -> None:
    """Of several nodes one is to be looked at; where one alone is meant there is no partition to name."""
    lanes = dict.fromkeys(LANES, LaneNow(0, 0, 0, 0.0))
    parts = {number: now(lanes=lanes, refuses=refuses if number in {3, 4} else "") for number in range(6)}
    (line,) = said(_together(Told(parts, {})))
    assert line.startswith(f"Redis {says} in partition 3-4: ")
    (line,) = said(_together(Told({0: parts[3]}, {})))
    assert line.startswith(f"Redis {says}: ")
    line, _ = said(_together(Told({3: parts[3]}, {0: RedisUnusableError("Redis does not answer")})))
    assert line.startswith(f"Redis {says} in partition 3: ")


def test_a_full_redis_is_said_alone() -> None:
    """No worker can note there that it looks for work, so nobody can tell that none does: they may well send."""
    hangs, age_us = replace(WELL, age_us=68_000_000), int(AT.timestamp() * 1e6)
    full: dict[str, Any] = {"refuses": OUT_OF_MEMORY, "workers": [hangs], "looked_us": age_us}
    line = "Redis is full: it takes nothing new; let the workers drain it, or raise its maxmemory"
    assert said(now(**full)) == [line]
    assert said(now(**full, served={0: 0, 1: 0})) == [line]
    assert live(**full)["empty"] == "not at this rate"
    assert said(now(**full | {"refuses": "cannot save"})) == ["Redis refuses: it cannot save"]
    nearly = full | {"refuses": ""}
    assert [each.partition(" for")[0] for each in said(now(**nearly))] == ["No worker", "w1 hangs: it has not looked"]


def test_a_redis_that_evicts_is_said_beside_what_else_is_wrong() -> None:
    """It does not keep workers from work, and loses what was accepted."""
    evicts, *rest = said(now(evicts="allkeys-lru", workers=[], looked_us=0))
    assert evicts.startswith("Redis evicts: it removes keys when it is full, accepted notifications among them (maxme")
    assert [each.partition(":")[0] for each in rest] == ["No worker"]


def test_rates_that_are_refused_are_said_once() -> None:
    """A mistake in a file makes nothing stop, so nothing else would tell of it."""
    why = "notifier.yaml:4:7: user.gap: is empty; give a value, or delete the key"
    workers = [
        replace(WELL, refuses=why),
        replace(WELL, name="w2", refuses=f"{why}\nand more"),
        replace(WELL, name="w3"),
    ]
    assert said(now(workers=workers)) == [f"Rates refused: by w1, w2; the last ones stay in force: {why}"]


def live(**fields: Any) -> Any:
    return Stats(now(at_s=(AT + timedelta(minutes=4)).timestamp(), **fields)).as_json()["now"]


def test_what_waits_for_a_stopped_route_is_overdue_since_then() -> None:
    """Figures are not calm in an outage; what a person has paused is not overdue, nor what a quota of ours holds."""
    lanes = {"default": LaneNow(0, 20, 0, 0.0)}

    def behind(held: Held, what: str) -> tuple[float, int]:
        waits = [Waits("route", what, 3), Waits("rule", "user 3/1h", 20), Waits("due", "a worker", 1)]
        told = live(lanes=lanes, routes=[held], waits=waits)
        return told["oldest_due"], told["overdue"]

    assert behind(KEY, "apns stopped") == (240.0, 4)
    assert behind(replace(KEY, state="slow", kind="recovering"), "apns stopped") == (240.0, 4)
    assert behind(replace(KEY, state="slow", kind="busy"), "apns slow") == (240.0, 4)
    assert behind(replace(KEY, state="slow", kind="busy", waiting=0), "apns slow") == (0.0, 1)
    assert behind(replace(KEY, state="slow", kind="full"), "apns at its quota") == (0.0, 1)
    assert behind(replace(KEY, kind="paused"), "apns stopped") == (0.0, 1)


def test_what_no_worker_looks_at_is_overdue() -> None:
    """While all is suspended, and where no worker is, nobody is due: what is queued is overdue all the same."""
    told = live(suspended={0: 7})
    assert (told["oldest_due"], told["overdue"], told["works"], told["suspended_in"]) == (5.0, 7, False, [])
    assert live(served={0: 1, 1: 1}, suspended={1: 0})["suspended_in"] == [1]


def test_a_lane_that_no_worker_serves_is_told_of() -> None:
    """Nobody looks at a user whose time has come, so what was noted last, a rule, is still why those wait."""
    lanes = {"default": LaneNow(0, 20, 2, 250.0), "bulk": LaneNow(7, 0, 0, 0.0, 61.0), "urgent": LaneNow(1, 1, 1, 59.0)}
    waits = [Waits("rule", "user 3/1h", 20)]
    assert said(now(lanes=lanes, waits=waits)) == [
        "Lane default: what may go has waited for 4 min 10 s, and no worker has looked at it",
        "Lane bulk: what may go has waited for 1 min 01 s, and no worker has looked at it",
    ]
    told = live(lanes=lanes, waits=waits)
    assert (told["oldest_due"], told["overdue"]) == (250.0, 8 + 3)


def test_what_is_queued_waits_too() -> None:
    """The sum of why they wait is all that waits: what no worker has looked at is a part of it."""
    told = Stats(now(waits=[Waits("rule", "user 3/1h", 20)])).as_json()["now"]["waits"]
    assert [(each["what"], each["waiting"]) for each in told] == [
        ("user 3/1h", 20),
        ("a worker: in the queue still", 7),
    ]


def test_when_it_is_empty_is_not_promised_while_something_is_stopped() -> None:
    """No time is said as long as some cannot go at all: what keeps them stands among what is wrong."""

    def empty(**fields: Any) -> Any:
        return live(**fields)["empty"]

    pause = Held("category:chat", "stopped", None, 1, "paused", "wrong text", AT, None, "anna")
    stops: list[dict[str, Any]] = [
        {"routes": [KEY]},
        {"suspended": {0: 7}, "untaken": {0: 7}},
        {"workers": [], "served": {0: 0}},
        {"served": {0: 1, 1: 1, 2: 0, 3: 0}},
        {"pauses": [pause]},
        {"pauses": [replace(pause, next_at=AT + timedelta(hours=1))]},
        {"served": {0: 1, 1: 1}, "suspended": {1: 0}, "untaken": {0: 0, 1: 1}},
    ]
    assert {empty(**each) for each in stops} == {"not while something is stopped or paused"}
    goes = {"routes": [replace(KEY, waiting=0)]}, {"pauses": [replace(pause, waiting=0)]}
    assert [empty(**each) for each in goes] == ["not at this rate"] * 2
    assert empty(served={0: 1, 1: 1}, suspended={1: 0}, untaken={0: 1, 1: 0}) == "not at this rate"
    assert empty(lanes={"default": LaneNow(0, 0, 0, 0.0)}) == "nothing waits"
    assert empty() == "not at this rate"


def test_when_it_is_empty_is_told_by_how_many_come_and_go() -> None:
    """The seven of the queue and the twenty that wait, at one a second."""
    at_s = 60.0 * (AT.timestamp() // 60 + 4) + 60
    newest, earlier = int(at_s // 60) - 1, Numbers()
    earlier.accepted["default"] = 6_000
    stats = Stats(now(at_s=at_s), {newest - 2: earlier, newest - 1: Numbers(), newest: Numbers()})
    of_last = stats.minutes[newest]
    of_last.ended["delivered", "default", "fcm"] = 120
    of_last.ended["retried", "default", "fcm"] = 600
    assert stats.as_json()["now"]["empty"] == "in about 27.0 s, if no limit holds longer"
    stats.minutes[newest - 1].accepted["default"] = 240
    assert stats.as_json()["now"]["empty"] == "not while more come than go"
