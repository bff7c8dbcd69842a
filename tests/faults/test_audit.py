"""The audit: what is broken by hand is seen, put right and delivered once; what only moves is not taken for broken."""

import json
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import pytest
from rq import Queue
from rq.intermediate_queue import IntermediateQueue

from notifier import Notifier
from notifier.notification.job import TERMINAL
from notifier.queue import calls
from notifier.queue.retention import Retention
from notifier.rules.category import LANES
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.settings import Settings, parse_settings
from tests.faults.consistency import assert_consistent, assert_empty_of_work, audit
from tests.harness.asking import InRedis
from tests.harness.fleet import Fleet, notification, start_fleet
from tests.harness.processes import await_that, await_workers, total
from tests.harness.take import enter

RATES: Final[dict[str, Any]] = {
    "user": {"windows": ["20/10s"]},
    "categories": {"default": {"lane": "default"}, "chat": {"lane": "urgent"}},
    "worker": {"lease": "3s", "grace": "2s", "backoff": {"first": "50ms", "most": "200ms"}},
}
CONSOLE: Final = {"apns": {"client": "console", "timeout": "1s"}}
LEASE_US: Final = 3_000_000  # of a worker that is never heard of again
YEAR_US: Final = 365 * 86_400_000_000
FAR: Final = 4_102_444_800_000_000
BACKLOG: Final = "notifier:backlog:{%s}:default"
BACKLOGS: Final = "notifier:backlogs:{%s}"
SENT: Final = "notifier:sent:{%s}"
CLAIM: Final = "notifier:claim:{%s}:default"
JOB: Final = "rq:job:%s"


def now_us(redis: Any) -> int:
    seconds, us = redis.time()
    return int(seconds) * 1_000_000 + int(us)


def enter_backlog(redis: Any) -> calls.Pulled:
    """All that is queued is in its backlog then, and is to be looked at within a millisecond."""
    return enter(redis, calls.Worker(lanes=LANES, lease_us=1000), calls.Room(1000))


def take(redis: Any, settings: Settings) -> None:
    """A worker takes all that waits, and is never heard of again."""
    worker = calls.Worker(name="dead", lanes=LANES, lease_us=LEASE_US)
    run(redis, calls.pull(worker, calls.Room(1000), RuleTable(settings.policies())))


