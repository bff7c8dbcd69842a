"""Jobs that others put on our lanes: of other functions, notifications without our library, and rubbish."""

import json
import pickle
import threading
import zlib
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from rq import Callback, Queue, Retry, Webhook
from rq.command import send_stop_job_command
from rq.group import Group
from rq.job import Job, JobStatus
from rq.registry import FailedJobRegistry, FinishedJobRegistry, StartedJobRegistry
from rq.serializers import JSONSerializer

from tests.harness.at_work import AtWork, world_of
from tests.harness.support import WORKER, apns, ends, eventually, fcm, note, plain, queue, scheduled, state, worker

RATES: dict[str, Any] = {
    "users": {"held": {"windows": ["1/1h"]}, "gone": {"windows": ["1/1h"]}},
    "categories": {"chat": {"lane": "urgent"}, "slow": {"lane": "default", "windows": ["1/1h"]}},
    "keep_failed": "1h",
    "worker": {**WORKER, "functions": ["math.factorial", "errands"]},
}
ERRANDS = """
import os
import time

def append(path, text="", seconds=0):
    with open(path, "a", encoding="utf-8") as file:
        file.write(text + "\\n")
    time.sleep(seconds)
    return text

def fail(word):
    raise LookupError(word)

def stay(path, gate):
    append(path, "ran")
    while not os.path.exists(gate):
        time.sleep(0.02)
"""


class World(AtWork):
    def run(self, function: str, *args: Any, **kwargs: Any) -> Job:
        return self.lane.enqueue(function, *args, **kwargs)

    def deliver(self, kwargs: Any, lane: str = "default", **options: Any) -> str:
        """The documented call of a program without our library."""
        return str(queue(self.redis, lane).enqueue("notifier.deliver", kwargs=kwargs, **options).id)

    def works_still(self) -> None:
        """Others are not disturbed."""
        ends(self.producer, self.producer.send(note("bystander", "bystander")), "delivered")


world = world_of(World, RATES, errands=ERRANDS)


def finishes(job: Any, status: JobStatus = JobStatus.FINISHED) -> None:
    eventually(lambda: job.get_status() is status, f"{status} of {job.id}")


def why(world: World, job_id: str) -> str:
    """The reason for which a job stands in RQ's failed registry."""
    eventually(lambda: job_id in FailedJobRegistry(queue=world.lane).get_job_ids(), f"the failure of {job_id}")
    result = Job(job_id, connection=world.redis, serializer=JSONSerializer).latest_result()
    return result.exc_string or ""


def test_a_job_of_another_function_runs(world: World) -> None:
    """It runs on RQ's stock path: its result, its registry and its callback are as on any worker."""
    path = world.folder / "callback"
    job = world.run("math.factorial", 20)
    called = world.run("errands.append", str(path), "it ran", on_success=Callback("errands.fail"))
    finishes(job)
    assert job.return_value() == 2_432_902_008_176_640_000
    assert job.id in FinishedJobRegistry(queue=world.lane).get_job_ids()
    eventually(lambda: called.get_status() in {JobStatus.FINISHED, JobStatus.FAILED}, "its end")
    assert path.read_text(encoding="utf-8") == "it ran\n"
    assert StartedJobRegistry(queue=world.lane).count == 0
    world.works_still()
    assert world.redis.hget("rq:worker:worker", "current_job") is None, "`health` would wait longer for its next look"


def test_a_job_that_fails_keeps_its_traceback(world: World) -> None:
    """A stock job that raises stands in the failed registry with its traceback; one with retries is tried again."""
    job = world.run("errands.fail", "tortoise")
    again = world.run("errands.fail", "hare", retry=Retry(max=1))
    assert "LookupError: tortoise" in why(world, job.id)
    assert "LookupError: hare" in why(world, again.id)
    assert Job.fetch(again.id, connection=world.redis, serializer=JSONSerializer).retries_left == 0
    world.works_still()


