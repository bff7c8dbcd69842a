"""What waits is found wherever it stands, whatever else stands there."""

import json
from collections.abc import Sequence
from typing import Any

import pytest
from redis import Redis

from notifier.queue.walk import Kind, Met, Walk, count
from notifier.store.exchange import Exchange, exchange, nothing


def stand(redis: Redis, job_id: str, *, lane: str = "default", **meta: Any) -> None:
    """In a queue, as a producer leaves it."""
    redis.hset(f"rq:job:{job_id}", mapping={"status": "queued", "origin": lane, "meta": json.dumps(meta)})
    redis.rpush(f"rq:queue:{lane}", job_id)


def met(redis: Redis, kind: Kind, user: str | None = None, page: int = 250) -> list[str]:
    found: list[str] = []

    def meet(some: Sequence[Met], _: int) -> Exchange[None]:
        found.extend(each.job_id for each in some)
        return nothing()

    walk = Walk(kind, meet, page)
    exchange(redis, walk.of_everybody() if user is None else walk.of_user(user))
    return found


@pytest.mark.parametrize("page", [1, 2, 3, 250])
@pytest.mark.parametrize("user", ["ann", None])
def test_what_is_no_job_keeps_nobody_from_what_is(redis: Redis, user: str | None, page: int) -> None:
    """A key of another kind, a meta that is no object, tags that are no list, and fields that are one."""
    redis.flushdb()
    stand(redis, "first", user="ann", category="chat")
    redis.sadd("rq:job:a-set", "x")
    redis.rpush("rq:queue:default", "a-set", "gone", b"\xff")
    redis.hset("rq:job:junk", mapping={"status": "queued", "meta": "["})
    redis.rpush("rq:queue:default", "junk")
    stand(redis, "odd", user="ann", category="chat", tags=5)
    stand(redis, "users", user=["ann"], category="of-users")
    stand(redis, "categories", user="ann", category=["chat"], collapse_id={})
    stand(redis, "last", lane="bulk", user="ann", category="chat")
    assert set(met(redis, Kind("chat"), user, page)) == {"first", "odd", "last"}
    assert exchange(redis, count()) == 9


def test_who_is_meant(redis: Redis) -> None:
    """Of each that is given, those that have it; what is cancelled, or RQ's, is none."""
    redis.flushdb()
    stand(redis, "plain", user="ann")
    stand(redis, "chat", user="ann", category="chat", collapse_id="score", tags=["t"])
    stand(redis, "other", user="bob", category="chat")
    stand(redis, "cancelled", user="ann")
    redis.hset("rq:job:cancelled", "status", "canceled")
    stand(redis, "of-rq", user="ann")
    redis.hset("rq:job:of-rq", "push_rq_job", "1")
    assert sorted(met(redis, Kind(), "ann")) == ["chat", "plain"]
    assert met(redis, Kind("default")) == ["plain"]
    assert met(redis, Kind("chat", "score", "t")) == ["chat"]
    assert met(redis, Kind(collapse_id="other")) == []
