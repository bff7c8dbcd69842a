"""RQ functions under the limits: by their decorator or by their meta, with RQ's JSON or its pickles."""

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from rq import Callback, Queue, Repeat, Retry
from rq.job import Job, JobStatus
from rq.serializers import JSONSerializer, PickleSerializer

from notifier.testing.embedded import EmbeddedRedis
from tests.faults.consistency import audit
from tests.harness.at_work import AtWork, world_of
from tests.harness.mortal_redis import MortalRedis
from tests.harness.support import WORKER, ends, eventually, note, notifier, state, worker, write_config

GAP_S = 0.3
RATES: dict[str, Any] = {
    "user": {"gap": "300ms"},
    "users": {"once": {"windows": ["1/1h"]}, "late": {"windows": ["1/1h"]}, "free": {"gap": "0s", "windows": []}}
    | {f"asks-{sent}": {"windows": ["9/1h"]} for sent in (True, False)},
    "history": {"keep": "1h"},
    "keep_failed": "1h",
    "worker": {**WORKER, "functions": ["shop"]},
}
APP = """
import datetime, os, time
from notifier import mark_sent, throttled

def _note(path, word):
    with open(path, "a", encoding="utf-8") as file:
        file.write(f"{time.time()} {word}\\n")

@throttled(user="user_id", category="chat")
def notify(user_id, text, path, seconds=0, until="", dies=False):
    _note(path, f"{text} begins")
    time.sleep(seconds)
    while until and not os.path.exists(until):
        time.sleep(0.01)
    _note(path, f"{text} ends")
    if dies:
        os.kill(os.getpid(), 9)
    return text

@throttled(user="user_id")
def fails(user_id, path, sent=False):
    _note(path, "fails")
    if sent:
        mark_sent()
    raise LookupError("nobody is there")

@throttled(user="user_id")
def fails_once(user_id, path):
    first = not os.path.exists(path)
    _note(path, "tries")
    if first:
        raise LookupError("not yet")

@throttled(user="user_id")
def asks_again(user_id, path, sent):
    first = not os.path.exists(path)
    _note(path, "tries")
    if sent:
        mark_sent()
    from rq import Retry
    return Retry(max=1) if first else "sent"

@throttled(user="user_id")
def dies(user_id):
    os.kill(os.getpid(), 9)

@throttled(user="user_id")
def dies_once(user_id, path):
    first = not os.path.exists(path)
    from rq import get_current_job
    _note(path, repr(get_current_job().meta))
    if first:
        os.kill(os.getpid(), 9)

def called(job, connection, result):
    _note(job.args[0], "called")

def plain(path, text):
    _note(path, text)
    from rq import get_current_job
    return repr(sorted(get_current_job().meta.items()))
"""


class World(AtWork):
    def queue(self, serializer: Any = PickleSerializer, lane: str = "default") -> Queue:
        return Queue(lane, connection=self.redis, serializer=serializer)

    def path(self, name: str) -> Path:
        return self.folder / name


world = world_of(World, RATES, shop=APP)