def test_a_webhook_is_called(world: World) -> None:
    """RQ's, of a stock job: for its success and for its failure. A notification that has one is sent all the same."""
    told: list[Any] = []

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            told.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        hooks = [Webhook(url, "finished", method="POST"), Webhook(url, "failed", method="POST")]
        world.deliver(plain("hooked", "hooked"), webhooks=hooks)
        jobs = [world.run("errands.append", str(world.folder / "hooked"), "x", webhooks=hooks)]
        finishes(jobs[0])
        jobs.append(world.run("errands.fail", "why", webhooks=hooks))
        finishes(jobs[1], JobStatus.FAILED)
        eventually(lambda: len(told) >= 2, "both calls")
        eventually(lambda: world.simulators.titles("hooked") == ["hooked"], "the delivery")
        server.shutdown()
    assert [(each["job_id"], each["status"]) for each in told] == [(jobs[0].id, "finished"), (jobs[1].id, "failed")]


def test_a_group_runs(world: World) -> None:
    """The jobs of a group run, notifications among them, and none of these keeps the group from its end."""
    group = Group(world.redis)
    payloads = [plain(f"of-a-group-{n}", f"grouped-{n}") for n in range(2)]
    jobs = [Queue.prepare_data("notifier.deliver", kwargs=each) for each in payloads]
    jobs.append(Queue.prepare_data("errands.append", [str(world.folder / "grouped"), "x"]))
    group.enqueue_many(world.lane, jobs)
    eventually(lambda: len(world.simulators.titles("grouped-")) == 2, "both deliveries")
    eventually((world.folder / "grouped").exists, "the other job")

    def states() -> list[JobStatus]:
        return [job.get_status(refresh=False) for job in group.get_jobs()]  # what is delivered goes at any moment

    eventually(lambda: world.lane.count == 0 and states() == [JobStatus.FINISHED], "the end")


def test_what_depends_on_a_job_runs_after_it(world: World) -> None:
    """A notification that depends on a stock job goes when that has finished."""
    first = world.run("errands.append", str(world.folder / "first"), "x", 0.2)
    job_id = world.deliver(plain("dep", "depends"), meta={"user": "dep"}, depends_on=first)
    assert state(world.producer, job_id) is None
    ends(world.producer, job_id, "delivered")
    assert (world.folder / "first").exists()


def test_a_stock_job_runs_at_its_time(world: World) -> None:
    """`enqueue_in` and `enqueue_at` work without a scheduler of RQ's, whatever is in the job's meta."""
    at = datetime.now(UTC) + timedelta(seconds=1)
    jobs = [
        world.lane.enqueue_in(timedelta(seconds=1), "math.factorial", 5),
        world.lane.enqueue_at(at, "math.factorial", 5, meta={"user": "someone", "theirs": True}),
    ]
    timed = world.lane.enqueue_at(at, "notifier.deliver", kwargs=plain("timed", "timed"), meta={"user": "timed"})
    for job in jobs:
        finishes(job)
        assert job.return_value() == 120
        job.refresh()
        ended = job.ended_at
        # RQ keeps whole seconds, rounded down.
        assert ended.replace(tzinfo=UTC) >= at.replace(microsecond=0) - timedelta(seconds=1)
    ends(world.producer, timed.id, "delivered")
    assert len(world.simulators.arrived("timed")) == 1


def test_a_long_late_line_does_not_hide_a_stock_job(world: World) -> None:
    """A stock job whose time has come runs, though hundreds of notifications are late in the same registry."""
    told: list[str] = []
    world.producer.send_many((note("held", "held") for _ in range(700)), on_accepted=told.extend)
    ends(world.producer, told[-1], "waiting")
    for job_id in told[1:]:
        world.redis.zadd("rq:scheduled:default", {job_id: 1}, xx=True)
    try:
        finishes(world.lane.enqueue_in(timedelta(seconds=0), "math.factorial", 4))
    finally:
        for job_id in told[1:]:
            world.producer.cancel(job_id)
    assert not {*told} & {*scheduled(world.redis).get_job_ids()}
    assert len(world.simulators.arrived("held")) == 1


