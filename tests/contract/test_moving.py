"""Users move from one shard to another: all that is theirs comes along, once, wherever the move is killed."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import pytest
from redis import Redis
from redis.client import Pipeline

from notifier import Hold, Notification, Permit, Policy, Window
from notifier.dispatch import calls
from notifier.producer.notifier import Notifier
from notifier.rules.policy import LANES
from notifier.rules.preferences import Preferences
from notifier.scripts import keys
from notifier.scripts.keys import redis_key
from notifier.scripts.loader import Call, run
from notifier.scripts.ownership import HERE
from notifier.scripts.rule_table import RuleTable
from notifier.settings import Settings, parse_settings
from notifier.shards.map import home
from notifier.shards.migration import migrate, steps, user_state
from notifier.shards.migration.migrate import BATCH, JOBS_A_CALL, MoveError, Mover
from notifier.shards.users import list_users
from notifier.testing.embedded import EmbeddedRedis
from tests.support import note

T = TypeVar("T")
HOUR_US = 3_600_000_000
ONLY_CHOSE = "of whom nothing else is known"
HELD = Policy(windows=(Window(1, interval_us=HOUR_US),))


class KilledError(Exception):
    pass


class Pair:
    """Two shards, `old` and `new`, and no worker but what `work` does."""

    def __init__(self, old: EmbeddedRedis, new: EmbeddedRedis, *, joining: bool = False) -> None:
        self.old: Any = Redis.from_url(old.url)
        self.new: Any = Redis.from_url(new.url)
        for client in (self.old, self.new):
            client.flushall()
        self.settings = _settings(old, new, joining=joining)
        self.producer = Notifier.of(self.settings)
        names = (f"{name}{n}" for n in range(20) for name in ("user-", "Zoë }{ "))
        self.users = [user for user in names if home(user, ("old", "new")) == "old"][:3]

    def close(self) -> None:
        self.producer.close()
        self.old.close()
        self.new.close()

    def mover(self, *, everybody: bool = True) -> Mover:
        return Mover(
            source="old",
            clients={"old": self.old, "new": self.new},
            home=lambda user: "new" if everybody else home(user, ("old", "new")),
            categories=["chat", "default"],
            everybody=everybody,
            keep_failed_us=HOUR_US,
            on_progress=lambda _: pull(self.old),
        )

    def waiting(self, redis: Any, user: str) -> list[str]:
        """The titles that wait in a user's backlog, in order."""
        return [_title(redis, job_id) for job_id in redis.zrange(f"notifier:line:{{{user}}}:default", 0, -1)]


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[EmbeddedRedis, EmbeddedRedis]]:
    with EmbeddedRedis() as old, EmbeddedRedis() as new:
        yield old, new


@pytest.fixture
def pair(servers: tuple[EmbeddedRedis, EmbeddedRedis]) -> Iterator[Pair]:
    with closing(Pair(*servers)) as made:
        yield made


def _settings(old: EmbeddedRedis, new: EmbeddedRedis, *, joining: bool) -> Settings:
    shards = [{"name": "old", "url": old.url}, {"name": "new", "url": new.url, "joining": joining}]
    console = {"client": "console"}
    document = {
        "redis": {"shards": shards},
        "user": {"windows": ["1/1h"]},
        "categories": {"default": {"lane": "default"}, "chat": {"lane": "urgent"}},
        "providers": {"apns": console, "fcm": console},
    }
    return parse_settings(json.dumps(document))


def _title(redis: Any, job_id: bytes) -> str:
    call = json.loads(zlib.decompress(redis.hget(b"rq:job:" + job_id, "data")))
    return str(call[3]["title"])


def pull(redis: Any) -> list[tuple[str, str, int]]:
    return run(redis, calls.pull(max_jobs=100, lease_us=60_000_000, leads=False, lanes=LANES)).users


def lease(redis: Any, settings: Settings, users: list[tuple[str, str, int]]) -> list[calls.Leased]:
    table = RuleTable(settings.policies())
    return run(redis, calls.admit(users, table, max_jobs=50, lease_us=60_000_000, worker="w", lanes=LANES)).leased


