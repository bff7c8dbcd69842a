"""What people do to jobs through RQ itself: each notification ends once, is counted, and leaves nothing."""

import json
import pickle
from typing import Any, Final

import pytest
from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from rq import Retry
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry
from rq.serializers import JSONSerializer
from rq.worker import Worker

import workers.loop.in_flight
import workers.rq.jobs
from notifier import Notifier
from notifier.operations.audit.audit import Audit
from notifier.operations.explain import Inspection
from notifier.queue import backlogs, calls
from notifier.queue.circuits import circuit
from notifier.queue.in_flight import rq_run
from notifier.queue.pauses import pause
from notifier.queue.retention import Retention
from notifier.rules.category import LANES
from notifier.scripts.keys import job_key
from notifier.scripts.loader import Call, run, run_async
from notifier.scripts.records import CircuitFields
from notifier.scripts.rule_table import RuleTable
from notifier.settings import Settings, parse_settings
from notifier.store.connection import time_us
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import apns, fcm, note, plain, queue
from tests.harness.take import enter, take
from workers import PushWorker
from workers.loop.parts import RqJob

HOUR_US: Final = 3_600_000_000
NO_REASON: Final = "eJwDAAAAAAE="  # '', as RQ keeps the reason of a failure
KEPT: Final = Retention(HOUR_US, HOUR_US, HOUR_US)
CONSOLE: Final = {"client": "console", "timeout": "8s"}
RATES: Final[dict[str, Any]] = {
    "users": {"slow": {"windows": ["1/1h"]}},
    "categories": {"default": {"lane": "default"}, "latest": {"lane": "default", "when_blocked": "collapse"}},
    "providers": {"apns": CONSOLE, "fcm": CONSOLE},
    "worker": {"lease": "10s", "functions": ["json", "time.sleep"]},
}


class InProcess(PushWorker):
    """A worker in this thread, without the thread that hears RQ's commands and without signals."""

    def subscribe(self) -> None:
        pass

    def unsubscribe(self) -> None:
        pass

    def _install_signal_handlers(self) -> None:
        pass


class World:
    def __init__(self, redis: Redis, settings: Settings) -> None:
        self.redis = redis
        self.settings = settings
        self.producer = Notifier(redis, settings)

    def work(self, **options: Any) -> None:
        most = options.pop("max_jobs", None)
        worker = InProcess(list(LANES), name="by-hand", connection=self.redis, settings=self.settings, **options)
        worker.work(burst=True, max_jobs=most, logging_level="CRITICAL")

    def plain(self, user: str, job_id: str, *, title: str = "plain", lane: str = "default", **options: Any) -> None:
        meta = {"user": user, "category": "default", **options.pop("meta", {})}
        kwargs = plain(user, title)
        queue(self.redis, lane).enqueue("notifier.deliver", kwargs=kwargs, meta=meta, job_id=job_id, **options)

    def job(self, job_id: str) -> Job:
        return Job.fetch(job_id, connection=self.redis, serializer=JSONSerializer)

    def counted(self, word: str) -> int:
        return int(self.redis.hget("notifier:stats", word) or 0)

    def state(self, job_id: str) -> str | None:
        status = self.producer.status(job_id)
        return None if status is None else status.state

    def look(self, most: int = 9, **options: Any) -> calls.Pulled:
        table = RuleTable(self.settings.policies())
        worker = calls.Worker(name="w", lanes=LANES, lease_us=60_000_000, **options)
        return take(self.redis, worker, calls.Room(most), table)

    def lease(self, most: int = 9, **options: Any) -> calls.Leased:
        return self.look(most, **options).leased[0]

    def settle(self, job: calls.Leased, state: calls.State, *, answered: str = "") -> None:
        word = {"delivered": "delivered", "later": "retried"}[state]
        detail = 0 if state == "later" else ""
        done = calls.Settlement(job.job_id, job.permit, job.user, job.category, True, state, word, detail, answered)
        assert self.settles(done)

    def fail(self, job: calls.Leased) -> None:
        done = calls.Settlement(job.job_id, job.permit, job.user, job.category, True, "failed", "failed", NO_REASON)
        assert self.settles(done)

    def settles(self, done: calls.Settlement) -> bool:
        table = RuleTable(self.settings.policies())
        return run(self.redis, calls.settle([done], table, calls.Worker(name="w", keep=KEPT)))[0]

    def sweep(self) -> int:
        return run(self.redis, backlogs.sweep(LANES, KEPT, lease_us=60_000_000))[0]

    def all_right(self) -> None:
        audit = Audit(self.redis, lease_us=3_000_000)
        found = [str(finding) for finding in audit.findings()]
        assert found == []


