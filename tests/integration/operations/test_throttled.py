"""Who waits most: the longest backlogs first; of very many users some by chance, and it says so."""

from __future__ import annotations

from redis import Redis

from notifier.operations.throttled import MAX_USERS, PAGE, PAGES, read_throttled
from notifier.scripts.keys import job_key, redis_key, rq_key, user_key


def let_wait(redis: Redis, user: str, lane: str = "default", at: int = 5_000_000, **counts: int) -> None:
    with redis.pipeline(transaction=False) as pipe:
        pipe.zadd(redis_key("gates", lane), {user: at})
        pipe.hset(user_key("lines", user), "#noted", "1")
        for category, n in counts.items():
            pipe.hset(user_key("lines", user), category, lane)
            pipe.zadd(user_key("line", user, category), {f"{user}-{category}-{each}": each for each in range(n)})
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
    }


def test_the_first_of_the_queues_wait_too(redis: Redis) -> None:
    """While no worker looks, the queue alone holds them: whose they are is read of the first ones."""
    let_wait(redis, "ann", chat=1)
    for n, meta in enumerate(['{"user": "ann", "category": "chat"}', '{"user": "bob"}', "not JSON"]):
        redis.hset(job_key(f"job{n}".encode()), "meta", meta)
        redis.rpush(rq_key("queue", "default"), f"job{n}")
    told = read_throttled(redis)["users"]
    assert [(each["user"], each["categories"]) for each in told] == [("ann", {"chat": 2}), ("bob", {"default": 1})]
    assert (told[1]["why"], told[1]["until"]) == ("a worker: in the queue still", "when a worker takes it")


def test_of_very_many_some_are_looked_at(redis: Redis) -> None:
    """No more users are read than it says; each of them may be among them."""
    many = PAGE * PAGES + 1
    for n in range(many):
        let_wait(redis, f"u{n}", chat=1)
    calls = redis.info("commandstats").get("cmdstat_zcard", {}).get("calls", 0)
    told = read_throttled(redis)
    assert redis.info("commandstats")["cmdstat_zcard"]["calls"] - calls <= PAGE * PAGES + 3
    assert (told["is_all"], len(told["users"])) == (False, MAX_USERS)


def test_nobody_waits(redis: Redis) -> None:
    """An empty Redis tells nothing."""
    assert read_throttled(redis) == {"users": [], "is_all": True}
