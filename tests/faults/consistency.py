"""The keyspace held against itself: every job in exactly one place, and nothing that belongs to no job."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from redis import Redis

from notifier.policy import LANES


def assert_consistent(redis: Redis) -> None:
    """Fail, naming every stray, unless each job of ours stands where its status says and nowhere else.

    Holds between any two calls of scripts, so also while workers are stopped or dead in the middle of their
    work. For a database of notifications alone, on a Redis that nobody else writes to meanwhile.
    """
    found = problems(redis)
    assert not found, "\n".join(found)


def assert_empty_of_work(redis: Redis) -> None:
    """Fail unless it is consistent, and nothing waits, is in flight, or is to be looked at any more."""
    assert_consistent(redis)
    left = [key for pattern in WORK for key in redis.scan_iter(pattern)]
    assert left == []


WORK = (
    "rq:queue:*", "rq:scheduled:*", "rq:wip:*", "notifier:line:*", "notifier:lines:*", "notifier:gates:*",
    "notifier:later", "notifier:leases",
)  # fmt: skip


def problems(redis: Redis) -> list[str]:
    """What is wrong, for people; empty where all is well."""
    state = _State(redis)
    found = []
    for job_id, job in state.jobs.items():
        found += _of_job(job_id, job, state)
    found += _strays(state)
    found += _of_users(state)
    return found


class _State:
    """All that Redis holds of work, read once."""

    def __init__(self, redis: Redis) -> None:
        def keys(pattern: str) -> list[str]:
            return sorted(key.decode() for key in redis.scan_iter(pattern, count=1000))

        def members(key: str) -> dict[str, float]:
            return {member.decode(): score for member, score in redis.zrange(key, 0, -1, withscores=True)}

        def text(hash_: dict[bytes, bytes]) -> dict[str, str]:
            return {name.decode(): value.decode(errors="replace") for name, value in hash_.items()}

        self.jobs = {key.removeprefix("rq:job:"): text(redis.hgetall(key)) for key in keys("rq:job:*")}
        self.queues = {lane: [i.decode() for i in redis.lrange(f"rq:queue:{lane}", 0, -1)] for lane in LANES}
        self.lines = {key.removeprefix("notifier:line:"): members(key) for key in keys("notifier:line:*")}
        users = (key.removeprefix("notifier:lines:") for key in keys("notifier:lines:*"))
        self.open = {user: text(redis.hgetall(f"notifier:lines:{user}")) for user in users}
        self.gates = {lane: members(f"notifier:gates:{lane}") for lane in LANES}
        self.later = members("notifier:later")
        self.leases = members("notifier:leases")
        self.scheduled = {lane: members(f"rq:scheduled:{lane}") for lane in LANES}
        self.wip = {lane: members(f"rq:wip:{lane}") for lane in LANES}
        self.failed = {lane: members(f"rq:failed:{lane}") for lane in LANES}
        self.canceled = {lane: members(f"rq:canceled:{lane}") for lane in LANES}
        self.delivered = members("notifier:delivered")

        self.places: dict[str, list[str]] = defaultdict(list)
        for lane, queued in self.queues.items():
            for job_id in queued:
                self._put(job_id, f"queue {lane}")
        for line, waiting in self.lines.items():
            for job_id in waiting:
                self._put(job_id, "line")
                self.line_of[job_id] = line
        for job_id in self.later:
            self._put(job_id, "later")
        for job_id in self.leases:
            self._put(job_id, "leased")
        for kind, registry in (("failed", self.failed), ("canceled", self.canceled)):
            for lane, ended in registry.items():
                for job_id in ended:
                    self._put(job_id, f"{kind} {lane}")
        for job_id in self.delivered:
            self._put(job_id, "delivered")

    line_of: dict[str, str] = {}  # noqa: RUF012 - replaced for each state by __new__

    def __new__(cls, *_: Any) -> _State:
        state = super().__new__(cls)
        state.line_of = {}
        return state

    def _put(self, job_id: str, place: str) -> None:
        self.places[job_id].append(place)


EXPECTED = {
    "queued": lambda lane: ([f"queue {lane}"],),
    "scheduled": lambda _: (["line"], ["later"]),
    "started": lambda _: (["leased"],),
    "failed": lambda lane: ([f"failed {lane}"],),
    # One that is cancelled in its queue stays there until *pull* comes by it.
    "canceled": lambda lane: ([f"canceled {lane}"], [f"queue {lane}", f"canceled {lane}"]),
}


def _of_job(job_id: str, job: dict[str, str], state: _State) -> list[str]:
    status, lane = job.get("status", ""), job.get("origin", "")
    if status not in EXPECTED or lane not in LANES:
        return [f"job {job_id} has status {status!r} and origin {lane!r}"]
    said = []
    places = state.places[job_id]
    if places not in EXPECTED[status](lane):
        said.append(f"job {job_id} is {status} and stands in {places}")
    if (job_id in state.scheduled[lane]) != (status == "scheduled"):
        said.append(f"job {job_id} is {status}; in rq:scheduled:{lane}: {job_id in state.scheduled[lane]}")
    if ("push_permit" in job) != (status == "started"):
        said.append(f"job {job_id} is {status} and its permit is {job.get('push_permit')}")
    if status == "started" and f"{job_id}:{job.get('push_permit')}" not in state.wip[lane]:
        said.append(f"job {job_id} is started and not in rq:wip:{lane} under its permit")
    if job_id in state.line_of:
        order = state.lines[state.line_of[job_id]][job_id]
        if float(job.get("push_order", "nan")) != order:
            said.append(f"job {job_id} stands in its line at {order}, by its own word {job.get('push_order')}")
    return said


def _strays(state: _State) -> list[str]:
    known = set(state.jobs)
    said = [
        f"{job_id} stands in {places} and has no job"
        for job_id, places in state.places.items()
        if job_id not in known and places != ["delivered"]
    ]
    said += [
        f"{i} is in rq:scheduled:{lane} and has no job" for lane in LANES for i in set(state.scheduled[lane]) - known
    ]
    for lane in LANES:
        for entry in state.wip[lane]:
            job_id, _, permit = entry.rpartition(":")
            if state.jobs.get(job_id, {}).get("push_permit") != permit:
                said.append(f"{entry} is in rq:wip:{lane} and that permit is not the job's")
    return said


def _of_users(state: _State) -> list[str]:
    said = []
    for line in state.lines:
        user, _, category = line.rpartition(":")
        lane = state.open.get(user, {}).get(category)
        if lane is None:
            said.append(f"the line {line} is not among its user's lines")
        elif user.strip("{}") not in state.gates[lane]:
            said.append(f"the line {line} has no gate in {lane}")
    for lane, gates in state.gates.items():
        said += [
            f"the gate of {user} in {lane} belongs to no line"
            for user in gates
            if lane not in state.open.get(f"{{{user}}}", {}).values()
        ]
    for user, fields in state.open.items():
        for category in fields:
            # An emptied line stays noted only until its user's gate is looked at, which must exist then.
            if not category.startswith("#") and user.strip("{}") not in state.gates[fields[category]]:
                said.append(f"{user} has the line {category} and no gate in {fields[category]}")
    return said