# Each breaks one thing about one job, of one user, that stands where the name of its table says.
Break = Callable[[Any, str, str], object]
QUEUED: Final[dict[str, Break]] = {
    "lost from its queue": lambda redis, job, _: redis.lrem("rq:queue:default", 0, job),
    "queued, leased without a permit": lambda redis, job, _: redis.zadd("notifier:leases", {job: FAR}),
    "queued, and among the failed": lambda redis, job, _: redis.zadd("rq:failed:default", {job: FAR}),
    "queued, under a permit of nobody": lambda redis, job, _: redis.hset(JOB % job, "push_permit", "77"),
}
WAITING: Final[dict[str, Break]] = {
    "lost from its backlog": lambda redis, job, user: redis.zrem(BACKLOG % user, job),
    "lost with its backlog": lambda redis, _, user: redis.delete(BACKLOG % user),
    "in later as well": lambda redis, job, _: redis.zadd("notifier:later", {job: now_us(redis) + 10**9}),
    "in its queue as well": lambda redis, job, _: redis.rpush("rq:queue:default", job),
    "in the queue of another lane as well": lambda redis, job, _: redis.rpush("rq:queue:bulk", job),
    "in the backlog of another": lambda redis, job, _: redis.zadd(BACKLOG % "another", {job: 1}),
    "said to be queued": lambda redis, job, _: redis.hset(JOB % job, "status", "queued"),
    "said to be started": lambda redis, job, _: redis.hset(JOB % job, "status", "started"),
    "leased without a permit": lambda redis, job, _: redis.zadd("notifier:leases", {job: FAR}),
    "under a permit of nobody": lambda redis, job, _: redis.hset(JOB % job, "push_permit", "77"),
    "not in RQ's registry": lambda redis, job, _: redis.zrem("rq:scheduled:default", job),
    "in another lane's registry": lambda redis, job, _: redis.zadd("rq:scheduled:bulk", {job: 1}),
    "among the failed": lambda redis, job, _: redis.zadd("rq:failed:default", {job: FAR}),
    "at another's place": lambda redis, job, user: redis.zadd(BACKLOG % user, {job: 5}),
    "without a place": lambda redis, job, _: redis.hdel(JOB % job, "push_order"),
    "without a wake-up": lambda redis, _, user: redis.zrem("notifier:wakeups:default", user),
    "in a backlog nobody knows of": lambda redis, _, user: redis.hdel(BACKLOGS % user, "default"),
    "in a lane without a wake-up": lambda redis, _, user: redis.hset(BACKLOGS % user, "default", "bulk"),
    "held up by a worker for ever": lambda redis, _, user: redis.set(CLAIM % user, f"1 {FAR} - gone"),
    "held up by a permit of nobody": lambda redis, _, user: redis.zadd(SENT % user, {"99": FAR}),
    "waits for a route that is open": lambda redis, _, user: (
        redis.zrem("notifier:wakeups:default", user),
        redis.zadd("notifier:waiting_for_route:apns", {f"udefault {user}": 1}),
    ),
    "with a wake-up a year ahead": lambda redis, _, user: redis.zadd(
        "notifier:wakeups:default", {user: now_us(redis) + YEAR_US}
    ),
    "closed for an orphan that nobody holds": lambda redis, _, user: redis.hset(BACKLOGS % user, "#o:gone", "default"),
    "marked as an orphan": lambda redis, job, _: redis.hset(JOB % job, "push_orphan", 1),
    "of a meta that nobody can read": lambda redis, job, _: redis.hset(JOB % job, "meta", "{"),
    "in later, of a meta that nobody can read": lambda redis, job, user: (
        redis.zrem(BACKLOG % user, job),
        redis.zadd("notifier:later", {job: FAR}),
        redis.hset(JOB % job, "meta", "{"),
    ),
    "waiting for a route that is not held": lambda redis, job, user: (
        redis.zrem(BACKLOG % user, job),
        redis.zadd("notifier:later", {job: FAR}),
    ),
}
LATER: Final[dict[str, Break]] = {
    "lost from later": lambda redis, job, _: (
        redis.zrem("notifier:later", job),
        redis.zrem("rq:scheduled:default", job),
    ),
    "in its backlog as well": lambda redis, job, user: (
        redis.zadd(BACKLOG % user, {job: 5}),
        redis.hset(JOB % job, "push_order", 5),
    ),
}
TAKEN: Final[dict[str, Break]] = {
    "lost from the leases": lambda redis, job, _: redis.zrem("notifier:leases", job),
    "in flight, and in its backlog": lambda redis, job, user: redis.zadd(BACKLOG % user, {job: 1}),
    "in flight, and in later": lambda redis, job, _: redis.zadd("notifier:later", {job: 1}),
}
ENDED: Final[dict[str, Break]] = {
    "failed, and in its backlog": lambda redis, job, user: redis.zadd(BACKLOG % user, {job: 1}),
    "failed, and in its queue": lambda redis, job, _: redis.rpush("rq:queue:default", job),
    "failed, and leased": lambda redis, job, _: redis.zadd("notifier:leases", {job: 1}),
    "failed, and cancelled": lambda redis, job, _: redis.zadd("rq:canceled:default", {job: FAR}),
    "failed, and not among the failed": lambda redis, job, _: redis.zrem("rq:failed:default", job),
    "failed, without an outcome": lambda redis, job, _: redis.hdel(JOB % job, "push_outcome"),
}
STRAYS: Final[dict[str, Callable[[Any], object]]] = {
    "a backlog of no job": lambda redis: redis.zadd(BACKLOG % "ghost", {"no-job": 1}),
    "later for no job": lambda redis: redis.zadd("notifier:later", {"no-job": 1}),
    "scheduled without a job": lambda redis: redis.zadd("rq:scheduled:default", {"no-job": 1}),
    "started without a job": lambda redis: redis.zadd("rq:wip:default", {"no-job:12": "+inf"}),
    "failed without a job": lambda redis: redis.zadd("rq:failed:default", {"no-job": FAR}),
    # One whose time has come is no stray: a worker's *sweep* takes it out.
    "cancelled without a job": lambda redis: redis.zadd("rq:canceled:default", {"no-job": FAR}),
    "a wake-up of nobody": lambda redis: redis.zadd("notifier:wakeups:bulk", {"nobody": 1}),
    "nobody remembered": lambda redis: redis.hset("notifier:backlogs:{nobody}", "#turn", "1"),
    "nobody waits for a route": lambda redis: (
        redis.sadd("notifier:routes", "apns"),
        redis.hset("notifier:route:apns", mapping={"state": "closing", "until": 1}),
        redis.zadd("notifier:waiting_for_route:apns", {"ubulk nobody": 1}),
    ),
    "a lease of no job, for years": lambda redis: redis.zadd("notifier:leases", {"no-job": FAR}),
    "a circuit that opens for years": lambda redis: (
        redis.sadd("notifier:routes", "fcm"),
        redis.hset("notifier:route:fcm", mapping={"state": "open", "kind": "failing", "until": FAR, "others": FAR}),
    ),
    "a circuit with an end that is no time": lambda redis: (
        redis.sadd("notifier:routes", "fcm"),
        redis.hset("notifier:route:fcm", mapping={"state": "open", "kind": "failing", "until": "soon", "others": 1}),
    ),
    "a permit of nobody": lambda redis: redis.zadd("notifier:sent:{nobody}", {"99": FAR}),
    "a device's permit of nobody": lambda redis: redis.zadd("notifier:device:abc", {"99": FAR}),
}