def times(path: Path, word: str = "") -> list[float]:
    """When what a function noted was noted, of those lines that hold a word."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [float(line.split()[0]) for line in lines if word in line]


def finishes(job: Job, status: JobStatus = JobStatus.FINISHED) -> None:
    eventually(lambda: job.get_status() is status, f"{status} of {job.id}")


@pytest.mark.parametrize("serializer", [PickleSerializer, JSONSerializer])
@pytest.mark.parametrize("how", ["decorator", "meta"])
def test_its_jobs_keep_the_gap(world: World, serializer: Any, how: str) -> None:
    """Jobs of one user go one after the other, in order, the gap from the end of one to the beginning of the next."""
    user, path = f"gap-{how}-{serializer.__name__}", world.path(f"{how}-{serializer.__name__}")
    q = world.queue(serializer)
    if how == "decorator":
        jobs = [q.enqueue("shop.notify", user, f"t{n}", str(path), 0.05) for n in range(4)]
    else:
        jobs = [q.enqueue("shop.plain", str(path), f"t{n} begins ends", meta={"user": user}) for n in range(4)]
    for job in jobs:
        finishes(job)
    begun, ended = times(path, "begins"), times(path, "ends")
    assert len(begun) == len(ended) == 4
    assert min(b - e for b, e in zip(begun[1:], ended, strict=False)) >= GAP_S
    words = [line.split()[1] for line in path.read_text().splitlines() if "begins" in line]
    assert words == [f"t{n}" for n in range(4)]
    eventually(lambda: world.outcomes(user) == {"delivered": 4}, "its count")


def test_it_is_rqs_own_job(world: World) -> None:
    """Its result, its callback, what depends on it, its repetition and its meta are as on any worker of RQ."""
    path, q = world.path("own"), world.queue()
    meta = {"user": "own", "when": datetime(2026, 1, 1, tzinfo=UTC)}
    first = q.enqueue("shop.plain", str(path), "first", meta=meta, on_success=Callback("shop.called"), result_ttl=60)
    second = q.enqueue("shop.notify", "own", "second", str(path), depends_on=first, repeat=Repeat(times=1))
    finishes(first)
    assert first.return_value() == repr(sorted(meta.items()))
    assert first.get_meta() == meta
    eventually(lambda: len(times(path, "second ends")) == 2, "its repetition")
    finishes(second)
    assert second.get_meta() == {}
    assert len(times(path, "called")) == 1
    assert times(path, "first") < times(path, "second")


def test_it_waits_as_a_notification_does(world: World) -> None:
    """A second job of a user with one an hour waits: so say status, explain and RQ's registry; it can be cancelled."""
    path, q = world.path("waits"), world.queue()
    finishes(q.enqueue("shop.notify", "once", "first", str(path)))
    second = q.enqueue("shop.notify", "once", "second", str(path))
    ends(world.producer, second.id, "waiting")
    status = world.producer.status(second.id)
    assert status.expected_at is not None
    assert "1/1h" in str(status.held_by)
    assert second.get_status() is JobStatus.SCHEDULED
    assert second.id in q.scheduled_job_registry.get_job_ids()
    note_id = world.producer.send(note("once", "third"))
    ends(world.producer, note_id, "waiting")
    assert world.producer.cancel(second.id) == "cancelled"
    assert not times(path, "second")


def test_what_raises_has_not_sent(world: World) -> None:
    """It is counted as failed and its permit is taken back; one that said it had sent keeps it."""
    path, q = world.path("raises"), world.queue()
    failed = q.enqueue("shop.fails", "raises", str(path))
    finishes(failed, JobStatus.FAILED)
    assert "LookupError" in str(failed.latest_result().exc_string)
    eventually(lambda: world.outcomes("raises") == {"failed": 1}, "its count")
    assert world.redis.zcard("notifier:sent:{raises}") == 0
    finishes(q.enqueue("shop.fails", "raises", str(path), sent=True), JobStatus.FAILED)
    eventually(lambda: world.outcomes("raises") == {"failed": 1, "delivered": 1}, "its count")
    eventually(lambda: world.redis.zcard("notifier:sent:{raises}") == 1, "its send")


def test_a_retry_waits_again(world: World) -> None:
    """RQ's Retry puts it back, and it goes through the limits once more."""
    path, q = world.path("retries"), world.queue()
    job = q.enqueue("shop.fails_once", "retries", str(path), retry=Retry(max=2))
    finishes(job)
    eventually(lambda: world.outcomes("retries") == {"delivered": 1}, "its counts")
    delayed = q.enqueue("shop.fails_once", "delayed", str(world.path("delayed")), retry=Retry(max=1, interval=1))
    finishes(delayed)
    eventually(lambda: world.outcomes("delayed") == {"delivered": 1}, "its counts")
    assert not world.redis.exists(f"notifier:release:{delayed.id}")  # or its next retry would wait for the end of that


@pytest.mark.parametrize("sent", [False, True])
def test_what_returns_a_retry_has_sent_only_if_it_says_so(world: World, *, sent: bool) -> None:
    """It has not ended before it ran again; the run that sent nothing does not count against the limits."""
    user, path = f"asks-{sent}", world.path(f"asks-{sent}")
    finishes(world.queue().enqueue("shop.asks_again", user, str(path), sent))
    eventually(lambda: world.outcomes(user) == {"delivered": 1}, "its end")
    assert len(times(path)) == 2
    assert world.redis.zcard(f"notifier:sent:{{{user}}}") == 1 + sent


def test_one_that_rq_keeps_no_result_of_is_told_of(world: World) -> None:
    """RQ has deleted it when its run is recorded."""
    world.queue().enqueue("shop.notify", "unkept", "a", str(world.path("unkept")), result_ttl=0)
    eventually(lambda: world.outcomes("unkept") == {"delivered": 1}, "its end")


def test_a_horse_that_dies_may_have_sent(world: World) -> None:
    """Nobody knows what a killed function sent: its permit counts."""
    job = world.queue().enqueue("shop.dies", "dies")
    finishes(job, JobStatus.FAILED)
    eventually(lambda: world.outcomes("dies") == {"failed": 1}, "its count")
    assert world.redis.zcard("notifier:sent:{dies}") == 1


