"""Who waits most: the longest backlogs first; of very many users some by chance, and it says so."""

from __future__ import annotations

import re

from redis import Redis

from notifier.operations.stats import read_now
from notifier.operations.throttled import MAX_USERS, PAGE, PAGES, read_throttled
from notifier.queue.circuits import FAR_US
from notifier.scripts.keys import job_key, redis_key, rq_key, user_key
from notifier.units import moment


def let_wait(redis: Redis, user: str, lane: str = "default", at: int = 5_000_000, **counts: int) -> None:
    with redis.pipeline(transaction=False) as pipe:
        pipe.zadd(redis_key("wakeups", lane), {user: at})
        pipe.hset(user_key("backlogs", user), "#noted", "1")
        for category, n in counts.items():
            pipe.hset(user_key("backlogs", user), category, lane)
            pipe.zadd(user_key("backlog", user, category), {f"{user}-{category}-{each}": each for each in range(n)})
        pipe.execute()


def test_the_longest_backlogs_first(redis: Redis) -> None:
    """Each user with what waits in each category, over all lanes; who waits for nothing is not among them."""
    let_wait(redis, "ann", chat=3, news=4)
    let_wait(redis, "ann", "bulk", at=2_000_000)
    let_wait(redis, "bob", chat=9)
    let_wait(redis, "Z\xfcrich {x}", "urgent", chat=1)
    let_wait(redis, "nothing")
    told = read_throttled(redis)
    assert told["is_all"]
    assert [(each["user"], each["waiting"]) for each in told["users"]] == [("bob", 9), ("ann", 7), ("Z\xfcrich {x}", 1)]
    assert told["users"][1] == {
        "user": "ann",
        "waiting": 7,
        "categories": {"news": 4, "chat": 3},
        "why": "",
        "next_at": 2.0,
        "until": "when it is let go",
        "since": None,
    }
    assert told["says"] == "3 users wait."


def test_who_waits_for_a_pause_alone_has_no_time(redis: Redis) -> None:
    """The user's wake-up is where one expires that is paused until it is resumed: nothing is sent then."""
    let_wait(redis, "ann", chat=1)
    let_wait(redis, "bob", chat=1, news=1)
    for user in ("ann", "bob"):
        redis.hset(user_key("backlogs", user), "#w:chat", "hcategory:chat=anna chat")
    told = {each["user"]: (each["next_at"], each["until"]) for each in read_throttled(redis)["users"]}
    assert told == {"ann": (None, "when the pause ends"), "bob": (5.0, "when the pause ends")}


def test_a_wake_up_where_one_expires_is_no_next_time(redis: Redis) -> None:
    """Who waits for a stopped route, a mute or what a dead worker had in flight is looked at for its expiry alone."""
    told = {
        "ann": ("papns", None, "when apns works again"),
        "bob": ("m", None, "when the mute ends"),
        "cy": ("poverall:chat", None, "when it is let go"),
        "dee": ("f", None, "when that one has ended"),
        "eve": ("ug2", 5.0, "when it is let go"),
        "fay": ("d", 5.0, "when it is let go"),
        "gus": ("r", 5.0, "when it is tried again"),
    }
    for user, (mark, *_) in told.items():
        let_wait(redis, user, chat=1)
        redis.hset(user_key("backlogs", user), "#w:chat", mark)
    found = {each["user"]: (each["next_at"], each["until"]) for each in read_throttled(redis)["users"]}
    assert found == {user: (at, until) for user, (_, at, until) in told.items()}


def test_the_first_of_several_that_are_waited_for_is_told(redis: Redis) -> None:
    """Two stopped routes are not named as one, and a rule before a route is no part of its name."""
    let_wait(redis, "ann", chat=2, news=1)
    let_wait(redis, "bob", chat=2, news=1)
    redis.hset(user_key("backlogs", "ann"), mapping={"#w:chat": "papns", "#w:news": "pfcm"})
    redis.hset(user_key("backlogs", "bob"), mapping={"#w:chat": "ug2", "#w:news": "pfcm"})
    found = {each["user"]: (each["next_at"], each["until"]) for each in read_throttled(redis)["users"]}
    assert found == {"ann": (None, "when apns works again"), "bob": (5.0, "when fcm works again")}