class Patient:
    """One Redis with one notification in it, which the test breaks."""

    def __init__(self, redis: Any) -> None:
        self.redis = redis
        self.settings = parse_settings(json.dumps({**RATES, "providers": CONSOLE}))
        self.notifier = Notifier(redis, self.settings)

    def send(self) -> str:
        return self.notifier.send(notification("ada", 1))

    def fail(self, job_id: str) -> None:
        take(self.redis, self.settings)
        permit = self.redis.hget(JOB % job_id, "push_permit").decode()
        settlement = calls.Settlement(job_id, permit, "ada", "default", reached=True, state="failed", word="rejected")
        table = RuleTable(self.settings.policies())
        keep = Retention(10**9, 10**9, 10**9)
        assert run(self.redis, calls.settle([settlement], table, calls.Worker(name="w", keep=keep))) == [True]

    def assert_mended(self, job_id: str = "") -> None:
        """It is seen, without a change; put right, with a word; and a second audit is clean."""
        before = self.redis.dbsize()
        seen = audit(self.redis)
        assert seen
        assert audit(self.redis) == seen
        assert self.redis.dbsize() == before
        told = audit(self.redis, repair=True)
        assert told
        assert all(" — " in line for line in told)
        assert audit(self.redis) == []
        assert any(job_id in line or "ada" in line for line in seen)


@pytest.fixture
def patient(redis: Any) -> Patient:
    return Patient(redis)


@pytest.mark.parametrize("broken", QUEUED)
def test_a_queued_job_is_mended(patient: Patient, broken: str) -> None:
    """What is wrong about a job in its queue is seen, and put right once."""
    job_id = patient.send()
    QUEUED[broken](patient.redis, job_id, "ada")
    patient.assert_mended(job_id)


@pytest.mark.parametrize("broken", WAITING)
def test_a_waiting_job_is_mended(patient: Patient, broken: str) -> None:
    """What is wrong about a job in its backlog is seen, and put right once."""
    job_id = patient.send()
    enter_backlog(patient.redis)
    assert audit(patient.redis) == []
    WAITING[broken](patient.redis, job_id, "ada")
    patient.assert_mended(job_id)


@pytest.mark.parametrize("broken", STRAYS)
def test_a_stray_is_taken_out(patient: Patient, broken: str) -> None:
    """What belongs to no job or user is seen, and gone then; who waits beside it stays."""
    job_id = patient.send()
    enter_backlog(patient.redis)
    STRAYS[broken](patient.redis)
    patient.assert_mended()
    assert patient.redis.zscore(BACKLOG % "ada", job_id) is not None


@pytest.mark.parametrize("broken", ENDED)
def test_what_has_ended_stays_ended(patient: Patient, broken: str) -> None:
    """A failed notification that stands anywhere else as well is failed alone then: one terminal state."""
    job_id = patient.send()
    patient.fail(job_id)
    assert audit(patient.redis) == []
    ENDED[broken](patient.redis, job_id, "ada")
    patient.assert_mended()
    assert patient.notifier.status(job_id).state in {"rejected", "failed"}
    enter_backlog(patient.redis)
    assert patient.redis.keys("notifier:wakeups:*") == []


