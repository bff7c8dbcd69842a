"""`notifier users export --user`: all that is kept of one person, and nothing of another."""

import json
from datetime import UTC, datetime
from pathlib import Path

from redis import Redis

from notifier import Notifier
from notifier.store.published import publish
from tests.harness.support import apns, ends, note, queue, worker
from tests.integration.conftest import Run

SECTIONS = {"user": {"windows": ["1/1h"]}, "history": {"keep": "1h"}}


def test_all_that_is_kept_of_one(config: Path, redis: Redis, run: Run, producer: Notifier) -> None:
    """What was sent and when, what became of it, what waits with its text, and what the user chose; no token whole."""
    with worker(config) as running:
        running.ready(redis)
        sent = producer.send(note("ann", "the first"))
        ends(producer, sent, "delivered")
        waits = producer.send(note("ann", "the second", apns("her-phone")))
        ends(producer, waits, "waiting")
        ends(producer, producer.send(note("bob", "a stranger's")), "delivered")
    for user in ("ann", "bob"):
        producer.users.mute(user, categories=["chat"])
    told = run("users", "export", "--user", "ann")
    assert told.status == 0
    kept = json.loads(told.out)
    assert [record["job_id"] for record in kept["history"]] == [sent]
    assert len(kept["sends"]) == 1
    assert [each["job_id"] for each in kept["waiting"]] == [waits]
    assert kept["waiting"][0]["notification"]["title"] == "the second"
    assert kept["waiting"][0]["expected_at"] is not None
    assert kept["chosen"]["mutes"][0]["categories"] == ["chat"]
    assert len(kept["changes"]) == 1
    assert apns("her-phone").token not in told.out
    assert "stranger" not in told.out
    producer.forget("ann", hard=True)
    gone = json.loads(run("users", "export", "--user", "ann").out)
    assert {name for name, value in gone.items() if value} == {"user"}


def test_also_what_waits_in_no_backlog(run: Run, producer: Notifier) -> None:
    """What no worker has looked at, and what has a time of its own, with that time."""
    at = datetime(2096, 1, 1, tzinfo=UTC)
    later = producer.send(note("ann", "later", send_at=at))
    queued, of_bob = (producer.send(note(user, "queued")) for user in ("ann", "bob"))
    waiting = json.loads(run("users", "export", "--user", "ann").out)["waiting"]
    told = {each["job_id"]: (each["notification"]["title"], each["expected_at"]) for each in waiting}
    assert of_bob not in told
    assert told[queued] == ("queued", None)
    assert (told[later][0], datetime.fromisoformat(told[later][1])) == ("later", at)


def test_also_what_a_worker_is_sending(redis: Redis, run: Run, producer: Notifier) -> None:
    """Its text and its devices are kept as long as that lasts."""
    sending, of_bob = (producer.send(note(user, "in flight")) for user in ("ann", "bob"))
    for permit, job_id in enumerate((sending, of_bob), 1):
        redis.lrem("rq:queue:default", 1, job_id)
        redis.hset(f"rq:job:{job_id}", mapping={"status": "started", "push_permit": permit})
        redis.zadd("notifier:leases", {job_id: 4e15})
    waiting = json.loads(run("users", "export", "--user", "ann").out)["waiting"]
    assert [(each["job_id"], each["notification"]["title"]) for each in waiting] == [(sending, "in flight")]


def test_no_token_is_whole_in_what_others_wrote(redis: Redis, run: Run) -> None:
    """A job of another program that failed, and what it has in place of devices and a category."""
    token = apns("her-phone").token
    for function, devices in (("shop.pay", [{"token": token}]), ("notifier.deliver", [token, {"token": [token]}])):
        job = queue(redis).enqueue(function, kwargs={"user": "ann", "devices": devices}, meta={"user": "ann"})
        redis.hset(f"rq:job:{job.id}", "push_outcome", "failed")
        redis.zadd("rq:failed:default", {job.id: 4_000_000_000})
        redis.lpop("rq:queue:default")
    told = run("users", "export", "--user", "ann")
    ended = json.loads(told.out)["ended"]
    assert [each["category"] for each in ended] == ["default"] * 2
    assert sorted(len(each["notification"]["devices"]) for each in ended) == [1, 2]
    assert token not in told.out


def test_also_what_ended_unsent_what_was_counted_and_what_applied_rates_name(
    redis: Redis, run: Run, producer: Notifier
) -> None:
    """What was cancelled is kept with its text for a while; a bucket's sends are as late as its latest."""
    ended, of_bob = (producer.send(note(user, "the third", apns("her-phone"))) for user in ("ann", "bob"))
    assert producer.cancel_many([ended, of_bob]).cancelled == 2
    redis.zadd("notifier:counts:{ann}", {"0": 4, "1700000000000000": 6, "1700000600000000": 7})
    redis.zadd("notifier:sent:{ann}:applied", {"8": 1_700_000_700_000_000})
    publish(redis, {"categories": {"applied": {"lane": "bulk"}}}, 0)
    told = run("users", "export", "--user", "ann")
    kept = json.loads(told.out)
    minutes = [(each["category"], each["at"][14:16]) for each in kept["sends"]]
    assert minutes == [(None, "13"), (None, "13"), (None, "23"), ("applied", "25")]
    assert [(each["job_id"], each["outcome"]) for each in kept["ended"]] == [(ended, "cancelled")]
    assert kept["ended"][0]["notification"]["title"] == "the third"
    assert apns("her-phone").token not in told.out