def test_where_all_have_one_who_has_waited_longest_is_first(redis: Redis) -> None:
    """A tie is said; since when the first of each has waited is told, in its backlogs or in a queue."""
    for n, user in enumerate(["ann", "bob", "cy"]):
        let_wait(redis, user, chat=1)
        redis.hset(job_key(f"{user}-chat-0"), "enqueued_at", f"2026-11-23T12:00:0{5 - n}.000000Z")
    redis.hset(job_key("queued"), mapping={"meta": '{"user": "dee"}', "enqueued_at": "2026-11-23T12:00:04.5Z"})
    redis.rpush(rq_key("queue", "default"), "queued")
    told = read_throttled(redis)
    assert [(each["user"], each["since"].second) for each in told["users"]] == [
        ("cy", 3),
        ("bob", 4),
        ("dee", 4),
        ("ann", 5),
    ]
    assert told["says"] == "4 users wait, each with 1."


def test_the_first_of_the_queues_wait_too(redis: Redis) -> None:
    """While no worker looks, the queue alone holds them: whose they are is read of the first ones."""
    let_wait(redis, "ann", chat=1)
    for n, meta in enumerate(['{"user": "ann", "category": "chat"}', '{"user": "bob"}', "not JSON"]):
        redis.hset(job_key(f"job{n}".encode()), "meta", meta)
        redis.rpush(rq_key("queue", "default"), f"job{n}")
    told = read_throttled(redis)["users"]
    assert [(each["user"], each["categories"]) for each in told] == [("ann", {"chat": 2}), ("bob", {"default": 1})]
    assert (told[1]["why"], told[1]["until"]) == ("a worker: in the queue still", "when a worker takes it")


def test_who_waits_for_a_retry_is_among_them(redis: Redis) -> None:
    """What has failed is told from what has a time of its own; the rest of one that waits for a route is neither."""
    for job_id, at, fields in (("a", 9, {"push_attempts": "1"}), ("b", 8, {}), ("c", FAR_US, {})):
        redis.hset(job_key(job_id), mapping={"meta": f'{{"user": "{job_id}"}}', **fields})
        redis.zadd(redis_key("later"), {job_id: at})
    told = read_throttled(redis)
    assert {each["user"]: (each["why"], each["until"]) for each in told["users"]} == {
        "a": ("a retry", "when it is tried again"),
        "b": ("its own time, send_at", "at its time"),
    }
    assert told["says"] == "2 users wait, each with 1."


def test_since_when_is_of_who_was_accepted_first(redis: Redis) -> None:
    """Of several that wait for a time, the one that goes first was not accepted first."""
    for n in (2, 1, 3):
        redis.hset(job_key(f"j{n}"), mapping={"meta": '{"user": "ann"}', "enqueued_at": f"2026-11-23T12:00:0{n}.0Z"})
    redis.zadd(redis_key("later"), {"j2": 7, "j1": 8, "j3": 9})
    (told,) = read_throttled(redis)["users"]
    assert (told["waiting"], told["since"].second) == (3, 1)


def test_since_when_is_told_by_redis_clock(redis: Redis) -> None:
    """`enqueued_at` is of the producer's host, whose clock may be wrong by hours; a history notes Redis's time."""
    let_wait(redis, "ann", chat=1)
    redis.rpush(rq_key("queue", "default"), "ann-chat-0")
    seconds, us = redis.time()  # type: ignore[misc]
    told = {"enqueued_at": "2020-01-01T00:00:00.000000Z", "push_accepted": (seconds - 90) * 1_000_000 + us}
    redis.hset(job_key("ann-chat-0"), mapping=told | {"meta": '{"user": "ann"}'})
    assert [each["since"] for each in read_throttled(redis)["users"]] == [moment(told["push_accepted"])]
    assert 80 < read_now(redis).lanes["default"].oldest_queued_s < 1000


def test_of_very_many_some_are_looked_at(redis: Redis) -> None:
    """No more users are read than it says; each of them may be among them."""
    many = PAGE * PAGES + 1
    for n in range(many):
        let_wait(redis, f"u{n}", chat=1)
    calls = redis.info("commandstats").get("cmdstat_zcard", {}).get("calls", 0)
    told = read_throttled(redis)
    assert redis.info("commandstats")["cmdstat_zcard"]["calls"] - calls <= PAGE * PAGES + 3
    assert (told["is_all"], len(told["users"])) == (False, MAX_USERS)
    assert re.fullmatch(r"\d+ of the users who wait were looked at, each with 1; here are 10\.", told["says"])


def test_nobody_waits(redis: Redis) -> None:
    """An empty Redis tells nothing."""
    assert read_throttled(redis) == {"users": [], "is_all": True, "says": ""}