def test_what_expires_behind_a_head_is_watched_again(patient: Patient) -> None:
    """No wake-up looks after it, so *sweep* has to know of it."""
    ids = [patient.notifier.send(notification("ada", n, expires_in=60)) for n in range(3)]
    enter_backlog(patient.redis)
    assert audit(patient.redis) == []
    watched = patient.redis.zrange("notifier:expiring", 0, -1, withscores=True)
    patient.redis.delete("notifier:expiring")
    patient.assert_mended(ids[1])
    assert patient.redis.zrange("notifier:expiring", 0, -1, withscores=True) == watched


WRONG_TYPES: Final = (
    BACKLOG % "ada", BACKLOGS % "ada", SENT % "ada", "notifier:wakeups:default", "notifier:later", "notifier:leases",
    "notifier:delivered", "notifier:expiring", "notifier:waiting_for_route:apns", "notifier:routes",
    "notifier:route:apns",
    "notifier:preferences", "notifier:stats", "rq:queue:default",
    "rq:scheduled:default", "rq:wip:default", "rq:failed:default",
)  # fmt: skip


@pytest.mark.parametrize("key", WRONG_TYPES)
@pytest.mark.parametrize("wrong", ["string", "list or hash"])
def test_a_key_of_a_wrong_type_ends_no_audit(patient: Patient, key: str, wrong: str) -> None:
    """It is said, all else is judged beside it, and repaired it is gone; who waits goes on."""
    job_id = patient.send()
    other = patient.notifier.send(notification("bob", 2))
    enter_backlog(patient.redis)
    patient.redis.zrem(BACKLOG % "bob", other)
    patient.redis.delete(key)
    if wrong == "string":
        patient.redis.set(key, "1")
    else:
        patient.redis.hset(key, "a", "1") if "queue" in key else patient.redis.rpush(key, "a")
    assert any(line.startswith(f"key {key} is a ") for line in audit(patient.redis))
    assert any(line.startswith(f"key {key} is a ") for line in audit(patient.redis, repair=True))
    assert audit(patient.redis) == []
    enter_backlog(patient.redis)
    for user, waiting in (("ada", job_id), ("bob", other)):
        assert patient.redis.zscore(BACKLOG % user, waiting) is not None


def test_who_was_forgotten_is_limited_all_the_same(redis: Any) -> None:
    """Law 1: no repair takes the sends away that a user who was forgotten left."""
    rates = {**RATES, "user": {"windows": ["2/1d"], "burst": {"capacity": 5, "refill": "1/1h"}}}
    notifier = Notifier(redis, parse_settings(json.dumps({**rates, "providers": CONSOLE})))
    assert [bool(notifier.acquire("ada")) for _ in range(3)] == [True, True, False]
    notifier.forget("ada")
    hidden = {redis.type(key) for key in redis.scan_iter("notifier:forgotten*")}
    assert hidden == {b"string", b"set", b"zset", b"hash"}
    assert audit(redis, repair=True) == []
    assert not notifier.acquire("ada")


def test_what_was_delivered_does_not_go_again(patient: Patient) -> None:
    """A job that stands in a backlog though it is recorded as delivered is removed."""
    job_id = patient.send()
    enter_backlog(patient.redis)
    patient.redis.zadd("notifier:delivered", {job_id: now_us(patient.redis)})
    patient.assert_mended(job_id)
    assert patient.notifier.status(job_id).state == "delivered"


def test_a_permit_that_may_have_been_used_is_dated_now(patient: Patient) -> None:
    """Law 1: the permit of what is no longer in flight is never removed, and counts from now."""
    patient.redis.zadd("notifier:sent:{ada}", {"99": FAR})
    before = now_us(patient.redis)
    assert len(audit(patient.redis, repair=True)) == 1
    assert before <= patient.redis.zscore("notifier:sent:{ada}", "99") <= now_us(patient.redis)


@pytest.mark.parametrize("broken", ["in flight, and in its backlog", "in flight, and in later"])
def test_what_a_lease_holds_is_left_alone(patient: Patient, broken: str) -> None:
    """A job in flight keeps its permit, its lease and its status; what would have it sent twice is gone."""
    job_id = patient.send()
    take(patient.redis, patient.settings)
    assert audit(patient.redis) == []
    before = patient.redis.hgetall(JOB % job_id), patient.redis.zscore("notifier:leases", job_id)
    TAKEN[broken](patient.redis, job_id, "ada")
    audit(patient.redis, repair=True)
    assert (patient.redis.hgetall(JOB % job_id), patient.redis.zscore("notifier:leases", job_id)) == before
    assert audit(patient.redis) == []


