"""max_waiting: what a producer sees where too many wait, and that what waits is counted right whoever ends it."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier import AsyncNotifier, Notification, Notifier
from notifier.errors import NotReplicatedError, OverloadedError, RedisUnusableError
from notifier.operations.audit.audit import Audit
from notifier.operations.stats import read_stats
from notifier.producer.exchanges import Exchanges
from notifier.queue import calls
from notifier.rules.category import LANES, Category, Digest, Overflow
from notifier.rules.policies import Policies
from notifier.rules.policy import Policy
from notifier.scripts.loader import run
from notifier.scripts.rule_table import RuleTable
from notifier.settings import parse_settings
from notifier.store.exchange import exchange
from notifier.testing.embedded import EmbeddedRedis
from tests.harness import warm
from tests.harness.mortal_redis import MortalRedis
from tests.harness.support import clean_environ, eventually, note, notifier, queue, state, write_config
from tests.harness.take import publish_own_rules

SECTIONS: dict[str, Any] = {
    "user": {"max_waiting": 3},
    "categories": {
        "default": {"lane": "default"},
        "news": {"lane": "bulk", "overflow": "drop_oldest"},
        "score": {"lane": "default", "overflow": "collapse"},
        "comments": {"lane": "bulk", "overflow": "drop_oldest"},
        "goals": {"lane": "bulk", "overflow": "drop_oldest"},
    },
}

OVERFLOWS: dict[str, Overflow] = {"default": "reject", "news": "drop_oldest", "score": "collapse"}
WORKER = calls.Worker(name="w", lanes=LANES, lease_us=10**9)
RULES = RuleTable(
    Policies(
        users={"somebody": Policy()},  # Redis does not know who has such rules: everybody is to be told of
        categories={
            **{name: Category(name, overflow=overflow) for name, overflow in OVERFLOWS.items()},
            "comments": Category("comments", when_blocked="digest", digest=Digest(3, 10**9, None, "{count}")),
            "goals": Category("goals", when_blocked="collapse"),
        },
    )
)


def fill(producer: Notifier, user: str, count: int = 3, **fields: Any) -> list[str]:
    return [producer.send(note(user, **fields)) for _ in range(count)]


def enter_backlog(redis: Redis) -> None:
    """All enter their backlogs, and nobody goes before the worker has written down who has rules of their own."""
    run(redis, calls.pull(WORKER, calls.Room(100), RULES))


def notifier_command(config: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "notifier.cli", "--config", str(config), *words]
    return warm.run(command, env=clean_environ(), timeout=60)


def assert_clean(redis: Redis) -> None:
    """The audit knows what was dropped and superseded, and all that is kept about who waits."""
    found = [str(finding) for finding in Audit(redis, lease_us=10**9).findings()]
    assert found == []


def test_the_share_of_a_partition_is_not_told_as_the_limit_of_all(redis: Redis) -> None:
    """`max_waiting` says 9: each of four partitions takes two, and the third is told of that one alone."""
    settings = parse_settings("redis: {url: 'redis+cluster://127.0.0.1:1', partitions: 4}\nmax_waiting: 9")
    jobs = [
        calls.Job(f"j{n}", "default", b"", b'{"user": "ann", "category": "default"}', overflow="reject")
        for n in range(3)
    ]
    with pytest.raises(OverloadedError, match=r": 2 wait in one of 4 partitions, and its share of max_waiting is 2$"):
        exchange(redis, Exchanges(settings).enqueue(jobs))


def refused(redis: Any) -> int:
    return int(redis.hget("notifier:stats", "refused") or 0)


def test_one_more_is_refused(redis: Redis, producer: Notifier) -> None:
    """In the queue, in a backlog and for a later time alike; the error says whose limit it is; nothing was written."""
    first = producer.send(note("ann"))
    enter_backlog(redis)
    fill(producer, "ann", 1)
    fill(producer, "ann", 1, send_at=datetime.now(UTC) + timedelta(hours=1))
    keys = set(redis.keys("rq:job:*"))
    with pytest.raises(OverloadedError, match=r"^overloaded: 3 wait of user 'ann', and max_waiting is 3$") as error:
        producer.send(note("ann", dedupe_key="k"), job_id="more")
    (one,) = error.value.refused
    assert (one.user, one.limit, one.waiting, one.most, one.place) == ("ann", "user", 3, 3, 0)
    assert set(redis.keys("rq:job:*")) == keys
    assert refused(redis) == 1
    fill(producer, "bob", 3)
    # Its dedupe key was not used up.
    producer.cancel(first)
    assert producer.send(note("ann", dedupe_key="k"), job_id="more") == "more"


ENDS = [(end, entered) for end in ("cancel", "delete", "rq cancel") for entered in (False, True)] + [("empty", False)]


@pytest.mark.parametrize(("end", "entered"), ENDS)
def test_who_has_ended_waits_no_more(redis: Redis, producer: Notifier, end: str, entered: bool) -> None:
    """Whatever ended it, through us or through RQ, in the queue or in a backlog: in the end another has room."""
    job_ids = fill(producer, "ann")
    if entered:
        enter_backlog(redis)
    of_queue = queue(redis)
    ways: dict[str, Callable[[str], object]] = {
        "cancel": producer.cancel,
        "delete": lambda job_id: of_queue.fetch_job(job_id).delete(),
        "rq cancel": lambda job_id: of_queue.fetch_job(job_id).cancel(),
        "empty": lambda _: of_queue.empty(),
    }
    ways[end](job_ids[0])
    if entered and end != "cancel":
        look(redis)  # a backlog learns of it when its turn comes
    producer.send(note("ann"))


def look(redis: Redis) -> None:
    """As a worker that has room for one: it passes over what has gone, and takes the next."""
    publish_own_rules(redis, RULES)
    assert len(run(redis, calls.pull(WORKER, calls.Room(1), RULES)).leased) == 1


def test_send_many_says_which(redis: Redis, producer: Notifier) -> None:
    """The others are accepted, beyond the hundred too; the places of the refused are told, on_accepted has no hole."""
    told: list[int] = []
    notifications = [note("ann" if n % 50 == 1 else f"u{n}") for n in range(250)]
    with pytest.raises(OverloadedError, match=r"2 of 250 refused; notifications\[151\]: 3 wait of user 'ann'") as error:
        producer.send_many(notifications, on_accepted=lambda job_ids: told.append(len(job_ids)))
    assert [one.place for one in error.value.refused] == [151, 201]
    assert told == [100]
    assert redis.llen("rq:queue:default") == 248


def test_ctrl_c_and_cancellation_are_raised_as_themselves(config: Path, redis: Redis, producer: Notifier) -> None:
    """A program that goes on at an OverloadedError ends all the same."""
    for ends_by in (KeyboardInterrupt, asyncio.CancelledError):

        def given(ends_by: type[BaseException] = ends_by) -> Iterator[Notification]:
            yield from (note("ann") for _ in range(200))  # of the first hundred most are refused
            raise ends_by

        async def ends(given: Any = given) -> None:
            async with AsyncNotifier.from_config(config) as made:
                await made.send_many(given())

        with pytest.raises(ends_by):
            producer.send_many(given())
        redis.flushdb()
        with pytest.raises(ends_by):
            asyncio.run(ends())
        redis.flushdb()


def test_what_redis_did_not_answer_was_not_tried(tmp_path: Path) -> None:
    """Where Redis goes away after some were refused, the hundred that failed is not told as accepted."""
    with MortalRedis() as server:

        def given() -> Iterator[Notification]:
            yield from (note("ann" if n < 4 else f"u{n}") for n in range(100))
            with Redis.from_url(server.url) as beside:
                eventually(lambda: beside.llen("rq:queue:default") == 99, "the first hundred to be accepted")
                beside.ping()  # Redis has written its answers of the turn before
            server.kill()
            yield from (note(f"v{n}") for n in range(100))

        config = write_config(tmp_path, server.url, **SECTIONS)
        with notifier(config) as producer, pytest.raises(OverloadedError, match=r"1 of 100 refused") as error:
            producer.send_many(given())
    assert error.value.tried == 100
    assert isinstance(error.value.__context__, RedisUnusableError)


@pytest.mark.usefixtures("redis")
def test_what_was_refused_awaits_no_replica(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """It is refused, not said to be accepted; of several the error names both kinds."""
    of_redis = {"url": redis_server.url, "wait_replicas": 1, "socket_timeout": "200ms"}
    with notifier(write_config(tmp_path, "", **SECTIONS | {"redis": of_redis, "user": {"max_waiting": 1}})) as producer:
        with pytest.raises(NotReplicatedError) as alone:
            producer.send(note("ann"), job_id="first")
        assert (alone.value.job_ids, alone.value.refused) == (["first"], ())
        with pytest.raises(OverloadedError):
            producer.send(note("ann"))
        with pytest.raises(NotReplicatedError, match="1 more refused") as both:
            producer.send_many([note("bob"), note("ann")], job_ids=["second", "third"])
    assert (both.value.job_ids, [one.place for one in both.value.refused]) == (["second"], [1])


def test_in_all(redis: Redis, tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """The limit of all ends send_many with the hundred in which it is reached; what waits in backlogs counts too."""
    config = write_config(tmp_path, redis_server.url, max_waiting=120)
    with notifier(config) as producer:
        producer.send_many(note(f"u{n}") for n in range(20))
        enter_backlog(redis)
        with pytest.raises(OverloadedError) as error:
            producer.send_many(note(f"v{n}") for n in range(1000))
    assert error.value.tried == 200
    assert [one.place for one in error.value.refused] == list(range(100, 200))
    assert {one.limit for one in error.value.refused} == {"all"}


def test_the_oldest_makes_room(redis: Redis, producer: Notifier) -> None:
    """drop_oldest: the oldest of the backlog ends as dropped, is counted and kept; the queue has none to drop."""
    oldest, second, _ = fill(producer, "ann", category="news")
    with pytest.raises(OverloadedError):
        producer.send(note("ann", category="news"))
    enter_backlog(redis)
    producer.send(note("ann", category="news"))
    assert [state(producer, job_id) for job_id in (oldest, second)] == ["dropped", "waiting"]
    status = producer.status(oldest)
    assert status.reason == "overflow"
    assert redis.hget("notifier:stats", "dropped") == b"1"
    assert_clean(redis)


def test_what_is_dropped_for_room_is_in_the_numbers_of_its_minute(redis: Redis, producer: Notifier) -> None:
    """As all that ends, but what is superseded."""
    fill(producer, "ann", category="news")
    enter_backlog(redis)
    fill(producer, "ann", 2, category="news")
    assert read_stats(redis, 2).together.outcomes()["dropped"] == 2


def test_a_digest_is_not_dropped(redis: Redis, producer: Notifier) -> None:
    """The next one takes its place, and stands for all; behind one in the queue it may not, and is refused."""
    ids = []
    for _ in range(2):
        ids += fill(producer, "ann", 1, category="comments")
        enter_backlog(redis)
    fill(producer, "ann", 2)
    with pytest.raises(OverloadedError):
        producer.send(note("ann", category="comments"))
    enter_backlog(redis)
    ids += fill(producer, "ann", 2, category="comments")
    assert [state(producer, job_id) for job_id in ids[1:]] == ["superseded", "superseded", "waiting"]
    assert redis.hget(f"rq:job:{ids[-1]}", "push_count") == b"4"
    producer.cancel(user="ann", category="default")
    ids += fill(producer, "ann", 1, category="comments")
    enter_backlog(redis)
    assert redis.hmget(f"rq:job:{ids[-1]}", "push_count", "push_gather") == [b"5", b"0"]
    assert_clean(redis)


def test_none_is_dropped_for_one_that_replaces_another(redis: Redis, producer: Notifier) -> None:
    """In a category that collapses it takes the place of the one with its id; the oldest, of another, waits on."""
    other, same = (producer.send(note("ann", category="goals", collapse_id=name)) for name in "ab")
    fill(producer, "ann", 1)
    enter_backlog(redis)
    producer.send(note("ann", category="goals", collapse_id="b"))
    assert [state(producer, job_id) for job_id in (other, same)] == ["waiting", "superseded"]
    assert_clean(redis)


def test_the_same_makes_room(redis: Redis, producer: Notifier) -> None:
    """collapse: the waiting one with the same id is replaced in its place, at once; one with another id is refused."""
    fill(producer, "ann", 1, category="score", collapse_id="a")
    fill(producer, "ann", 2, category="score")
    enter_backlog(redis)
    (first, *_) = redis.zrange("notifier:backlog:{ann}:score", 0, -1)
    with pytest.raises(OverloadedError):
        producer.send(note("ann", category="score", collapse_id="b"))
    new = producer.send(note("ann", category="score", collapse_id="a"))
    assert state(producer, first.decode()) == "superseded"
    assert redis.zrange("notifier:backlog:{ann}:score", 0, 0) == [new.encode()]
    assert state(producer, new) == "waiting"
    assert_clean(redis)


def test_what_waits_for_months_is_counted_and_replaced(redis: Redis, producer: Notifier) -> None:
    """Redis keeps what stands in no backlog until its time has come, and collapse ids as long as a window lasts."""
    producer.send(note("ann", send_at=datetime.now(UTC) + timedelta(days=300)))
    fill(producer, "ann", 1, send_at=datetime.now(UTC) + timedelta(days=1))
    assert redis.ttl("notifier:arriving:{ann}") > timedelta(days=300).total_seconds()
    fill(producer, "ann", 1, category="score", collapse_id="a")
    enter_backlog(redis)
    assert redis.ttl("notifier:collapse:{ann}:score") > timedelta(days=366).total_seconds()


@pytest.mark.parametrize("limits", [{}, {"user": {}, "max_waiting": 3}])
def test_none_takes_the_place_before_one_that_arrives(
    redis: Redis, tmp_path: Path, redis_server: EmbeddedRedis, limits: dict[str, Any]
) -> None:
    """collapse: while an older one is in the queue still, which would come after it, the newer is refused."""
    with notifier(write_config(tmp_path, redis_server.url, **SECTIONS | limits)) as producer:
        fill(producer, "ann", 1, category="score", collapse_id="a")
        fill(producer, "ann", 1, category="score")
        enter_backlog(redis)
        (older,) = fill(producer, "ann", 1, category="score", collapse_id="a")
        with pytest.raises(OverloadedError):
            producer.send(note("ann", category="score", collapse_id="a"))
        enter_backlog(redis)
        newer = producer.send(note("ann", category="score", collapse_id="a"))
        assert (state(producer, older), state(producer, newer)) == ("superseded", "waiting")
    assert_clean(redis)


def test_the_command_says_it(redis: Redis, producer: Notifier, config: Path, tmp_path: Path) -> None:
    """`send` and `send-file`: one line that says which limit, and status 1; send-file goes on there another time."""
    first = fill(producer, "ann")[0]
    sent = notifier_command(config, "send", "ann", "--device", f"apns:{'ab' * 32}", "--title", "x")
    assert (sent.returncode, sent.stderr) == (1, "overloaded: 3 wait of user 'ann', and max_waiting is 3\n")
    device = {"platform": "apns", "token": "ab" * 32}
    rows = [json.dumps({"user": user, "devices": [device], "title": "x"}) for user in ("bob", "ann")]
    file = tmp_path / "rows.jsonl"
    file.write_text("\n".join(rows), encoding="utf-8")
    sent = notifier_command(config, "send-file", str(file))
    assert sent.returncode == 1
    assert "1 of 2 refused; notifications[1]: 3 wait of user 'ann'" in sent.stderr
    producer.cancel(first)
    assert notifier_command(config, "send-file", str(file)).returncode == 0
    assert redis.hget("notifier:stats", "accepted") == b"5"


def test_memory(redis: Any, tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """Beyond redis.max_memory nothing is accepted, and the error says how much it is; below it all is."""
    for most, accepts in (("1KB", False), ("100%", True)):
        with notifier(
            write_config(tmp_path, redis_server.url, redis={"url": redis_server.url, "max_memory": most})
        ) as producer:
            if accepts:
                assert producer.send_many(note(f"u{n}") for n in range(3)) == 3
                continue
            with pytest.raises(OverloadedError, match=r"bytes, and redis.max_memory is 1,024$") as error:
                producer.send(note("ann"))
            assert {one.limit for one in error.value.refused} == {"memory"}
            assert refused(redis) == 1


def test_what_has_ended_in_a_queue_waits_for_nothing(redis: Redis, producer: Notifier) -> None:
    """Deleted or cancelled: it is no fault. A worker passes over it."""
    deleted, cancelled, _ = fill(producer, "ann")
    redis.delete(f"rq:job:{deleted}")
    producer.cancel(cancelled)
    assert_clean(redis)
    assert list(Audit(redis, lease_us=10**9, repair=True).findings()) == []
