"""The keyspace held against itself: every job in exactly one place, and nothing that belongs to no job."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from redis import Redis

from notifier.policy import LANES

WORK: Final = (
    "rq:queue:*",
    "rq:scheduled:*",
    "rq:wip:*",
    "notifier:line:*",
    "notifier:lines:*",
    "notifier:gates:*",
    "notifier:later",
    "notifier:leases",
    "notifier:parked:*",
)

# Where a job may stand by its status, in the words of `State.places`.
PLACES: Final[dict[str, Callable[[str], list[list[str]]]]] = {
    "queued": lambda lane: [[f"queue {lane}"]],
    "scheduled": lambda _: [["line"], ["later"]],
    "started": lambda _: [["leased"]],
    "failed": lambda lane: [[f"failed {lane}"]],
    # One that is cancelled in its queue stays there until *pull* comes by it.
    "canceled": lambda lane: [[f"canceled {lane}"], [f"queue {lane}", f"canceled {lane}"]],
}


def assert_consistent(redis: Redis) -> None:
    """Fail, naming every stray, unless each job of ours stands where its status says and nowhere else.

    Holds between any two calls of scripts, so also while workers are stopped or dead in the middle of their
    work. For a database of notifications alone, on a Redis that nobody writes to meanwhile.
    """
    found = problems(redis)
    assert not found, "\n".join(found)


def assert_empty_of_work(redis: Redis) -> None:
    """Fail unless it is consistent, and nothing waits, is in flight, or is to be looked at any more."""
    assert_consistent(redis)
    left = [key for pattern in WORK for key in redis.scan_iter(pattern)]
    assert left == []


def problems(redis: Redis) -> list[str]:
    """What is wrong, for people; empty where all is well."""
    state = read(redis)
    found = [said for job_id, job in state.jobs.items() for said in _of_job(job_id, job, state)]
    return found + _strays(state) + _of_users(state) + _of_parked(state)


@dataclass(frozen=True)
class State:
    """All that Redis holds of work, read once: registries by lane, lines by `{user}:category`, lines' lanes by user.

    held: what is held, each with who is parked for it.
    """

    jobs: dict[str, dict[str, str]]
    places: dict[str, list[str]]
    lines: dict[str, dict[str, float]]
    open_lines: dict[str, dict[str, str]]
    gates: dict[str, dict[str, float]]
    scheduled: dict[str, dict[str, float]]
    wip: dict[str, dict[str, float]]
    held: dict[str, dict[str, float]]
    parked: set[str]


def read(redis: Redis) -> State:
    """Read the state."""
    jobs = {key.removeprefix("rq:job:"): _hash(redis, key) for key in _keys(redis, "rq:job:*")}
    lines = {key.removeprefix("notifier:line:"): _zset(redis, key) for key in _keys(redis, "notifier:line:*")}
    places: dict[str, list[str]] = defaultdict(list)
    for lane in LANES:
        queue: Any = redis.lrange(f"rq:queue:{lane}", 0, -1)
        _put(places, f"queue {lane}", [job_id.decode() for job_id in queue])
    for waiting in lines.values():
        _put(places, "line", waiting)
    for place, key in (("later", "notifier:later"), ("leased", "notifier:leases"), ("delivered", "notifier:delivered")):
        _put(places, place, _zset(redis, key))
    for kind in ("failed", "canceled"):
        for lane in LANES:
            _put(places, f"{kind} {lane}", _zset(redis, f"rq:{kind}:{lane}"))
    prefix = "notifier:lines:"
    return State(
        jobs=jobs,
        places=places,
        lines=lines,
        open_lines={key.removeprefix(prefix): _hash(redis, key) for key in _keys(redis, f"{prefix}*")},
        gates={lane: _zset(redis, f"notifier:gates:{lane}") for lane in LANES},
        scheduled={lane: _zset(redis, f"rq:scheduled:{lane}") for lane in LANES},
        wip={lane: _zset(redis, f"rq:wip:{lane}") for lane in LANES},
        held={name: _zset(redis, f"notifier:parked:{name}") for name in _members(redis, "notifier:routes")},
        parked={key.removeprefix("notifier:parked:") for key in _keys(redis, "notifier:parked:*")},
    )


def _put(places: dict[str, list[str]], place: str, job_ids: Any) -> None:
    for job_id in job_ids:
        places[job_id].append(place)


def _keys(redis: Redis, pattern: str) -> list[str]:
    return sorted(key.decode() for key in redis.scan_iter(pattern, count=1000))


def _members(redis: Redis, key: str) -> list[str]:
    found: Any = redis.smembers(key)
    return sorted(member.decode() for member in found)


def _zset(redis: Redis, key: str) -> dict[str, float]:
    found: Any = redis.zrange(key, 0, -1, withscores=True)
    return {member.decode(): float(score) for member, score in found}


def _hash(redis: Redis, key: str) -> dict[str, str]:
    found: Any = redis.hgetall(key)
    return {name.decode(): value.decode(errors="replace") for name, value in found.items()}


def _of_job(job_id: str, job: dict[str, str], state: State) -> list[str]:
    status, lane = job.get("status", ""), job.get("origin", "")
    if status not in PLACES or lane not in LANES:
        return [f"job {job_id} has status {status!r} and origin {lane!r}"]
    said = []
    if state.places[job_id] not in PLACES[status](lane):
        said.append(f"job {job_id} is {status} and stands in {state.places[job_id]}")
    if (job_id in state.scheduled[lane]) != (status == "scheduled"):
        said.append(f"job {job_id} is {status}; in rq:scheduled:{lane}: {job_id in state.scheduled[lane]}")
    if ("push_permit" in job) != (status == "started"):
        said.append(f"job {job_id} is {status} and its permit is {job.get('push_permit')}")
    if status == "started" and f"{job_id}:{job.get('push_permit')}" not in state.wip[lane]:
        said.append(f"job {job_id} is started and not in rq:wip:{lane} under its permit")
    return said


def _strays(state: State) -> list[str]:
    said = [
        f"{job_id} stands in {places} and has no job"
        for job_id, places in state.places.items()
        if job_id not in state.jobs and places != ["delivered"]
    ]
    for lane in LANES:
        unknown = set(state.scheduled[lane]) - set(state.jobs)
        said += [f"{job_id} is in rq:scheduled:{lane} and has no job" for job_id in unknown]
        for entry in state.wip[lane]:
            job_id, _, permit = entry.rpartition(":")
            if state.jobs.get(job_id, {}).get("push_permit") != permit:
                said.append(f"{entry} is in rq:wip:{lane} and that permit is not the job's")
    for line, waiting in state.lines.items():
        for job_id, order in waiting.items():
            own = state.jobs.get(job_id, {}).get("push_order", "nan")
            if float(own) != order:
                said.append(f"{job_id} stands in the line {line} at {order:.0f}, by its own word {own}")
    return said


def _of_users(state: State) -> list[str]:
    said = []
    for line in state.lines:
        user, _, category = line.rpartition(":")
        if category not in state.open_lines.get(user, {}):
            said.append(f"the line {line} is not among its user's lines")
    # An emptied line stays noted until its user's gate is looked at: so that gate must exist.
    for user, fields in state.open_lines.items():
        noted = {name: lane for name, lane in fields.items() if not name.startswith("#")}
        if not noted:
            said.append(f"{user} has no line and is remembered")
        for category, lane in noted.items():
            parked = any(f"u{lane} {user[1:-1]}" in members for members in state.held.values())
            if user[1:-1] not in state.gates.get(lane, {}) and not parked:
                said.append(f"{user} has the line {category} and neither a gate in {lane} nor is it parked")
    for lane, gates in state.gates.items():
        idle = [user for user in gates if lane not in state.open_lines.get(f"{{{user}}}", {}).values()]
        said += [f"the gate of {user} in {lane} belongs to no line" for user in idle]
    return said


def _of_parked(state: State) -> list[str]:
    said = [f"somebody is parked for {name}, which is not held" for name in state.parked - set(state.held)]
    for name, members in state.held.items():
        for member in members:
            lane, _, user = member[1:].partition(" ")
            if member.startswith("u") and lane not in state.open_lines.get(f"{{{user}}}", {}).values():
                said.append(f"{user} is parked for {name} in {lane} and has no line there")
    return said