@pytest.fixture
def world(redis: Redis, redis_server: EmbeddedRedis) -> World:
    return World(redis, parse_settings(json.dumps({"redis": {"url": redis_server.url}, **RATES})))


@pytest.mark.parametrize("where", ["queue", "backlog", "later"])
def test_rqs_own_cancel_counts_wherever_it_waits(world: World, where: str) -> None:
    """RQ's `Job.cancel()` of what waits ends it as ours does: counted once, kept for a time, and the audit is clean."""
    world.plain("slow", "first")
    world.plain("slow", "second")
    if where != "queue":
        world.work()
    if where == "later":
        world.redis.zadd("notifier:later", {"second": 2**52})
        world.redis.zrem("notifier:backlog:{slow}:default", "second")
    world.job("second").cancel()
    assert world.sweep() == 1
    assert world.sweep() == 0
    assert world.counted("cancelled") == 1
    assert world.state("second") == "cancelled"
    assert 0 < world.redis.ttl("rq:job:second") <= 3_600
    assert world.producer.cancel("second") == "cancelled"
    assert world.counted("cancelled") == 1
    world.all_right()


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_sweep_ends_nothing_twice(world: World, *, is_ours: bool) -> None:
    """What has lapsed in RQ's registry is left as it ended: a notification that was cancelled, or a job of RQ's own."""
    if is_ours:
        world.plain("slow", "job")
        assert world.producer.cancel("job") == "cancelled"
    else:
        queue(world.redis, "default").enqueue("time.sleep", 0, job_id="job")
        world.job("job").cancel()
    before = world.redis.hgetall("rq:job:job")
    world.redis.zadd("rq:canceled:default", {"job": 0})
    assert world.sweep() == 0
    assert world.redis.hgetall("rq:job:job") == before
    assert world.counted("cancelled") == is_ours
    assert world.redis.zscore("rq:canceled:default", "job") > 0


def test_what_rq_empties_out_of_a_queue_leaves_no_cancelled_job(world: World) -> None:
    """A cancelled job stays in its queue until a worker comes to it: `rq empty` deletes it, and tells no registry."""
    job_id = world.producer.send(note("anna", "Hello", fcm("one")))
    assert world.producer.cancel(job_id) == "cancelled"
    queue(world.redis, "default").empty()
    world.sweep()
    assert world.redis.zcard("rq:canceled:default") == 0
    world.all_right()


def test_nobody_is_told_to_wait_for_what_rq_deleted(world: World) -> None:
    """It stands in its backlog until its place comes, and takes nobody's turn then."""
    for job_id in ("first", "second", "third"):
        world.plain("slow", job_id)
    world.work()
    second = world.producer.status("second")
    world.job("second").delete()
    third = world.producer.status("third")
    assert second is not None
    assert third is not None
    assert third.expected_at == second.expected_at
    inspection = Inspection(world.redis, world.settings.policies(), "slow")
    assert [standing.not_before for standing in inspection.backlog()] == ["deleted by RQ's tools", ""]


def test_a_send_ends_though_rq_deleted_what_its_user_waits_with(world: World) -> None:
    """The user's next look is timed by the head of the backlog, of which nothing is left."""
    world.plain("slow", "first")
    leased = world.lease()
    world.plain("slow", "second")
    enter(world.redis, calls.Worker(lanes=LANES, lease_us=60_000_000), calls.Room(9))
    world.job("second").delete()
    world.settle(leased, "delivered")
    assert world.state("first") == "delivered"
    assert world.redis.zcard("rq:scheduled:default") == 0


def test_nobody_takes_the_place_of_what_rq_deleted(world: World) -> None:
    """The next one with its collapse id waits in its own place, and supersedes nothing."""
    meta = {"category": "latest", "collapse_id": "score"}
    world.plain("slow", "first", meta=meta)
    world.settle(world.lease(), "delivered")
    world.plain("slow", "second", meta=meta)
    world.work()
    world.job("second").delete()
    world.plain("slow", "third", meta=meta)
    world.work()
    assert world.state("third") == "waiting"
    assert world.counted("superseded") == 0
    assert world.redis.hget("rq:job:third", "push_count") is None