@pytest.mark.parametrize("serializer", [PickleSerializer, JSONSerializer])
@pytest.mark.parametrize("meta", [None, {"order": 17}])
def test_a_retry_after_a_kill_runs(world: World, serializer: Any, meta: dict[str, Any] | None) -> None:
    """RQ puts it back with the meta of its own, and its function runs again."""
    path = world.path(f"killed-{serializer.__name__}-{meta}")
    job = world.queue(serializer).enqueue("shop.dies_once", "killed", str(path), meta=meta, retry=Retry(max=1))
    finishes(job)
    assert len(times(path)) == 2
    if serializer is PickleSerializer:
        assert len(times(path, repr(meta or {}))) == 2


def test_a_requeue_after_its_expiry_runs_with_its_own_meta(world: World) -> None:
    """Until then its meta says whose it was, in our form: by that `users forget` and `export` find what has ended."""
    path, q, meta = world.path("late"), world.queue(), {"user": "late", "order": 17}
    finishes(q.enqueue("shop.plain", str(path), "first", meta=meta))
    job = q.enqueue("shop.plain", str(path), "late", meta=meta, ttl=1)
    finishes(job, JobStatus.FAILED)
    assert json.loads(world.redis.hget(job.key, "meta")) == {"user": "late", "category": "default"}
    world.redis.delete("notifier:sent:{late}")  # as if the hour was over
    job.requeue()
    finishes(job)
    assert job.return_value() == repr(sorted(meta.items()))


def test_its_permit_stands_ahead_while_it_runs(world: World) -> None:
    """Nothing else of the user's goes while a function runs, however long; the gap begins at its end."""
    path, may_end = world.path("runs"), world.path("may-end")
    with worker(world.config, name="second", python_path=world.folder) as second:
        second.ready(world.redis)
        job = world.queue().enqueue("shop.notify", "runs", "slow", str(path), until=str(may_end))
        finishes(job, JobStatus.STARTED)
        behind = world.producer.send(note("runs", "behind"))
        ends(world.producer, world.producer.send(note("bystander", "bystander")), "delivered")
        (begun,) = eventually(lambda: times(path, "begins"), "its beginning")
        # A gap that began with it would be over.
        eventually(lambda: time.time() > begun + 10 * GAP_S, "it to run for long")
        assert job.get_status() is JobStatus.STARTED
        assert state(world.producer, behind) == "waiting"
        assert state(world.producer, job.id) == "sending"
        assert world.producer.cancel(job.id) == "sending"
        after = world.queue().enqueue("shop.plain", str(path), "after", depends_on=job)
        assert world.producer.cancel(after.id) == "unknown"  # RQ has not queued it yet
        assert audit(world.redis) == []
        may_end.touch()
        ends(world.producer, behind, "delivered")
    (ended,) = times(path, "ends")
    assert time.time() - ended < 30
    record = world.producer.history("runs")[0]
    assert record.handed_at[-1].timestamp() >= ended + GAP_S
    finishes(job)
    assert state(world.producer, job.id) == "delivered"
    assert world.producer.cancel(job.id) == "ended"
    finishes(after)


@pytest.mark.parametrize(("dies", "status"), [(False, JobStatus.FINISHED), (True, JobStatus.STARTED)])
def test_a_redis_that_is_away_at_its_end_learns_of_it(world: World, *, dies: bool, status: JobStatus) -> None:
    """Once Redis is back its permit is closed, its run is recorded, and the user's next one goes after the gap.

    RQ learns of its result too; of one whose horse was killed RQ's clean-up tells.
    """
    path, may_end = world.path(f"outage {dies}"), world.path(f"outage {dies} may end")
    with MortalRedis(appendonly=True) as server, Redis.from_url(server.url) as redis:
        config, q = write_config(world.folder / "away", server.url, **RATES), Queue(connection=redis)
        with notifier(config) as producer, worker(config, python_path=world.folder) as running:
            job = q.enqueue("shop.notify", "away", "a", str(path), until=str(may_end), dies=dies)
            behind = q.enqueue("shop.notify", "away", "b", str(path))
            eventually(lambda: times(path, "a begins"), "its beginning")
            server.kill()
            may_end.touch()
            eventually(lambda: times(path, "a ends"), "its end")
            if dies:
                eventually(lambda: '"limiter_unreachable"' in running.log, "its worker to find no Redis")
            server.restart()
            finishes(behind)
            finishes(job, status)
            eventually(lambda: len(producer.history("away")) == 2, "both records")
            told = [(record.job_id, record.outcome) for record in producer.history("away")]
            assert told == [(behind.id, "delivered"), (job.id, "failed" if dies else "delivered")]