def test_a_stock_job_whose_meta_names_nobody(world: World) -> None:
    """A stock job whose meta has another kind of user runs like any other, and keeps its meta."""
    odd = world.run("math.factorial", 3, meta={"user": ["gone"], "category": {"a": 1}})
    finishes(odd)
    assert odd.get_meta() == {"user": ["gone"], "category": {"a": 1}}
    job_id = world.producer.send(note("gone", "gone"))
    ends(world.producer, job_id, "delivered")


def test_each_of_many_runs_once(world: World, tmp_path: Path) -> None:
    """Slow stock jobs in a row, two workers and a short lease: each runs once, and neither blocks the other's."""
    path = tmp_path / "ran"
    jobs = [world.run("errands.append", str(path), str(n), 0.45) for n in range(16)]
    with worker(world.config, name="second", python_path=world.folder) as second:
        second.ready(world.redis)
        for job in jobs:
            finishes(job)
    assert sorted(map(int, path.read_text(encoding="utf-8").split())) == list(range(16))


def test_notifications_pass_a_worker_that_is_busy_with_a_stock_job(world: World) -> None:
    """While one worker runs a stock job, another one takes over what comes, at once."""
    with worker(world.config, name="second", python_path=world.folder) as second:
        second.ready(world.redis)
        job = world.run("errands.append", str(world.folder / "slow"), "x", 60)
        finishes(job, JobStatus.STARTED)
        for _ in range(5):
            world.works_still()
        assert job.get_status() is JobStatus.STARTED
        send_stop_job_command(world.redis, job.id)
        eventually(lambda: job.get_status() is JobStatus.STOPPED, "its end")


def test_a_stock_job_can_be_stopped(world: World) -> None:
    """RQ's command to stop a job ends it, and the worker goes on."""
    job = world.run("errands.append", str(world.folder / "stopped"), "x", 60)
    finishes(job, JobStatus.STARTED)
    eventually(lambda: world.redis.hget("rq:worker:worker", "current_job") == job.id.encode(), "its work horse")
    send_stop_job_command(world.redis, job.id)
    eventually(lambda: job.get_status() in {JobStatus.STOPPED, JobStatus.FAILED}, "its end")
    world.works_still()


def test_a_program_without_our_library_can_send(world: World) -> None:
    """The documented call works with its meta, and without."""
    with_meta = world.deliver(plain("plain-1", "plain-1"), meta={"user": "plain-1", "category": "default"})
    without = world.deliver(plain("plain-2", "plain-2", priority="high"))
    urgent = world.deliver(
        plain("plain-3", "plain-3", category="chat"), "urgent", meta={"user": "plain-3", "category": "chat"}
    )
    cli = world.deliver(
        plain("plain-4", "plain-4"), meta={"user": "plain-4", "theirs": [1, 2]}, job_timeout=5, result_ttl=7
    )
    for number, job_id in enumerate((with_meta, without, urgent, cli), 1):
        ends(world.producer, job_id, "delivered")
        assert len(world.simulators.arrived(f"plain-{number}")) == 1


def test_its_expiry_and_its_limits_hold(world: World) -> None:
    """Without our library, too, a user's limits hold back, in order, and `expires_in` counts."""
    meta = {"user": "plain-held", "category": "default"}
    gone = world.deliver(plain("plain-held", "plain-gone"), meta=meta | {"expires_in": 0.000001})
    eventually(lambda: state(world.producer, gone) in {"expired", "delivered"}, "an end")
    assert state(world.producer, gone) == "expired"


@pytest.mark.parametrize("meta", [None, {"user": "slow"}, {"user": "slow", "category": "slow"}])
def test_a_category_limits_wherever_it_is_named(world: World, meta: Any) -> None:
    """Law 1: a meta that names the user alone does not let the category's limits be passed by."""
    user = f"slow-{meta and len(meta)}"
    meta = meta and meta | {"user": user}
    first, second = (world.deliver(plain(user, f"slow {n}", category="slow"), meta=meta) for n in range(2))
    ends(world.producer, first, "delivered")
    eventually(lambda: state(world.producer, second) in {"waiting", "delivered"}, "its place")
    assert state(world.producer, second) == "waiting"