def test_who_stands_behind_what_rq_deleted_does_not_wait_for_its_route(world: World) -> None:
    """RQ's delete tells nobody, and who waits for a route has no wake-up: workers look for such heads."""
    run(world.redis, pause("fcm", "me", "", 0))
    for job_id, device in (("first", fcm("one")), ("second", fcm("one")), ("third", apns("two"))):
        world.producer.send(note("anna", "Hello", device), job_id=job_id)
    world.work()
    for job_id in ("first", "second"):
        world.job(job_id).delete()
    world.sweep()
    world.work()
    assert world.state("third") == "delivered"
    world.all_right()


def test_a_rest_that_rq_deleted_holds_nobody_back(world: World) -> None:
    """One device has the first; its rest, which waits for the other's route, is deleted. The second may probe then."""
    down = CircuitFields("", "w", "apns", "down", "Refused", kind="unreachable", first_us=HOUR_US, max_us=HOUR_US)
    run(world.redis, circuit(down))
    first = world.producer.send(note("anna", "both", apns("one"), fcm("two")))
    leased = world.lease()
    done = calls.Settlement(first, leased.permit, "anna", "default", True, "backlog", answered='{"1": "delivered"}')
    assert world.settles(done)
    second = world.producer.send(note("anna", "one", apns("one")))
    assert world.look().leased == []
    assert world.redis.zcard("notifier:rests:{anna}:default apns") == 1
    world.job(first).delete()
    later = time_us(world.redis) + 2 * HOUR_US
    assert world.look(clock=str(later)).leased == []
    assert world.lease(clock=str(later + 1_000_000)).job_id == second


@pytest.mark.parametrize("ends", ["later", "delivered"])
def test_what_rq_cancels_in_flight_is_not_revived(world: World, ends: calls.State) -> None:
    """In flight it is being sent; what was delivered was, and a retry is not made: it is cancelled, once."""
    world.plain("anna", "job")
    leased = world.lease()
    world.job("job").cancel()
    assert world.state("job") == "sending"
    world.sweep()
    world.settle(leased, ends)
    world.sweep()
    word = "delivered" if ends == "delivered" else "cancelled"
    assert world.state("job") == word
    assert {name: world.counted(name) for name in ("delivered", "cancelled")} == {
        "delivered": int(word == "delivered"),
        "cancelled": int(word == "cancelled"),
    }
    assert not world.redis.zcard("notifier:later")
    world.all_right()


@pytest.mark.parametrize("by_rq", [False, True])
def test_a_cancel_after_one_device_took_it_is_no_cancel(world: World, *, by_rq: bool) -> None:
    """One device has it, the other waits for a retry: whoever cancels, it is delivered."""
    devices = (apns("anna"), apns("anna-2"))
    job_id = world.producer.send(note("anna", "two", *devices))
    world.settle(world.lease(), "later", answered='{"0": "delivered"}')
    if by_rq:
        world.job(job_id).cancel()
        world.sweep()
    else:
        assert world.producer.cancel(job_id) == "ended"
    assert world.state(job_id) == "delivered"
    assert (world.counted("delivered"), world.counted("cancelled")) == (1, 0)
    world.all_right()


def test_rqs_ttl_is_an_expiry(world: World) -> None:
    """`ttl=` does not delete a waiting notification: it expires, counted, and leaves nothing behind."""
    world.plain("slow", "first")
    world.plain("slow", "second", ttl=60)
    world.work()
    assert world.redis.ttl("rq:job:second") == -1
    deadline = int(world.redis.hget("rq:job:second", "push_deadline") or 0)
    seconds, us = world.redis.time()
    assert deadline <= seconds * 1_000_000 + us + 60_000_000
    world.redis.hset("rq:job:second", "push_deadline", 1)
    world.redis.zadd("notifier:wakeups:default", {"slow": 1})
    world.work()
    assert world.state("second") == "expired"
    assert world.counted("expired") == 1
    world.all_right()


def test_a_job_id_used_again_begins_anew(world: World) -> None:
    """After a cancel, and while the first waits: the second has an expiry of its own, and the first is counted."""
    world.plain("slow", "first")
    world.plain("slow", "again", meta={"expires_in": 60})
    world.work()
    world.plain("slow", "again", title="newer")
    world.work()
    assert world.redis.hget("rq:job:again", "push_deadline") is None
    assert world.counted("superseded") == 1
    assert world.redis.zcard("notifier:backlog:{slow}:default") == 1
    assert world.producer.cancel("again") == "cancelled"
    world.plain("anna", "again")
    world.all_right()
    world.work()
    assert world.state("again") == "delivered"
    world.all_right()


