"""Why they wait: counted with a real worker, told by stats and the metrics; what is cancelled counts."""

import json
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from redis import Redis

from notifier.operations.action_log import read_actions
from notifier.operations.stats import MAX_LIMITS, read_now, read_stats
from notifier.queue.history import WORDS
from notifier.queue.waits import OTHER_LIMITS
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.serve_rig import TOKEN, Client, serving
from tests.harness.support import apns, eventually, fcm, note, notifier, worker, write_config
from tests.integration.conftest import Run

CATEGORIES = {
    "default": {"lane": "default"},
    "chat": {"lane": "urgent"},
    "news": {"lane": "bulk", "windows": ["1/1d"]},
    "offers": {"lane": "bulk", "windows": ["1/calendar-month"]},
}


SECTIONS = {"user": {"windows": ["2/1h"]}, "users": {"eve": {"windows": []}}, "categories": CATEGORIES}


@pytest.fixture
def server(config: Path) -> Iterator[Client]:
    with serving(config, TOKEN) as client:
        yield client.with_token("anna")


def waits(run: Run) -> dict[str, int]:
    told = json.loads(run("stats", "--json").out)["now"]["waits"]
    return {each["what"]: each["waiting"] for each in told}


def test_each_is_counted_under_what_holds_it(run: Run, config: Path, redis: Redis, server: Client) -> None:
    """By a user's rule, a category's, a pause and its own time; what is cancelled is in the minute's figures."""
    with worker(config) as one, notifier(config) as producer:
        one.ready(redis)
        for _ in range(5):
            producer.send(note("ann", "Hello", fcm("ann")))
        for _ in range(4):
            producer.send(note("bob", "Hello", fcm("bob"), category="news"))
            producer.send(note("eve", "Hello", fcm("eve"), category="offers"))
        assert run("pause", "category:chat", "--who", "anna").status == 0
        for user in ("ann", "cy"):
            producer.send(note(user, "Hello", fcm(user), category="chat"))
        producer.send(note("dee", "Hello", fcm("dee"), send_at=datetime.now(UTC) + timedelta(hours=1)))
        expected = {"user 2/1h": 4, "news 1/1d": 3, "offers 1/calendar-month": 3}
        expected |= {"the pause of category:chat by anna": 1, WORDS["send_at"]: 1}
        eventually(lambda: waits(run) == expected, f"{expected}, not {waits(run)}")
        metrics = server("/metrics")[1]
        assert 'notifier_waiting{why="news 1/1d"} 3.0' in metrics
        assert f'notifier_waiting{{why="{WORDS["send_at"]}"}} 1.0' in metrics
        assert producer.cancel(user="bob").cancelled == 3
        eventually(lambda: waits(run).get("news 1/1d") is None, "none of news")
        minutes = json.loads(run("stats", "--json").out)["minutes"]
        assert sum(each["ended"].get("cancelled", 0) for each in minutes) == 3
    assert redis.hvals("notifier:waits") != []


def test_limits_that_users_choose_make_no_series_and_no_rows(
    run: Run, config: Path, redis: Redis, server: Client
) -> None:
    """Users choose any windows: Prometheus gets one series for all of these, and people a short table."""
    with worker(config) as one, notifier(config) as producer:
        one.ready(redis)
        chosen = 2 * MAX_LIMITS
        for n in range(chosen):
            producer.users.set(f"u{n}", windows=[f"1/{2 + n}h"])
        producer.send_many(note(f"u{n}", "Hello", fcm(f"u{n}")) for n in range(chosen) for _ in range(2))
        producer.send_many(note("ann", "Hello", fcm("ann")) for _ in range(5))
        eventually(lambda: read_stats(redis, 1).now.in_flight == 0 and sum(waits(run).values()) == chosen + 3)
        told = waits(run)
        assert len(told) == MAX_LIMITS + 1
        assert told["user 2/1h"] == 3, "that for which most wait is named"
        assert told[OTHER_LIMITS] == chosen + 1 - MAX_LIMITS
        series = [line for line in server("/metrics")[1].splitlines() if line.startswith("notifier_waiting{")]
        assert sorted(series) == [
            f'notifier_waiting{{why="{OTHER_LIMITS}"}} {chosen:.1f}',
            'notifier_waiting{why="user 2/1h"} 3.0',
        ]