TOKEN = apns("x").token
BAD: list[tuple[str, Any, Any]] = [
    ("user", plain("berta", "bad"), {"user": "anna", "category": "default"}),
    ("user", {"title": "x"}, None),
    ("user", plain("", "bad"), None),
    ("user", plain("anna", "bad") | {"user": 7}, None),
    ("user", plain("anna", "bad") | {"user": {"a": 1}}, {"user": "anna"}),
    ("devices", {"user": "anna", "title": "x"}, {"user": "anna"}),
    ("devices", {"user": "anna", "devices": {}, "title": "x"}, None),
    ("devices[0]", {"user": "anna", "devices": ["x"], "title": "x"}, {"user": "anna"}),
    ("devices[0]", {"user": "anna", "devices": [None], "title": "x"}, None),
    ("platform", {"user": "anna", "devices": [{"platform": ["apns"], "token": TOKEN}], "title": "x"}, None),
    ("platform", {"user": "anna", "devices": [{"platform": {}, "token": TOKEN}], "title": "x"}, {"user": "anna"}),
    ("token", {"user": "anna", "devices": [{"platform": "apns", "token": 5}], "title": "x"}, None),
    ("priority", plain("anna", "bad", priority={}), None),
    ("priority", plain("anna", "bad", priority=[]), {"user": "anna"}),
    ("category", plain("anna", "bad", category=[]), None),
    ("category", plain("anna", "bad", category="No Such"), None),
    ("expires_in", plain("anna", "bad", expires_in="1h"), None),
    ("expires_in", plain("anna", "bad", expires_in=float("nan")), None),
    ("expires_in", plain("anna", "bad", expires_in=10**300), {"user": "anna"}),
    ("expires_in", plain("anna", "bad"), {"user": "anna", "category": "default", "expires_in": "5"}),
    ("expires_in", plain("anna", "bad", expires_in=5), {"user": "anna", "category": "default"}),
    ("recipient", plain("anna", "bad", recipient="x"), {"user": "anna"}),
    ("send_at", plain("anna", "bad", send_at="2030-01-01"), None),
    ("data", plain("anna", "bad", data=[1]), None),
    ("badge", plain("anna", "bad", badge="7"), {"user": "anna"}),
    ("title", plain("anna", "bad") | {"title": [1]}, {"user": "anna"}),
]


@pytest.mark.parametrize(("field", "kwargs", "meta"), BAD, ids=[f"{n}-{row[0]}" for n, row in enumerate(BAD)])
def test_a_malformed_notification_fails_at_once(world: World, field: str, kwargs: Any, meta: Any) -> None:
    """It ends in the failed registry with the field that is wrong, and no token in the reason."""
    reason = why(world, world.deliver(kwargs, meta=meta))
    assert reason.startswith("malformed: ")
    assert field in reason
    assert TOKEN not in reason


def _raw(world: World, name: str, **fields: Any) -> str:
    """A job as some other program might write it, past RQ."""
    world.redis.hset(f"rq:job:{name}", mapping={"origin": "default", "status": "queued"} | fields)
    world.redis.rpush("rq:queue:default", name)
    return name