def test_a_job_id_used_again_in_flight_is_not_swallowed(world: World) -> None:
    """Enqueued while the first is in flight, whether its queue was looked at meanwhile or not: both are delivered."""
    for pulled in (False, True):
        world.plain("anna", "job")
        leased = world.lease()
        world.plain("anna", "job", title="second")
        if pulled:
            enter(world.redis, calls.Worker(lanes=LANES, lease_us=60_000_000), calls.Room(9))
        world.settle(leased, "delivered")
        world.work()
        assert world.state("job") == "delivered"
        world.redis.delete("notifier:delivered")
    assert world.counted("delivered") == 4
    world.all_right()


@pytest.mark.parametrize("lane", ["default", "bulk"])
def test_a_job_id_used_again_as_the_first_goes_leaves_nothing(world: World, lane: str) -> None:
    """Its place opens before its queue is looked at: what then fails is not found due, and sent once more."""
    world.plain("slow", "first")
    world.settle(world.lease(), "delivered")
    world.plain("slow", "job")
    enter(world.redis, calls.Worker(lanes=LANES, lease_us=60_000_000), calls.Room(9))
    for n in range(60):
        world.plain(f"user-{n}", f"before-{n}", lane=lane)
    world.plain("slow", "job", title="second", lane=lane)
    later = str(time_us(world.redis) + HOUR_US)
    leased = world.lease(most=1, clock=later)
    assert leased.job_id == "job"
    world.fail(leased)
    assert [name for name in LANES if world.redis.zscore(f"rq:scheduled:{name}", "job") is not None] == []


def test_another_functions_job_with_a_user_is_rqs_again(world: World) -> None:
    """A job of another function whose meta names a user is tried again by RQ as often as it asked to be."""
    queue(world.redis).enqueue(
        "json.loads", "no JSON", meta={"user": "anna"}, job_id="other", retry=Retry(max=2, interval=1)
    )
    for _ in range(3):
        world.work()
        world.redis.zadd("rq:scheduled:default", {"other": 1}, xx=True)
        world.all_right()
    world.work()
    assert world.job("other").retries_left == 0


def test_a_worker_ends_after_as_many_jobs_as_it_may_do(world: World) -> None:
    """As RQ's own with `--max-jobs`: notifications and other functions' jobs count alike."""
    for n in range(3):
        world.plain(f"u{n}", f"note-{n}")
        queue(world.redis).enqueue("json.loads", "[7]", job_id=f"other-{n}")
    for ended in (2, 4, 6):
        world.work(max_jobs=2)
        states = [world.job(f"other-{n}").get_status() for n in range(3)]
        assert states.count(JobStatus.FINISHED) + world.counted("delivered") == ended
        world.all_right()


@pytest.mark.parametrize("meta", [{}, {"user": "anna", "category": "default"}], ids=["free", "limited"])
def test_a_job_whose_hand_over_got_no_answer_runs(
    world: World, monkeypatch: pytest.MonkeyPatch, meta: dict[str, str]
) -> None:
    """Law 2: RQ has it from then on, though the worker was not told so; it runs once all the same."""
    lost: list[str] = []

    async def run_and_lose(redis: Any, call: Call[Any]) -> Any:
        reply = await run_async(redis, call)
        if not lost and any("handed_to_rq" in str(arg) for arg in call.args):
            lost.append(call.script.name)
            raise RedisConnectionError("Connection closed by server.")
        return reply

    monkeypatch.setattr(workers.loop.in_flight, "run_async", run_and_lose)
    queue(world.redis).enqueue("json.loads", "[7]", job_id="other", meta=meta)
    world.work()
    assert lost == ["settle"]
    assert world.job("other").return_value() == [7]
    world.all_right()