def settle(redis: Any, settings: Settings, job: calls.Leased, *, state: calls.State = "delivered") -> None:
    done = calls.Settlement(job.job_id, job.permit, job.user, job.category, True, state, "delivered")
    table = RuleTable(settings.policies())
    kept = {"keep_failed_us": HOUR_US, "keep_delivered_us": HOUR_US, "keep_feedback_us": HOUR_US}
    assert run(redis, calls.settle([done], table, worker="w", **kept)) == [True]


def fill(pair: Pair) -> dict[str, list[str]]:
    """Each user: one delivered, six that wait, one of tomorrow. Returns who waits, in order."""
    for user in pair.users:
        for n in range(6):
            pair.producer.send(note(user, f"{n}", dedupe_key=f"key-{n}", expires_in=600), job_id=_id(user, n))
        pair.producer.send(note(user, "high", priority="high"))
        pair.producer.send(note(user, "tomorrow", send_at=datetime.now(UTC) + timedelta(days=1)))
    leased = lease(pair.old, pair.settings, pull(pair.old))
    assert len(leased) == len(pair.users)
    for job in leased:
        settle(pair.old, pair.settings, job)
    for user in (pair.users[0], ONLY_CHOSE):
        pair.producer.users.set(user, gap="2h")
    return {user: pair.waiting(pair.old, user) for user in pair.users}


def test_what_moves_is_what_is_forgotten() -> None:
    """One list of a user's keys: what a shard hands over is what `forget` deletes."""
    assert (set(user_state.OF_USER), set(user_state.OF_SCOPE)) == (set(keys.OF_USER), set(keys.OF_SCOPE))


def check(pair: Pair, before: dict[str, list[str]], sent_us: dict[str, float]) -> None:
    """All of it is on the new shard, once and in order; nothing and nobody is on the old one."""
    assert not any(list_users(pair.old))
    assert not pair.old.zcard("notifier:later")
    assert {user.decode() for user in pair.new.hkeys("notifier:preferences")} == {pair.users[0], ONLY_CHOSE}
    assert pair.producer.users.get(ONLY_CHOSE) == Preferences(gap_us=2 * HOUR_US)
    fresh = Notification(user=pair.users[0], devices=note(pair.users[0]).devices, title="newest")
    pair.producer.send(fresh)
    pull(pair.new)
    for user, titles in before.items():
        assert pair.waiting(pair.new, user) == titles + ["newest"] * (user == fresh.user)
        ((_, at),) = pair.new.zrange(f"notifier:sent:{{{user}}}", 0, -1, withscores=True)
        assert sent_us[user] <= at < sent_us[user] + 10_000_000, "counted, no earlier than it was"
        assert pair.new.pttl(f"notifier:sent:{{{user}}}") > 0
        assert pair.new.hget(f"notifier:usage:{{{user}}}", "delivered") == b"1"
        again = pair.producer.send(note(user, "again", dedupe_key="key-3"))
        assert again == _id(user, 3), "a dedupe key is known wherever its user is"
        assert pair.producer.status(_id(user, 3)).state == "waiting"  # type: ignore[union-attr]
    assert pair.new.zcard("notifier:later") == len(pair.users)
    assert lease(pair.new, pair.settings, pull(pair.new)) == [], "what was sent there counts here"
    deadline = int(pair.new.hget(f"rq:job:{_id(pair.users[0], 3)}", "push_deadline"))
    assert 590_000_000 < deadline - _now_us(pair.new) < 600_000_000
    assert not pair.new.keys("notifier:arrived:*")


def _now_us(redis: Any) -> int:
    seconds, us = redis.time()
    return int(seconds * 1_000_000 + us)


def sent(pair: Pair) -> dict[str, float]:
    return {user: pair.old.zrange(f"notifier:sent:{{{user}}}", 0, -1, withscores=True)[0][1] for user in pair.users}


def test_all_that_is_a_users_comes_along(pair: Pair) -> None:
    """Backlogs in order, what was sent, what waits for its time, deadlines, counts, dedupe keys: all come along."""
    before = fill(pair)
    sent_us = sent(pair)
    assert before[pair.users[0]] == ["0", "1", "2", "3", "4", "5"], "the urgent one was sent first"
    progress = pair.mover().run()
    assert (progress.users, progress.jobs) == (3, 3 * 7)
    check(pair, before, sent_us)


