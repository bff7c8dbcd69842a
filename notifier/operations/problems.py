"""List the present problems in sentences, the worst first: for the first page and for `stats`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any, Final, Literal

from notifier.queue.circuits import OVERALL
from notifier.queue.waits import RESUME
from notifier.store.connection import EVICTS, OUT_OF_MEMORY
from notifier.store.partitions import ranges
from notifier.texts import seconds_text

LONG_UNSEEN_S: Final = 60.0
A_MOMENT_S: Final = 60.0  # the text of a younger problem gives no time of day
Level = Literal["stopped", "warning"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. subject, says: its sentence, in two parts. what: the name by which to pause or resume it.

    since: when it began. waiting: how many notifications it holds back. next_at: the next probe, or the end of the
    pause. page: of the runbook.
    """

    level: Level
    subject: str
    says: str
    page: str
    what: str = ""
    since: datetime | None = None
    next_at: datetime | None = None
    waiting: int = 0

    def text(self, now: datetime, zone: tzinfo | None = UTC) -> str:
        """Return one line, as of a moment: 'apns stopped for 4 min 02 s: 403 InvalidProviderToken, ours to mend; …'.

        zone: of the clock; None is that of this computer.
        """
        waits = f"; {self.waiting:,} {'waits' if self.waiting == 1 else 'wait'}" if self.waiting else ""
        says = self.says if self.page == "paused" else f": {self.says}"
        return f"{self.subject}{self._lasts(now.astimezone(zone), zone)}{says}{waits}{self._next(now)}"

    def _lasts(self, now: datetime, zone: tzinfo | None) -> str:
        """Say how long it has lasted and, unless that is short, since what time of day."""
        if self.since is None:
            return ""
        lasted_s, since = max(0.0, (now - self.since).total_seconds()), self.since.astimezone(zone)
        clock = f"{since:%H:%M}" if since.date() == now.date() else f"{since:%Y-%m-%d %H:%M}"
        return f" for {seconds_text(lasted_s)}" + (f" (since {clock})" if lasted_s >= A_MOMENT_S else "")

    def _next(self, now: datetime) -> str:
        if self.next_at is None:
            return ""
        left = seconds_text(max(0.0, (self.next_at - now).total_seconds()))
        return f"; {'ends' if self.page == 'paused' else 'next probe'} in {left}"


WHOSE: Final = {"ours": ", ours to mend", "provider": ", the provider's to mend", "person": ""}


def why_of(held: Mapping[str, Any]) -> str:
    """Say why a route is not working, and who must mend it. Nobody must, if the provider is only slow."""
    why: str = held["why"]
    return why if (held["state"], held["whose"]) == ("slow", "provider") else why + WHOSE[held["whose"]]


def find_problems(now: Mapping[str, Any]) -> list[Problem]:
    """Find the problems in the part 'now' of `Stats.as_json`."""
    return sorted(_find(now), key=lambda problem: problem.level != "stopped")


def _find(now: Mapping[str, Any]) -> Iterator[Problem]:
    if now["suspended"]:
        where = f" in partition {ranges(now['suspended_in'])}" if now["suspended_in"] else ""
        says = f"rq suspend keeps all workers from work{where}, until rq resume; RQ does not keep who suspended them"
        since = min((each["suspended"] for each in now["workers"] if each["suspended"]), default=None)
        waiting = sum(each["waiting"] for each in now["waits"] if each["what"] == RESUME)
        yield Problem("stopped", "Suspended", says, "suspended", since=since, waiting=waiting)
    for each in now["pauses"]:
        says = each["why"].removeprefix("paused") + ("" if each["next_at"] else ", until it is resumed")
        what = each["what"]
        if lacks := each["lacks"]:
            says += f", but not in partition {ranges(lacks)}: pause it again"
        waiting = _waiting(now, what.removeprefix("route:")) + _waiting(now, f"the pause of {what} by")
        yield Problem("stopped", f"{what} paused", says, "paused", what, each["since"], each["next_at"], waiting)
    for each in now["routes"]:
        if each["kind"] == "paused" or each["route"].startswith(OVERALL):
            continue  # in the list above, or held as configured
        state = each["state"]
        level: Level = "stopped" if state == "stopped" else "warning"
        probe = each["next_at"] if state == "stopped" else None
        subject, page = f"{each['route']} {state}", f"route-{state}"
        waiting = _waiting(now, each["route"])
        yield Problem(level, subject, why_of(each), page, each["what"], each["since"], probe, waiting)
    yield from _of_redis(now)
    for name, lane in now["lanes"].items():
        if (waited_s := max(lane["oldest_queued_s"], lane["oldest_due_s"])) > LONG_UNSEEN_S:
            says = f"what may go has waited for {seconds_text(waited_s)}, and no worker has looked at it"
            yield Problem("warning", f"Lane {name}", says, "queue-grows")