def test_a_job_of_others_is_left_alone(patient: Patient) -> None:
    """What is not ours, on our lanes and on others, is RQ's affair: nothing is said, nothing is touched."""
    for job_id, lane in (("stock", "default"), ("elsewhere", "mail")):
        patient.redis.hset(JOB % job_id, mapping={"origin": lane, "status": "started", "data": "x", "meta": "{}"})
        patient.redis.zadd(f"rq:wip:{lane}", {f"{job_id}:5b2e": 5})
    patient.redis.sadd("rq:job:stock:dependents", "other")
    on_its_way = IntermediateQueue(Queue("mail", connection=patient.redis).key, connection=patient.redis)
    patient.redis.rpush(on_its_way.key, "elsewhere")
    assert on_its_way.set_first_seen("elsewhere")
    before = patient.redis.dbsize()
    assert audit(patient.redis, repair=True) == []
    assert patient.redis.dbsize() == before


def test_a_deleted_job_leaves_no_fault_in_a_queue(patient: Patient) -> None:
    """The id of a job that is gone stays in its queue until a worker comes by it, and is dropped there, as by RQ."""
    job_id = patient.send()
    patient.redis.delete(JOB % job_id)
    assert patient.redis.lrange("rq:queue:default", 0, -1) == [job_id.encode()]
    assert audit(patient.redis) == []
    enter_backlog(patient.redis)
    assert patient.redis.keys("notifier:wakeups:*") == []
    assert patient.redis.exists("rq:queue:default", JOB % job_id) == 0


def test_a_backlog_that_changes_its_lane_is_no_fault(patient: Patient) -> None:
    """A backlog that moves to a more urgent lane leaves the user's other backlog in the old one its wake-up."""
    for job_id, lane, category in (("a1", "default", "a"), ("b1", "default", "b"), ("a2", "urgent", "a")):
        meta = json.dumps({"user": "ada", "category": category}).encode()
        job = calls.Job(job_id, lane, b"x", meta)
        run(patient.redis, calls.enqueue([job], dedupe_for_us=1, stamp=""))
        enter_backlog(patient.redis)
        assert audit(patient.redis) == []


def test_a_long_queue_is_read_to_its_end(patient: Patient) -> None:
    """Of thousands in a queue the one that it does not name is found, and it alone."""
    ids = [f"job-{n}" for n in range(3000)]
    patient.notifier.send_many((notification(f"u{n}", n) for n in range(3000)), job_ids=ids)
    patient.redis.lrem("rq:queue:default", 1, ids[1234])
    (said,) = audit(patient.redis)
    assert ids[1234] in said


def broken_fleet(fleet: Fleet, notifier: Notifier) -> dict[str, int]:
    """Send one notification for each thing that can be broken, and break it; returns the numbers by what was broken."""
    redis, count = fleet.redis, 0
    numbers: dict[str, int] = {}

    def send(table: dict[str, Break], **more: Any) -> list[tuple[str, str, str]]:
        nonlocal count
        sent = []
        for broken in table:
            count += 1
            user = f"broken{count}"
            numbers[broken] = count
            sent.append((broken, notifier.send(notification(user, count, **more)), user))
        return sent

    taken = send(TAKEN)
    take(redis, fleet.settings)
    for broken, job_id, user in taken:
        TAKEN[broken](redis, job_id, user)
    waiting = send(WAITING)
    enter_backlog(redis)
    for broken, job_id, user in waiting:
        WAITING[broken](redis, job_id, user)
    for broken, job_id, user in send(LATER, send_at=datetime.now(UTC) + timedelta(seconds=1)):
        LATER[broken](redis, job_id, user)
    for broken, job_id, user in send(QUEUED):
        QUEUED[broken](redis, job_id, user)
    for stray in STRAYS.values():
        stray(redis)
    return numbers


def assert_each_once(fleet: Fleet, numbers: set[int]) -> None:
    """Each of these was handed to the provider once, and nothing is left."""
    fleet.await_ended(len(numbers))
    fleet.end_workers()
    for worker in fleet.workers:
        worker.wait(60)
    arrived = Counter(int(arrival.data["n"]) for arrival in fleet.arrivals())
    assert arrived == Counter(numbers)
    assert total(fleet.redis, "delivered") == len(numbers)
    assert_empty_of_work(fleet.redis)


