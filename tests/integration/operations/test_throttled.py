"""Who waits most: the longest backlogs first; of very many users some by chance, and it says so."""

import re

from redis import Redis

from notifier.operations.throttled import MAX_USERS, PAGE, PAGES, read_throttled
from notifier.scripts.keys import redis_key, user_key


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
    let_wait(redis, "ann", chat=3)
    let_wait(redis, "ann", "bulk", at=2_000_000, news=4)
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
    assert told["says"] == "3 users wait."


def test_who_waits_for_a_pause_alone_has_no_time(redis: Redis) -> None:
    """The user's wake-up is where one expires that is paused until it is resumed: nothing is sent then."""
    let_wait(redis, "ann", chat=1)
    let_wait(redis, "bob", chat=1, news=1)
    for user in ("ann", "bob"):
        redis.hset(user_key("backlogs", user), "#w:chat", "hcategory:chat=anna chat")
    told = {each["user"]: (each["next_at"], each["until"]) for each in read_throttled(redis)["users"]}
    assert told == {"ann": (None, "when the pause ends"), "bob": (5.0, "when the pause ends")}


def test_a_pause_in_one_lane_hides_no_time_of_another(redis: Redis) -> None:
    """The earlier wake-up, where the paused one expires, is not told as the time at which the next may go."""
    let_wait(redis, "ann", "urgent", at=2_000_000, chat=1)
    let_wait(redis, "ann", "bulk", news=1)
    redis.hset(user_key("backlogs", "ann"), "#w:chat", "hcategory:chat=anna chat")
    assert [each["next_at"] for each in read_throttled(redis)["users"]] == [5.0]


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


def test_where_all_have_one_it_is_said(redis: Redis) -> None:
    """Nobody of them waits more than another."""
    for user in ("ann", "bob", "cy"):
        let_wait(redis, user, chat=1)
    assert read_throttled(redis)["says"] == "3 users wait, each with 1."


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
