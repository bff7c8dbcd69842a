"""What a worker does with the answers of strict providers: one worker process, real HTTP, real Redis."""

import json
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from rq.registry import CanceledJobRegistry, FailedJobRegistry

from notifier.simulators.wire import Reply
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.asking import InRedis
from tests.harness.at_work import AtWork, world_of
from tests.harness.support import (
    CONSOLE,
    PATIENCE_S,
    apns,
    ends,
    eventually,
    fcm,
    note,
    notifier,
    queue,
    scheduled,
    state,
    worker,
    write_config,
)

RATES: dict[str, Any] = {
    "users": {
        "two": {"windows": ["2/1h"]},
        **{user: {"windows": ["1/1h"]} for user in ("slow", "told", "typed", "liked", "paced")},
        "gapped": {"gap": "150ms"},
    },
    "categories": {
        "default": {"lane": "default"},
        "chat": {"lane": "urgent"},
        "marketing": {"lane": "bulk"},
        "twice": {"lane": "default", "attempts": 2},
        "careful": {"lane": "default", "on_unknown": "give_up"},
        "comments": {"lane": "default", "when_blocked": "collapse"},
        "typing": {"lane": "default", "when_blocked": "drop"},
        "likes": {
            "lane": "default",
            "when_blocked": "digest",
            "digest": {"after": 3, "within": "1h", "title": "likes-sum-{count}"},
        },
    },
}
GONE = Reply(410, "Unregistered")
BUSY = Reply(429, "TooManyRequests", headers={"Retry-After": "0"})
IDLE = Reply(400, "IdleTimeout", headers={"Retry-After": "0"})
CUT = Reply(0, drop=True)
OK = Reply(200)


class World(AtWork):
    def send(self, user: str, title: str, *devices: Any, **fields: Any) -> str:
        return self.producer.send(note(user, title, *devices, **fields))

    def reason(self, job_id: str) -> str:
        status = self.producer.status(job_id)
        return status.reason or ""


world = world_of(World, RATES)


def test_many_devices_count_once(world: World) -> None:
    """A notification goes to all devices of its user and is one against the user's window."""
    devices = (apns("once-a"), apns("once-b"), fcm("once-c"))
    job_ids = [world.send("two", f"once-{n}", *devices) for n in range(3)]
    ends(world.producer, job_ids[1], "delivered")
    ends(world.producer, job_ids[2], "waiting")
    for title in ("once-0", "once-1"):
        assert sorted(a.token for a in world.simulators.arrived(title)) == sorted(d.token for d in devices)
    assert not world.simulators.arrived("once-2")
    assert world.outcomes("two") == {"delivered": 2}


def test_one_living_device_is_enough(world: World) -> None:
    """Delivered where one device took it, though another is dead; rejected where none is left."""
    dead, living = world.simulators.answer(apns("dead-1"), GONE), fcm("living-1")
    some = world.send("mixed", "mixed", dead, living)
    ends(world.producer, some, "delivered")
    assert [a.status for a in world.simulators.arrived("mixed") if a.token == dead.token] == [410]
    none = world.send("lost", "lost", dead, world.simulators.answer(fcm("dead-2"), Reply(404, "UNREGISTERED")))
    ends(world.producer, none, "rejected")
    assert "Unregistered" in world.reason(none)
    assert "UNREGISTERED" in world.reason(none)
    assert world.outcomes("lost") == {"rejected": 1}
    assert none in FailedJobRegistry(queue=queue(world.redis)).get_job_ids()


def test_a_retry_goes_to_those_without_a_final_answer(world: World) -> None:
    """Who took it or is dead is left alone; who was busy is asked again, until all have answered finally."""
    took, dead = fcm("retry-took"), world.simulators.answer(apns("retry-dead"), GONE)
    busy = world.simulators.answer(apns("retry-busy"), BUSY, BUSY, OK)
    job_id = world.send("retry", "retry", took, dead, busy)
    ends(world.producer, job_id, "delivered")
    answers: dict[str, list[int]] = {}
    for arrival in world.simulators.arrived("retry"):
        answers.setdefault(arrival.token, []).append(arrival.status)
    assert answers == {took.token: [200], dead.token: [410], busy.token: [429, 429, 200]}
    assert world.outcomes("retry") == {"delivered": 1}


def test_attempts_come_to_an_end(world: World) -> None:
    """After the last attempt it has failed, with the provider's word for why; nothing is sent any more."""
    idle = world.simulators.answer(apns("ends"), IDLE)
    job_id = world.send("ends", "ends", idle, category="twice")
    ends(world.producer, job_id, "failed")
    assert "IdleTimeout" in world.reason(job_id)
    assert "2 of 2" in world.reason(job_id)
    status = world.producer.status(job_id)
    assert status.attempts in {0, 2}
    assert len(world.simulators.arrived("ends")) == 2
    assert world.outcomes("ends") == {"failed": 1}