def test_all_that_can_be_broken_is_mended_and_delivered_once() -> None:
    """Everything broken at once, with no worker: one repair, a clean audit, and a real worker delivers each once."""
    # Generous: an answer that is late, or a lease that ends, would have something come twice.
    rates = {**RATES, "worker": {**RATES["worker"], "lease": "40s"}}
    with start_fleet(rates, workers=0, apns={"timeout": "30s"}) as fleet, fleet.notifier() as notifier:
        numbers = broken_fleet(fleet, notifier)
        assert len(audit(fleet.redis)) >= len(numbers)
        audit(fleet.redis, repair=True, lease_us=LEASE_US)
        assert_consistent(fleet.redis)
        fleet.start_worker()
        assert_each_once(fleet, set(numbers.values()))


def test_a_busy_system_without_a_fault_is_all_right() -> None:
    """While two workers work on thousands, with rates that hold back, retries and expiries, no audit finds anything."""
    rates = {**RATES, "user": {"windows": ["3/1s"], "gap": "20ms"}}
    asked = {"retry-after": "1"}
    busy = {"status": 429, "reason": "TooManyRequests", "headers": asked}  # spends no attempt
    again = {"status": 400, "reason": "IdleTimeout", "headers": asked}
    scripts = {f"{n:064x}": [busy if n % 100 else again, {"status": 200}] for n in range(0, 1500, 50)}
    with start_fleet(rates, workers=2, latency_ms=5, scripts=scripts, apns={"timeout": "1s"}) as fleet:
        amid = False  # whether anything ended while it was audited
        with fleet.notifier() as notifier:
            for start in range(0, 1500, 100):
                notifier.send_many(
                    notification(f"u{n % 120}", n, "chat" if n % 3 else "default", expires_in=60 if n % 5 else 0.5)
                    for n in range(start, start + 100)
                )
                before = total(fleet.redis, *TERMINAL)
                assert_consistent(fleet.redis)
                amid |= total(fleet.redis, *TERMINAL) > before
        deadline = time.monotonic() + 90
        while total(fleet.redis, *TERMINAL) < 1500:
            assert time.monotonic() < deadline, fleet.redis.hgetall("notifier:stats")
            assert_consistent(fleet.redis)
        fleet.end_workers()
        for worker in fleet.workers:
            worker.wait(60)
        assert_empty_of_work(fleet.redis)
        assert all(total(fleet.redis, word) for word in ("delivered", "returned", "retried", "expired"))
    assert amid


def test_what_is_broken_under_load_is_mended_and_delivered_once() -> None:
    """Two workers are busy with others while backlogs are broken and put right: nothing is lost or comes twice."""
    # Generous: an answer that is late, or a lease that ends, would have something come twice.
    rates = {**RATES, "tiers": {"slow": {"windows": ["1/1h"]}}, "worker": {"lease": "40s", "grace": "2s"}}
    users = {broken: f"broken{n}" for n, broken in enumerate(WAITING)}
    rates["users"] = dict.fromkeys(users.values(), "slow")
    with start_fleet(rates, workers=2, latency_ms=5, apns={"timeout": "30s"}) as fleet, fleet.notifier() as notifier:
        await_workers(fleet.redis, 2)
        for n, user in enumerate(users.values()):
            notifier.send(notification(user, n))
        fleet.await_delivered(len(users))
        job_ids = {
            broken: notifier.send(notification(user, len(users) + n)) for n, (broken, user) in enumerate(users.items())
        }
        others = range(2 * len(users), 2 * len(users) + 3000)
        notifier.send_many(notification(f"u{n % 300}", n) for n in others)
        for broken, user in users.items():
            await_that(lambda backlog=BACKLOG % user: fleet.redis.exists(backlog), f"the backlog of {user}")
            WAITING[broken](fleet.redis, job_ids[broken], user)
        told = audit(fleet.redis, repair=True)
        assert_consistent(fleet.redis)
        assert total(fleet.redis, "delivered") < others.stop  # it was busy all the while
        for user in users.values():  # none of them went before it was mended
            InRedis(fleet.redis).give_all_back(user)
        assert_each_once(fleet, set(range(others.stop)))
    assert len(told) >= len(WAITING) - 3  # what stands in a queue as well is put right by whoever pulls it