def test_a_move_may_be_killed_at_any_step(
    servers: tuple[EmbeddedRedis, EmbeddedRedis], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before or after any of its writes, a move is gone on with by the next: nothing lost, nothing doubled."""
    steps = 1
    while True:
        with closing(Pair(*servers)) as pair:
            before = fill(pair)
            sent_us = sent(pair)
            with monkeypatch.context() as patched:
                for whole, step in dying(steps):
                    patched.setattr(*whole, step)
                patched.setattr(Mover, "_hold", lambda _: None)
                killed = dies(pair.mover())
            pair.old.delete(redis_key("mover"))  # its time has passed
            pair.mover().run()
            check(pair, before, sent_us)
        if not killed:
            break
        steps += 5
    assert steps > 30


WRITES = frozenset({"EVALSHA", "HSET", "HDEL", "DEL", "ZADD", "SET", "PEXPIRE"})


def dying(step: int) -> list[tuple[tuple[Any, str], Callable[..., Any]]]:
    """What sends commands, killed at this of the writes or pipelines: before it or, at every second step, after it."""
    left = step

    def wrapped(whole: Callable[..., Any], *, always: bool) -> Callable[..., Any]:
        def send(self: Any, *arguments: Any, **options: Any) -> Any:
            nonlocal left
            left -= always or arguments[0] in WRITES
            if left == 0 and step % 2:
                raise KilledError
            answer = whole(self, *arguments, **options)
            if left == 0:
                raise KilledError
            return answer

        return send

    return [
        ((Redis, "execute_command"), wrapped(Redis.execute_command, always=False)),
        ((Pipeline, "execute"), wrapped(Pipeline.execute, always=True)),
    ]


def dies(mover: Mover) -> bool:
    try:
        mover.run()
    except KilledError:
        return True
    return False


def test_who_has_something_in_flight_is_waited_for(pair: Pair) -> None:
    """Two shards never send for one user at once: what a worker holds is settled before anything moves."""
    user = pair.users[0]
    for n in range(3):
        pair.producer.send(note(user, f"{n}"))
    (job,) = lease(pair.old, pair.settings, pull(pair.old))
    seen = []

    def looks(progress: migrate.Progress) -> None:
        seen.append(progress.waiting)
        assert not pair.new.exists(f"notifier:sent:{{{user}}}")
        assert pull(pair.old) == [], "nothing more is given out there"
        if len(seen) == 3:
            settle(pair.old, pair.settings, job)
            mover.on_progress = lambda _: None

    mover = pair.mover()
    mover.on_progress = looks
    mover.run()
    assert seen == [1, 1, 1]
    pull(pair.new)
    assert pair.waiting(pair.new, user) == ["1", "2"]
    assert lease(pair.new, pair.settings, [(user, "default", _now_us(pair.new))]) == [], (
        "the one that was in flight counts"
    )


def test_the_new_clock_may_be_behind_or_ahead(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times are told by the new shard's clock: a send is never taken to be earlier than it was."""
    before = fill(pair)
    sent_us = sent(pair)
    ahead_us = 7_000_000
    clock = migrate.State.__init__

    def skewed(self: Any, *arguments: Any) -> None:
        clock(self, *arguments)
        self.ahead_us += ahead_us

    monkeypatch.setattr(migrate.State, "__init__", skewed)
    first = pair.users[0]
    pair.old.zadd(f"notifier:counts:{{{first}}}", {"1000": 3, "2000": 5})
    pair.old.pexpire(f"notifier:counts:{{{first}}}", 60_000)
    pair.old.hset(f"notifier:burst:{{{first}}}:chat", mapping={"full": 3000, "at": 2000, "every": 10})
    pair.mover().run()
    for user in before:
        ((_, at),) = pair.new.zrange(f"notifier:sent:{{{user}}}", 0, -1, withscores=True)
        assert 0 <= at - sent_us[user] - ahead_us < 10_000_000
    counts = pair.new.zrange(f"notifier:counts:{{{first}}}", 0, -1, withscores=True)
    assert [(int(at) // 1_000_000, count) for at, count in counts] == [(7, 3), (7, 5)]
    burst = pair.new.hgetall(f"notifier:burst:{{{first}}}:chat")
    assert burst[b"every"] == b"10"
    assert int(burst[b"full"]) - int(burst[b"at"]) == 1000
    assert pair.new.exists("notifier:counting")


def test_a_producer_of_an_older_configuration_is_sent_on(pair: Pair) -> None:
    """It goes where its map says, is told better, and follows; so it is for users whom nobody knew."""
    user, newcomer = pair.users[0], pair.users[1]
    assert isinstance(pair.producer.limiter.acquire(user, HELD), Permit)
    gone = pair.users[2]
    pair.old.hset(redis_key("moves"), gone, HERE)  # noted, but nothing is left of it
    pair.mover().run()
    assert pair.old.hget(redis_key("moves"), gone) == b"new"
    assert pair.old.hget(redis_key("moves"), user) == b"new"
    job_id = pair.producer.send(note(user))
    assert pair.new.exists(f"rq:job:{job_id}")
    pair.producer.send(note(newcomer))
    assert isinstance(pair.producer.limiter.acquire(user, HELD), Hold)
    pair.old.hset(redis_key("moves"), "", "listing all")  # the same command once more
    pair.producer.send_many([note(newcomer), note(user)])
    assert pair.old.llen("rq:queue:default") == 0
    assert pair.new.llen("rq:queue:default") == 4


def test_who_lives_on_a_joining_shard_moves_there_and_nobody_else(servers: tuple[EmbeddedRedis, EmbeddedRedis]) -> None:
    """Until they are moved, all are on the old shard; then a joining one has its own, and takes who is new."""
    names = [f"user-{n}" for n in range(40)]
    theirs = [user for user in names if home(user, ("old", "new")) == "new"]
    with closing(Pair(*servers, joining=True)) as pair:
        pair.producer.send_many(note(user) for user in names[:30])
        assert (pair.old.llen("rq:queue:default"), pair.new.dbsize()) == (30, 0)
        moved = pair.mover(everybody=False).run()
        assert moved.users == len([user for user in theirs if user in names[:30]])
        pair.producer.send_many(note(user, "second") for user in names)
        pull(pair.old)
        pull(pair.new)
        for user in names:
            at, other = (pair.new, pair.old) if user in theirs else (pair.old, pair.new)
            assert len(pair.waiting(at, user)) == 1 + (user in names[:30])
            assert not pair.waiting(other, user)


def test_no_step_holds_redis_for_long(pair: Pair) -> None:
    """Closing a batch of users, and giving out, taking over and removing some jobs, are so many commands at most."""
    users = {f"user-{n}": "new" for n in range(BATCH)}
    for user in users:
        pair.old.hset(f"notifier:lines:{{{user}}}", mapping={"default": "default", "chat": "urgent"})
    user = pair.users[0]
    pair.producer.send_many(note(user) for _ in range(3 * JOBS_A_CALL))
    pull(pair.old)
    assert commands(pair.old, steps.leave(users | {user: "new"}, LANES))[0] <= 15 * BATCH
    given, jobs = commands(pair.old, steps.depart(user, "default", max_jobs=JOBS_A_CALL))
    taken, new = commands(pair.new, steps.arrive("old", jobs))
    removed, _ = commands(pair.old, steps.departed(user, [job.id for job in jobs]))
    assert len(jobs) == new == JOBS_A_CALL
    assert max(given, taken, removed) <= 8 * JOBS_A_CALL + 10
    assert commands(pair.new, steps.arrive("old", jobs))[1] == 0, "each arrives once"


def commands(redis: Any, call: Call[T]) -> tuple[int, T]:
    """How many commands a call runs, and its reply."""
    redis.config_resetstat()
    answer = run(redis, call)
    return sum(entry["calls"] for entry in redis.info("commandstats").values()), answer


def test_one_at_a_time(pair: Pair) -> None:
    """Two drains of one shard do not meet: the second ends with a line."""
    pair.old.set(redis_key("mover"), "somebody", px=60_000)
    with pytest.raises(MoveError, match=r"users of old are being moved already"):
        pair.mover().run()


def _id(user: str, n: int) -> str:
    return f"{user.encode().hex()}-{n}"