def test_the_last_attempt_counts_what_came_before(world: World) -> None:
    """Where one device took it and another never answered well, it is delivered in the end, not failed."""
    took, idle = apns("last-took"), world.simulators.answer(apns("last-idle"), IDLE)
    job_id = world.send("last", "last", took, idle, category="twice")
    ends(world.producer, job_id, "delivered")
    assert len(world.simulators.arrived("last")) == 3


def test_an_expiry_counts_what_came_before(world: World) -> None:
    """Where one device took it and it expired before another did, it is delivered, not expired."""
    took, busy = (
        apns("late-took"),
        world.simulators.answer(apns("late-busy"), Reply(429, "TooManyRequests", headers={"Retry-After": "100"})),
    )
    job_id = world.send("late", "late", took, busy, expires_in=200)
    eventually(lambda: world.redis.zscore("notifier:later", job_id), "the wait that was asked for")
    world.redis.hset(f"rq:job:{job_id}", "push_deadline", 1)
    world.redis.zadd("notifier:later", {job_id: 0})
    eventually(lambda: state(world.producer, job_id) not in {"queued", "waiting", "sending"}, "an end")
    assert state(world.producer, job_id) == "delivered"


def test_what_waits_too_long_expires(world: World) -> None:
    """An expired one ends in RQ's failed registry, is told as expired and never reaches the provider."""
    job_ids = [world.send("slow", f"slow-{n}", expires_in=0.5 if n else None) for n in range(3)]
    for job_id in job_ids[1:]:
        ends(world.producer, job_id, "expired")
        assert job_id in FailedJobRegistry(queue=queue(world.redis)).get_job_ids()
        assert "expired" in world.reason(job_id)
    assert world.redis.zcard("notifier:sent:{slow}") == 1, "those that expired cost the user nothing"
    InRedis(world.redis).give_all_back("slow")
    after = world.send("slow", "slow-after")
    ends(world.producer, after, "delivered")
    assert world.simulators.titles("slow-") == ["slow-0", "slow-after"]


def test_the_newest_takes_the_place_of_the_waiting_one(world: World) -> None:
    """Of three with one collapse id that wait, the last goes, in the first one's place; the others are superseded."""
    send = partial(world.send, "told", category="comments")
    first = send("told-0", collapse_id="a")
    ends(world.producer, first, "delivered")
    waiting = [send("told-1", collapse_id="a"), send("told-between"), send("told-2", collapse_id="a")]
    newest = send("told-{count}", collapse_id="a")
    ends(world.producer, newest, "waiting")
    for job_id in (newest, waiting[1]):
        InRedis(world.redis).give_all_back("told", "comments")
        ends(world.producer, job_id, "delivered")
    assert world.simulators.titles("told-") == ["told-0", "told-3", "told-between"]
    for old, new in ((waiting[0], waiting[2]), (waiting[2], newest)):
        status = world.producer.status(old)
        assert (status.state, status.superseded_by) == ("superseded", new)
        assert old in CanceledJobRegistry(queue=queue(world.redis)).get_job_ids()
        assert world.producer.cancel(old) == "ended"
    assert world.outcomes("told") == {"delivered": 3, "superseded": 2}


def test_what_may_not_go_at_once_is_dropped(world: World) -> None:
    """In a category that drops, what the rules hold back ends as dropped, counted, and never reaches the provider."""
    job_ids = [world.send("typed", f"typed-{n}", category="typing") for n in range(3)]
    ends(world.producer, job_ids[0], "delivered")
    for job_id in job_ids[1:]:
        ends(world.producer, job_id, "dropped")
        assert world.reason(job_id) == "user 1/1h"
        assert job_id in CanceledJobRegistry(queue=queue(world.redis)).get_job_ids()
    assert world.simulators.titles("typed-") == ["typed-0"]
    assert world.outcomes("typed") == {"delivered": 1, "dropped": 2}


def test_what_is_held_back_is_summed_up(world: World) -> None:
    """In a category with a digest the first goes as itself; the next, held back, go as one once there are enough."""
    first = world.send("liked", "likes-0", category="likes")
    ends(world.producer, first, "delivered")
    job_ids = [world.send("liked", f"likes-{n}", category="likes") for n in range(1, 4)]
    ends(world.producer, job_ids[-1], "waiting")
    InRedis(world.redis).give_all_back("liked", "likes")
    ends(world.producer, job_ids[-1], "delivered")
    assert world.simulators.titles("likes-") == ["likes-0", "likes-sum-3"]
    assert world.outcomes("liked") == {"delivered": 2, "superseded": 2}