def _of_redis(now: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield problems of Redis and, unless Redis refuses writes and so cannot tell, of its workers."""
    if now["evicts"]:
        yield Problem("stopped", "Redis evicts", f"it {EVICTS.format(now['evicts'])}", "redis-memory")
    where = f" in partition {ranges(now['refuses_in'])}" if now["refuses_in"] else ""
    if now["refuses"] == OUT_OF_MEMORY:
        says = "it takes nothing new; let the workers drain it, or raise its maxmemory"
        yield Problem("stopped", f"Redis is full{where}", says, "redis-memory")
    elif now["refuses"]:
        yield Problem("stopped", f"Redis refuses{where}", f"it {now['refuses']}", "redis-down")
    else:
        yield from _of_workers(now)
    if away := now["away"]:
        says = f"partition {ranges([each['partition'] for each in away])} does not answer: {away[0]['why']}"
        yield Problem("stopped", "Away", says, "redis-down")


def _waiting(now: Mapping[str, Any], name: str) -> int:
    """Count the notifications that wait for a route or a pause, see `route_words`."""
    every = (each for each in now["waits"] if each["kind"] in {"route", "paused"})
    return sum(each["waiting"] for each in every if f"{each['what']} ".startswith(f"{name} "))


def _queued(now: Mapping[str, Any]) -> int:
    return sum(each["waiting"] for each in now["waits"] if each["kind"] in {"due", "queue"})


def _of_workers(now: Mapping[str, Any]) -> Iterator[Problem]:
    workers = now["workers"]
    if not any(each["healthy"] for each in workers):
        since = now["looked"]
        says = (
            "none looks for work, so nothing is sent" if since else "none has ever looked for work, so nothing is sent"
        )
        yield Problem("stopped", "No worker", says, "no-worker", since=since, waiting=_queued(now))
    for each in workers:
        if not each["healthy"]:
            says = f"it has not looked for work for {seconds_text(each['age_us'] / 1e6)} (host {each['host']})"
            yield Problem("warning", f"{each['name']} hangs", says, "worker-hangs")
    refusing = defaultdict[str, list[str]](list)
    for each in workers:
        if each["refuses"]:
            refusing[each["refuses"].partition("\n")[0]].append(each["name"])
    for why, names in refusing.items():
        says = f"by {', '.join(names)}; the last ones stay in force: {why}"
        yield Problem("warning", "Rates refused", says, "rates-refused")
    if unserved := now["unserved"]:
        says = f"no worker serves partition {ranges(unserved)}, so nothing is sent to its users"
        yield Problem("stopped", "Unserved", says, "unserved-partition")


def problem_lines(told: Mapping[str, Any]) -> list[str]:
    """Return the problems in `Stats.as_json`, one a line, in the time zone of this computer."""
    found, at = find_problems(told["now"]), told["at"]
    return [f"{'✖' if problem.level == 'stopped' else '⚠'} {problem.text(at, None)}" for problem in found]