@pytest.mark.parametrize("fails", ["heartbeat", "hold"])
def test_a_job_that_runs_is_not_left_alone(world: World, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """Law 1: Redis is away for a moment while a function runs; what is behind it waits for its end all the same."""
    away: list[str] = []

    def is_away(*_: Any, **__: Any) -> None:
        away.append(fails)
        raise RedisConnectionError("Connection refused.")

    if fails == "heartbeat":
        beat = Worker.heartbeat
        monkeypatch.setattr(Worker, "heartbeat", lambda w, *a, **k: is_away() if w.horse_pid else beat(w, *a, **k))
    else:
        monkeypatch.setattr(workers.rq.jobs, "rq_run", lambda told: rq_run(told) if len(away) > 1 else is_away())
    for job_id, *call in (("first", "time.sleep", 1.5), ("second", "json.loads", "[7]")):
        queue(world.redis).enqueue(*call, job_id=job_id, meta={"user": "anna", "category": "default"})
    world.work(job_monitoring_interval=1)
    first, second = world.job("first"), world.job("second")
    assert away
    assert [first.get_status(), second.get_status()] == ["finished", "finished"]
    assert first.ended_at is not None
    assert second.started_at is not None
    assert first.ended_at <= second.started_at
    world.all_right()


def test_what_rq_has_given_up_is_not_the_workers(world: World) -> None:
    """A repeated hand-over is this worker's while RQ has the job from it; not once RQ has queued it again."""
    queue(world.redis).enqueue("json.loads", "[7]", job_id="other", meta={"user": "anna", "category": "default"})
    leased = world.lease()
    handed = RqJob("other", leased.permit, leased.user, leased.category).settlement("handed_to_rq")
    assert [world.settles(handed) for _ in range(2)] == [True] * 2
    world.redis.hset("rq:job:other", "status", "queued")
    assert not world.settles(handed)


def test_a_meta_that_rq_wrote_as_a_pickle_is_read_and_not_loaded(world: World) -> None:
    """`rq requeue` without `-S json`: the message goes again, with its expiry and what else its meta said."""
    world.plain("anna", "job", meta={"expires_in": 50, "theirs": 1})
    failed = world.lease()
    done = calls.Settlement("job", failed.permit, "anna", "default", False, "failed", "failed", "eJwDAAAAAAE=")
    table = RuleTable(world.settings.policies())
    assert run(world.redis, calls.settle([done], table, calls.Worker(name="w", keep=KEPT))) == [True]
    world.redis.zadd("notifier:sent:{anna}", {"x": 1})
    FailedJobRegistry("default", connection=world.redis).requeue("job")
    meta = world.redis.hget("rq:job:job", "meta") or b""
    if not meta.startswith(b"\x80"):  # RQ 3 leaves a meta that it cannot read as it is; RQ 2 writes this
        world.redis.hset("rq:job:job", "meta", pickle.dumps({"unserialized": meta}))
    for _ in range(2):  # to be read, then to its backlog
        pulled = enter(world.redis, calls.Worker(lanes=LANES, lease_us=60_000_000), calls.Room(9))
        if pulled.unread:
            from workers.rq.jobs import meta_of  # noqa: PLC0415 - what the engine does

            told = meta_of(note("anna"), pulled.unread[0].meta)
            run(world.redis, backlogs.steer([(b"job", told)]))
    assert json.loads(world.redis.hget("rq:job:job", "meta") or b"") == {
        "user": "anna",
        "category": "default",
        "expires_in": 50,
        "theirs": 1,
    }
    assert world.redis.hget("rq:job:job", "push_deadline") is not None


def test_a_meta_that_is_written_over_in_flight_is_read_again(world: World) -> None:
    """Its worker returns it, and it keeps its place: it is read once more, and delivered."""
    world.producer.send(note("anna", "first"), job_id="first")
    leased = world.lease()
    world.redis.hset("rq:job:first", "meta", pickle.dumps({}))
    back = calls.Settlement(leased.job_id, leased.permit, "anna", leased.category, False, "backlog", "returned")
    assert world.settles(back)
    world.work()
    assert world.state("first") == "delivered"
    world.all_right()


def test_what_cannot_be_steered_ends(world: World) -> None:
    """Law 2: a job whose meta tells nothing, after all, does not vanish: it fails."""
    queue(world.redis).enqueue("json.loads", "[7]", job_id="other", meta={"user": "anna", "expires_in": float("nan")})
    run(world.redis, backlogs.steer([("other", "")]))
    ((_, permit),) = enter(world.redis, calls.Worker(lanes=LANES, lease_us=60_000_000), calls.Room(9)).rq_jobs
    assert world.settles(RqJob("other", permit).settlement("backlog"))
    assert FailedJobRegistry(queue=queue(world.redis)).get_job_ids() == ["other"]
    result = world.job("other").latest_result()
    assert result is not None
    assert result.exc_string == "malformed: its meta cannot be read"
    assert world.counted("failed") == 1
    world.all_right()


def test_an_own_expiry_outlives_a_requeue(world: World) -> None:
    """A failed notification of ours that is requeued with `-S json` expires again as long after as it was to."""
    job_id = world.producer.send(note("slow", "expires", expires_in=60))
    leased = world.lease()
    done = calls.Settlement(job_id, leased.permit, "slow", "default", False, "failed", "failed", "eJwDAAAAAAE=")
    table = RuleTable(world.settings.policies())
    assert run(world.redis, calls.settle([done], table, calls.Worker(name="w", keep=KEPT))) == [True]
    world.job(job_id).requeue()
    enter(world.redis, calls.Worker(lanes=LANES, lease_us=60_000_000), calls.Room(9))
    assert world.redis.hget(f"rq:job:{job_id}", "push_deadline") is not None


def test_a_dedupe_key_is_free_after_a_cancel(world: World) -> None:
    """What was never sent does not stand in the way of another with its key; what was delivered does."""
    first = world.producer.send(note("slow", "one", dedupe_key="k"))
    assert world.producer.cancel(first) == "cancelled"
    second = world.producer.send(note("slow", "one", dedupe_key="k"))
    assert second != first
    assert world.producer.send(note("slow", "one", dedupe_key="k")) == second


def test_a_repeated_call_takes_no_dedupe_key_back(world: World) -> None:
    """Its notification was cancelled since, and the key is free for another."""
    world.producer.send(note("slow", "one", dedupe_key="k"), job_id="first")
    assert world.producer.cancel("first") == "cancelled"
    assert world.producer.send(note("slow", "one", dedupe_key="k"), job_id="first") == "first"
    assert world.producer.send(note("slow", "one", dedupe_key="k"), job_id="second") == "second"
    assert world.state("second") == "queued"


def test_one_that_has_expired_supersedes_nothing(world: World) -> None:
    """In a category that collapses, a newcomer whose time is over leaves its place to the one that waits."""
    world.plain("slow", "sent")
    world.work()
    world.plain("slow", "good", meta={"category": "latest", "collapse_id": "c"})
    world.work()
    world.plain("slow", "dead", meta={"category": "latest", "collapse_id": "c", "expires_in": -1})
    world.work()
    assert world.state("good") == "waiting"
    assert world.counted("superseded") == 0
    world.all_right()


@pytest.mark.parametrize("ours", [False, True])
def test_an_old_one_that_is_requeued_supersedes_nothing(world: World, *, ours: bool) -> None:
    """An old one that failed and is enqueued again by RQ is no newcomer: the newer one keeps its place."""
    if ours:
        old = world.producer.send(note("slow", "old", category="latest", collapse_id="c"))
    else:
        old = "old"
        world.plain("slow", old, meta={"category": "latest", "collapse_id": "c"})
    world.fail(world.lease())
    assert world.state(old) == "failed"
    world.plain("slow", "sent")
    world.work()
    world.plain("slow", "good", meta={"category": "latest", "collapse_id": "c"})
    world.work()
    assert world.state("good") == "waiting"
    world.job(old).requeue()
    world.work()
    assert world.state("good") == "waiting"
    assert world.state(old) == "waiting"
    assert world.counted("superseded") == 0
    world.all_right()


@pytest.mark.parametrize("wrong", ["its lane is another", "its queue is none of ours", "no origin", "no status"])
@pytest.mark.parametrize("has_meta", [True, False])
def test_an_audit_leaves_what_a_worker_would_send(world: World, wrong: str, *, has_meta: bool) -> None:
    """Law 2: a job's hash may say what it likes of its lane; it is sent from the queue in which a worker finds it."""
    world.plain("ada", "mine")
    hash_of = job_key("mine")
    if not has_meta:
        world.redis.hdel(hash_of, "meta")
    if wrong.startswith("no "):
        world.redis.hdel(hash_of, wrong.removeprefix("no "))
    elif "none" in wrong:
        world.redis.hset(hash_of, "origin", "reports")
    world.redis.rename("rq:queue:default", "rq:queue:bulk")
    for _ in Audit(world.redis, lease_us=3_000_000, repair=True).findings():
        pass
    world.work()
    assert world.state("mine") == "delivered"
    world.all_right()