def test_a_gap_has_one_in_flight(world: World) -> None:
    """A user with a gap has one send under way, and the gap lies between an answer and the next arrival."""
    device = world.simulators.delay(apns("gapped"), 100)
    job_ids = [world.send("gapped", f"gapped-{n}", device) for n in range(6)]
    most = 0
    while state(world.producer, job_ids[-1]) != "delivered":
        most = max(most, sum(state(world.producer, job_id) == "sending" for job_id in job_ids))
    assert most == 1
    times = [world.simulators.arrived(f"gapped-{n}")[0].at_us for n in range(6)]
    assert times == sorted(times)
    gaps = [after - before for before, after in pairwise(times)]
    assert min(gaps) >= 250_000


def test_one_user_in_order(world: World) -> None:
    """A blocked line drains in the order of acceptance, a high priority before the others, each sent once."""
    job_ids = [world.send("paced", f"paced-{n}") for n in range(4)]
    ends(world.producer, job_ids[3], "waiting")
    high = world.send("paced", "paced-high", priority="high")
    ends(world.producer, high, "waiting")
    for job_id in (high, *job_ids[1:]):
        InRedis(world.redis).give_all_back("paced")
        ends(world.producer, job_id, "delivered")
    titles = world.simulators.titles("paced-")
    assert state(world.producer, high) == "delivered"
    assert [title for title in titles if title != "paced-high"] == [f"paced-{n}" for n in range(4)]
    assert titles.index("paced-high") < titles.index("paced-3")
    assert scheduled(world.redis).count == 0 or "paced" not in world.redis.hgetall("notifier:backlogs:{paced}")


def test_urgent_goes_first_and_bulk_does_not_starve(tmp_path: Path, world: World) -> None:
    """Behind 2,000 bulk notifications urgent ones go at once, and while they go bulk still gets its small share."""
    with EmbeddedRedis() as server:
        small = {"batch": 50, "in_flight": 50, "grace": "4s"}
        config = write_config(tmp_path, server.url, world.simulators.providers(), **RATES, worker=small)
        with notifier(config) as producer:
            producer.send_many(note(f"b{n}", f"flood-bulk-{n}", category="marketing") for n in range(2_000))
            producer.send_many(note(f"c{n}", f"flood-chat-{n}", category="chat") for n in range(500))
            producer.send(note("d", "flood-default"))
        with worker(config, "--burst") as running:
            assert running.process.wait(PATIENCE_S) == 0
    titles = world.simulators.titles("flood-")
    assert len(titles) == len(set(titles)) == 2_501
    assert titles.index("flood-chat-0") < 60
    assert titles.index("flood-default") < 120
    places = [place for place, title in enumerate(titles) if title.startswith("flood-chat")]
    assert places[400] < 700  # of 500; who is cut off by a full worker is a matter of its own, below
    bulk = sum(title.startswith("flood-bulk") for title in titles[: places[400]])
    assert 5 <= bulk <= 200  # up to a tenth of each batch


def test_who_is_due_goes_before_who_has_just_come(tmp_path: Path, world: World) -> None:
    """A user for whom a worker had no room is next, not last, though others of the same lane keep arriving."""
    with EmbeddedRedis() as server:
        small = {"batch": 50, "in_flight": 50, "grace": "4s"}
        config = write_config(tmp_path, server.url, world.simulators.providers(), **RATES, worker=small)
        with notifier(config) as producer:
            producer.send_many(note(f"u{n}", f"turn-{n}") for n in range(2_000))
        with worker(config, "--burst") as running:
            assert running.process.wait(PATIENCE_S) == 0
    late = [place - int(title.rpartition("-")[2]) for place, title in enumerate(world.simulators.titles("turn-"))]
    assert len(late) == 2_000
    # Half of each look is for who is due: behind those who waited while the limit of the route grew, all are as late.
    # If those who arrive went first, the first would wait for most of them: 1,600 and more.
    assert max(late) <= 1_000


def test_a_burst_with_nothing_to_do_ends(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """The end may come while the beat asks Redis for the first time, and is not lost there."""
    by_name = redis_server.url.replace("127.0.0.1", "localhost")  # looked up in a thread, so connecting takes longer
    with worker(write_config(tmp_path, by_name, CONSOLE), "--burst", name="nothing-to-do") as idle:
        assert idle.process.wait(60) == 0


def test_the_log_is_lines_of_json(world: World) -> None:
    """All that the worker has written is JSON lines, and nothing of it an error of its own."""
    events = [json.loads(line) for line in world.worker.log.splitlines()]
    assert events
    assert not [event for event in events if event["level"] in {"error", "critical"}]