def test_rubbish_fails_at_once_and_disturbs_nobody(world: World) -> None:
    """Pickle, broken JSON, fields that RQ cannot read: each fails with a reason, and the worker goes on."""
    good = zlib.compress(json.dumps(["math.factorial", None, [3], {}]).encode())
    pickled = zlib.compress(pickle.dumps(("notifier.deliver", None, (), plain("anna", "pickled"))))
    named = json.dumps({"user": "anna", "category": "default"})
    jobs = {
        "pickled": _raw(world, "pickled", data=pickled),
        "pickled-meta": _raw(world, "pickled-meta", data=pickled, meta=pickle.dumps({"user": "anna"})),
        "pickled-named": _raw(world, "pickled-named", data=pickled, meta=named),
        "latin-user": _raw(world, "latin-user", data=pickled, meta=b'{"user": "Andr\xe9"}'),
        "latin-zone": _raw(world, "latin-zone", data=pickled, meta=b'{"user": "anna", "zone": "\xff"}'),
        "empty": _raw(world, "empty"),
        "number": _raw(world, "number", data=b"17"),
        "list": _raw(world, "list", data=b"[1,2,3,4]"),
        "positional": _raw(world, "positional", data=json.dumps(["notifier.deliver", None, ["anna"], {}]).encode()),
        "deep": _raw(world, "deep", data=b"[" * 100_000, meta=named),
        "time": _raw(world, "time", data=good, created_at="yesterday"),
        "timeout": _raw(world, "timeout", data=good, timeout="soon"),
    }
    world.redis.rpush("rq:queue:default", "no-such-job", "\x00", "")
    for name, job_id in jobs.items():
        reason = why(world, job_id)
        assert reason.startswith(("malformed: ", "set aside: ")), (name, reason)
        if "pickled" in name:
            assert "JSONSerializer" in reason
    world.works_still()
    assert world.redis.llen("rq:queue:default") == 0


@pytest.mark.parametrize("category", [None, 3, ["chat"], {}, "", "Chat!", "unknown-but-well-formed", "x" * 300])
def test_an_odd_category_in_meta(world: World, category: Any) -> None:
    """Whatever stands as category in the meta, a good notification is delivered, by the rules of `default`."""
    title = f"odd-{category}"
    job_id = world.deliver(plain("odd", title), meta={"user": "odd", "category": category})
    ends(world.producer, job_id, "delivered")
    assert len(world.simulators.arrived(title)) == 1


@pytest.mark.parametrize(
    "meta",
    [
        {"user": "x", "category": None},
        {"user": "x", "category": {}},
        {"user": {}},
        {},
    ],
)
def test_a_foreign_job_can_be_cancelled(world: World, meta: Any) -> None:
    """`cancel` of a job with an odd meta is an answer, not an error."""
    job = Job.create(
        "math.factorial", args=[3], connection=world.redis, serializer=JSONSerializer, origin="default", meta=meta
    )
    job.set_status(JobStatus.QUEUED)
    job.save()
    assert world.producer.cancel(job.id) == "cancelled"


@pytest.mark.parametrize(
    "expires_in",
    [
        float("nan"),
        float("inf"),
        1e300,
        "1h",
        None,
        True,
    ],
)
def test_an_odd_expiry_in_meta(world: World, expires_in: Any) -> None:
    """An `expires_in` in the meta that is no sane number does not make a notification expire unsent."""
    title = f"expiry-{expires_in}"
    job_id = world.deliver(plain("odd", title), meta={"user": "odd", "category": "default", "expires_in": expires_in})
    eventually(lambda: state(world.producer, job_id) in {"delivered", "failed", "expired"}, "an end")
    assert state(world.producer, job_id) in {"delivered", "failed"}


def test_nothing_of_all_this_is_left(world: World) -> None:
    """After all of it nothing is in flight, in a queue or leased."""
    world.works_still()
    eventually(lambda: StartedJobRegistry(queue=world.lane).count == 0, "an empty started registry")
    assert world.redis.zcard("notifier:leases") == 0
    assert world.redis.llen("rq:queue:default") == 0
    device = fcm("end")
    ends(world.producer, world.producer.send(note("end", "end", device)), "delivered")


def test_a_job_that_is_queued_twice_holds_up_nobody(world: World) -> None:
    """It runs twice, as on any workers of RQ; what stands behind it goes by a third one meanwhile."""
    path, gate = world.folder / "twice", world.folder / "gate"
    others = [worker(world.config, name=name, python_path=world.folder) for name in ("second", "third")]
    with others[0] as second, others[1] as third:
        second.ready(world.redis)
        third.ready(world.redis)
        for _ in range(2):
            job = world.run("errands.stay", str(path), str(gate), job_id="twice")
        ends(world.producer, world.producer.send(note("behind", "behind")), "delivered")
        gate.touch()
        eventually(lambda: path.exists() and path.read_text(encoding="utf-8") == "ran\nran\n", "both runs")
        finishes(job)
    world.works_still()