@pytest.mark.parametrize(
    ("keep", "expires_in", "told"),
    [
        ("1h", None, "apns is stopped: paused by anna"),
        ("1h", 3_600, "apns is stopped: paused by anna; it expires before"),
        ("0s", None, "a route that is stopped"),
        ("0s", 3_600, "a route that is stopped"),
    ],
)
def test_a_rest_waits_for_its_route(
    run: Run, tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis, *, keep: str, expires_in: int | None, told: str
) -> None:
    """One device has it, the other's route is paused: nobody says that it goes in 2100, or when it expires."""
    config = write_config(tmp_path, redis_server.url, history={"keep": keep})
    with worker(config) as one, notifier(config) as producer:
        one.ready(redis)
        assert run("pause", "route:apns", "--who", "anna").status == 0
        rest = producer.send(note("mix", "Hello", fcm("mix"), apns("mix"), expires_in=expires_in))
        eventually(lambda: redis.zcard("notifier:later") == 1, "the rest to wait")
        status = producer.status(rest)
        assert (status.state, status.expected_at, status.not_before) == ("waiting", None, told)
        (entry,) = json.loads(run("users", "export", "--user", "mix").out)["waiting"]
        assert (entry["job_id"], entry["expected_at"]) == (rest, None)
        why = "apns stopped" if keep == "1h" else "a route that is stopped"
        assert waits(run) == {why: 1}


def test_of_many_in_no_backlog_a_part_tells(redis: Redis) -> None:
    """A retry, a time of its own and a stopped route are told apart; of more than are read the numbers still sum up."""
    fields = {"meta": b'{"user": "ann", "category": "chat"}'}
    for n in range(400):
        redis.zadd("notifier:later", {f"j{n}": n + 1})
        more = {"push_attempts": b"1"} if n % 3 == 0 else {}
        noted = (b"1 5 r", b"1 0 t", b"1 0 t 7 papns")[n % 3]
        redis.hset(f"rq:job:j{n}", mapping={"push_history": noted, **fields, **more})
    found = {(kind, what): n for kind, what, n in read_now(redis).waits}
    assert set(found) == {("retry", "a retry"), ("send_at", "its own time, send_at"), ("route", "apns stopped")}
    assert abs(sum(found.values()) - 400) <= 2
    assert all(40 < n < 260 for n in found.values())
    redis.zremrangebyrank("notifier:later", 0, 399 - 30)
    assert sorted(n for _, _, n in read_now(redis).waits) == [10, 10, 10]
    redis.hset("notifier:waits", mapping={"r": 5})
    retried = [n for kind, _, n in read_now(redis).waits if kind == "retry"]
    assert retried == [15], "one row also where others wait for the same behind others of their users"


def test_all_of_a_kind_are_cancelled_only_by_who_says_so(run: Run, config: Path, redis: Redis) -> None:
    """Queued or waiting, of whichever user: counted first, cancelled after a yes, of that kind alone; it is logged."""
    with notifier(config) as producer:
        for n in range(3):
            for _ in range(4):
                producer.send(note(f"u{n}", "Hello", fcm("ann"), category="news", tags=("old",)))
        kept = [producer.send(note("u0", "Hello", fcm("ann"), category="chat")) for _ in range(2)]
        with worker(config, "--burst") as one:
            assert one.process.wait(60) == 0
        producer.send(note("u9", "Hello", fcm("ann"), category="news", tags=("new",)))
        counted = run("cancel", "--category", "news", "--all-users", "--dry-run")
        assert counted.out == "11 notifications of 4 users would be cancelled: category news\n"
        assert run("cancel", "--category", "news", "--all-users").status == 2  # nobody is there to ask
        done = run("cancel", "--category", "news", "--tag", "old", "--all-users", "--yes")
        assert done.out.splitlines()[-1] == "10 cancelled, 0 too late"
        assert json.loads(run("cancel", "--tag", "new", "--all-users", "--yes", "--json").out)["cancelled"] == 1
        assert run("cancel", "--all-users").status == 2
        assert {producer.status(job_id).state for job_id in kept} <= {"delivered"}  # type: ignore[union-attr]
    assert [(each.action, each.of) for each in read_actions(redis, 9)] == [
        ("cancel of all", "tag new"),
        ("cancel of all", "category news, tag old"),
    ]
    assert redis.exists("notifier:waits") == 0