@pytest.mark.parametrize(
    ("lets", "takes"),
    [
        ("CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0"),
        ("REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE"),
        ("CONFIG SET min-replicas-to-write 1", "CONFIG SET min-replicas-to-write 0"),
    ],
)
def test_a_redis_that_takes_nothing_at_its_end_learns_of_it(world: World, lets: str, takes: str) -> None:
    """One that is full, a replica or without its replicas is waited for: the job has run, and RQ is to know it."""
    path, may_end = world.path(lets), world.path(f"{lets} may end")
    with EmbeddedRedis() as server, Redis.from_url(server.url) as redis:
        config = write_config(world.folder / "takes nothing", server.url, **RATES)
        with worker(config, python_path=world.folder):
            job = Queue(connection=redis).enqueue("shop.notify", "full", "a", str(path), until=str(may_end))
            eventually(lambda: times(path, "a begins"), "its beginning")
            redis.execute_command(*lets.split())
            may_end.touch()
            refused = {"errorstat_OOM", "errorstat_READONLY", "errorstat_NOREPLICAS"}
            eventually(lambda: redis.info("errorstats").keys() & refused, "its end")
            redis.execute_command(*takes.split())
            finishes(job)
    assert len(times(path, "a begins")) == 1


def test_its_history_tells_what_held_it(world: World) -> None:
    """The record of a job names what held it back, and how long the function ran."""
    path, q = world.path("told"), world.queue()
    jobs = [q.enqueue("shop.notify", "told", f"t{n}", str(path)) for n in range(2)]
    for job in jobs:
        finishes(job)
    eventually(lambda: len(world.producer.history("told")) == 2, "both records")
    record = world.producer.history("told")[0]
    assert record.job_id == jobs[1].id
    assert record.outcome == "delivered"
    assert record.category == "chat"
    assert record.totals()["user gap 300ms"] > 0, "what was left of the gap when it came to its backlog"
    assert record.replies[0].route == "rq"
    ends(world.producer, world.producer.send(note("beside", "a notification")), "delivered")
    assert record.rates == world.producer.history("beside")[0].rates != ""


def test_a_call_without_its_user_is_refused(world: World) -> None:
    """A throttled function that is called for nobody does not run: its job fails, and says why."""
    wrong = {None: "must be the user", "": "must not be empty", 1.5: "must be the user", "u" * 257: "is 257 bytes long"}
    for nobody, why in wrong.items():
        job = world.queue().enqueue("shop.notify", nobody, "x", str(world.path("nobody")))
        finishes(job, JobStatus.FAILED)
        result = Job(job.id, connection=world.redis).latest_result()
        assert f"user_id: {why}" in str(result.exc_string)


@pytest.mark.parametrize(
    ("serializer", "user", "meta"),
    [
        (JSONSerializer, "odd", {"expires_in": 1732000000000}),
        (JSONSerializer, "odd", {"expires_in": float("nan")}),
        (PickleSerializer, "odd", {"expires_in": float("inf")}),
        (PickleSerializer, "odd", {"zone": "\ud800"}),
        (JSONSerializer, "half a pair: \ud800", None),
        (PickleSerializer, "u" * 257, {"category": "chat"}),
    ],
    ids=lambda value: ascii(value)[:40],
)
def test_what_cannot_be_limited_fails(world: World, serializer: Any, user: str, meta: dict[str, Any] | None) -> None:
    """A job whose limits nobody can read neither vanishes nor runs without them: it fails, and says why."""
    meta = meta and {"user": user, **meta}
    job = world.queue(serializer).enqueue("shop.notify", user, "x", str(world.path("odd")), meta=meta)
    finishes(job, JobStatus.FAILED)
    result = Job(job.id, connection=world.redis).latest_result()
    assert str(result.exc_string).startswith("malformed: ")
    assert not world.path("odd").exists()


def test_a_worker_opens_no_pickle(world: World) -> None:
    """What a pickle would run does not run in the worker, whatever it says of its user."""
    path = world.path("opened")
    evil = b"\x80\x04cos\nsystem\n(V" + f"touch {path}".encode() + b"\ntR."
    world.redis.hset("rq:job:evil", mapping={"origin": "default", "status": "queued", "data": evil, "meta": evil})
    world.redis.rpush("rq:queue:default", "evil")
    ends(world.producer, world.producer.send(note("bystander-2", "x")), "delivered")
    eventually(lambda: world.redis.hget("rq:job:evil", "status") == b"failed", "its end")
    assert not path.exists()


def test_nothing_is_left(world: World) -> None:
    """After all of it nothing is leased, and the audit finds nothing."""
    eventually(lambda: world.redis.zcard("notifier:leases") == 0, "the end of the leases")
    assert audit(world.redis) == []
