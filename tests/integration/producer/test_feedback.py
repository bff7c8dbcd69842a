"""The feedback: each dead token is told once to each group, and a crash in the loop loses none."""

import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier import Device, Gone, Notification, Notifier, RedisUnusableError
from notifier.queue import calls
from notifier.queue.calls import DeadToken, RuleTable, Settlement
from notifier.queue.retention import Retention
from notifier.scripts.loader import run
from notifier.settings import parse_settings
from notifier.store.connection import connect
from notifier.testing.embedded import EmbeddedRedis
from tests.harness import warm
from tests.harness.mortal_redis import MortalRedis
from tests.harness.support import PATIENCE_S, clean_environ, eventually, write_config
from tests.harness.take import take

NOW = timedelta(0)  # a lease after which what is not acknowledged is given again at once
DAY_US = 86_400_000_000
EXAMPLES = Path(__file__).parents[3] / "examples"


class BrokenError(Exception):
    """What a test's loop breaks with."""


class Feed:
    """A Notifier, and tokens that die at will."""

    def __init__(self, redis: Redis, url: str) -> None:
        settings = parse_settings(f"redis: {{url: '{url}'}}\nproviders: {{fcm: {{client: console}}}}")
        self.redis = redis
        self.notifier = Notifier(connect(settings.redis), settings)
        self._rules = RuleTable(settings.policies())

    def tell(self, *names: str, gone_at_us: int | None = None, app: str | None = None) -> str:
        """One notification of which these devices turned out dead; returns its id."""
        devices = [Device("fcm", f"registration-of-{name}") for name in names]
        job_id = self.notifier.send(Notification(user="anna", devices=devices, title="Hello"))
        worker = calls.Worker(name="w", lanes=("default",), lease_us=10**9)
        (leased,) = take(self.redis, worker, calls.Room(1), self._rules).leased
        gone = tuple(DeadToken(device, app, "UNREGISTERED", gone_at_us) for device in devices)
        settlement = Settlement(
            leased.job_id, leased.permit, "anna", "default", reached=False, state="failed", word="rejected", gone=gone
        )
        kept = Retention(DAY_US, DAY_US, DAY_US)
        assert run(self.redis, calls.settle([settlement], self._rules, calls.Worker(name="w", keep=kept))) == [True]
        return job_id

    def names(self, *args: Any, **kwargs: Any) -> list[str]:
        """Whose tokens a loop is given."""
        return [name(gone) for gone in self.notifier.feedback(*args, **kwargs)]

    def break_over(self, first: str, *args: Any, **kwargs: Any) -> None:
        """Read as far as this one, and break over it."""

        def loop() -> None:
            for gone in self.notifier.feedback(*args, **kwargs):
                if name(gone) == first:
                    raise BrokenError

        with pytest.raises(BrokenError):
            loop()


def name(gone: Gone) -> str:
    return gone.token.removeprefix("registration-of-")


@pytest.fixture
def feed(redis: Redis, redis_server: EmbeddedRedis) -> Iterator[Feed]:
    made = Feed(redis, redis_server.url)
    with made.notifier:
        yield made


def test_what_is_told_of_a_token(feed: Feed) -> None:
    """Token, platform, app, user, reason, the provider's own time in UTC, and the notification that found it out."""
    job_id = feed.tell("a", gone_at_us=1_700_000_000_123_456, app="driver")
    (gone,) = feed.notifier.feedback()
    at = datetime(2023, 11, 14, 22, 13, 20, 123_456, UTC)
    assert gone == Gone("registration-of-a", "fcm", "driver", "anna", "UNREGISTERED", at, job_id)
    assert gone.token not in repr(gone)
    assert "anna" in repr(gone)


def test_without_a_time_of_the_providers_it_is_redis_time(feed: Feed) -> None:
    """A provider that does not say since when: since it was found out, by Redis's clock."""
    before = feed.redis.time()
    feed.tell("a")
    after = feed.redis.time()
    (gone,) = feed.notifier.feedback()
    assert gone.app is None
    assert before <= divmod(round(gone.gone_at.timestamp() * 1_000_000), 1_000_000) <= after


def test_a_loop_ends_when_nothing_is_left(feed: Feed) -> None:
    """Without anything to tell it ends at once; each token is told once, in order, and the next loop goes on there."""
    assert feed.names() == []
    feed.tell("a", "b")
    feed.tell("c")
    assert feed.names() == ["a", "b", "c"]
    assert feed.names(lease=NOW) == []
    feed.tell("d")
    assert feed.names() == ["d"]


def test_every_group_gets_all(feed: Feed) -> None:
    """A group that comes later begins with the oldest that is kept, whatever other groups have read."""
    feed.tell("a", "b")
    assert feed.names("register") == ["a", "b"]
    feed.tell("c")
    assert feed.names("audit") == ["a", "b", "c"]
    assert feed.names("register") == ["c"]


def test_consumers_of_a_group_share(feed: Feed) -> None:
    """Two loops of one group: each token goes to one of them, also where both run in the same name."""
    feed.tell("a", "b", "c", "d")
    for consumers in ((None, None), ("one", "two")):
        group = f"group of {consumers[0]}"
        one, two = (feed.notifier.feedback(group, consumer) for consumer in consumers)
        assert [name(next(loop)) for loop in (one, two, two, one)] == ["a", "b", "c", "d"]
        assert [name(gone) for loop in (one, two) for gone in loop] == []
        assert feed.names(group, lease=NOW) == []


def test_a_token_over_which_the_loop_breaks_is_given_again(feed: Feed) -> None:
    """It is acknowledged when the loop comes back, not before; after what is new, and once the lease is over."""
    feed.tell("a", "b", "c")
    feed.break_over("b")
    assert feed.names(lease=timedelta(hours=1)) == ["c"]
    assert feed.names(lease=timedelta.max) == []
    feed.tell("d")
    feed.break_over("b", "default", "another", lease=NOW)
    assert feed.names(lease=NOW) == ["b"]
    assert feed.names(lease=NOW) == []


def test_a_consumer_with_a_name_first_gets_what_it_left_behind(feed: Feed) -> None:
    """Who comes back under its name waits for no lease; what it had was not given to others in the meantime."""
    feed.tell("a", "b")
    feed.break_over("a", "default", "register")
    assert feed.names() == ["b"]
    feed.tell("c")
    assert feed.names("default", "register") == ["a", "c"]
    assert feed.names("default", "register") == []


def test_leaving_the_loop_acknowledges_nothing(feed: Feed) -> None:
    """After a `break` the last one is given again: the loop did not come back for another."""
    feed.tell("a", "b")
    for _ in feed.notifier.feedback():
        break
    assert feed.names(lease=NOW) == ["b", "a"]


def test_following_waits_for_more(feed: Feed) -> None:
    """With `follow` the loop is given what is told later, within moments, and what others left behind meanwhile."""
    told: list[str] = []
    more = threading.Event()

    def follow() -> None:
        for gone in feed.notifier.feedback(follow=True, lease=NOW):
            told.append(name(gone))
            more.set()
            if told[-1] == "end":
                return

    thread = threading.Thread(target=follow)
    thread.start()
    for step in ("a", "b"):
        more.clear()
        feed.tell(step)
        assert more.wait(PATIENCE_S)
    assert told == ["a", "b"]
    feed.tell("end")
    thread.join(PATIENCE_S)
    assert told == ["a", "b", "end"]


def test_what_follows_takes_over_from_the_dead(feed: Feed) -> None:
    """A follower that idles is given what a consumer that died had in hand, once its lease is over."""
    feed.tell("a")
    feed.break_over("a", "default", "dead")
    follower = feed.notifier.feedback(follow=True, lease=timedelta(milliseconds=1))
    assert name(next(follower)) == "a"


def test_old_ones_go_by_age(feed: Feed) -> None:
    """What is older than `keep_feedback` is dropped as newer ones come, and all of it when none come any more."""
    old_ms = int(feed.redis.time()[0]) * 1000 - DAY_US // 1000 - 1
    fields: Any = {"token": "registration-of-old", "platform": "fcm", "app": "", "user": "anna", "reason": "GONE"}
    fields |= {"gone_at": "1", "job_id": "j"}
    for number in range(250):
        feed.redis.xadd("notifier:feedback", fields, id=f"{old_ms}-{number}")
    feed.tell("new")
    # Redis drops by whole blocks of a hundred.
    assert feed.redis.xlen("notifier:feedback") <= 100
    assert feed.names()[-1] == "new"
    lifetime_ms: Any = feed.redis.pttl("notifier:feedback")
    assert DAY_US // 1000 - 60_000 < lifetime_ms <= DAY_US // 1000


def test_what_is_none_is_passed_over(feed: Feed) -> None:
    """An entry that something else wrote holds up none of those behind it."""
    whole = {"token": "t", "platform": "fcm", "app": "", "user": "u", "reason": "", "gone_at": "9" * 30, "job_id": "j"}
    for odd in ({"foo": "bar"}, {b"\xff": b"\xff"}, whole, whole | {"gone_at": "soon"}):
        feed.redis.xadd("notifier:feedback", odd)
    feed.tell("a")
    assert feed.names() == ["a"]


@pytest.mark.parametrize("consumer", [None, "register"])
def test_what_was_dropped_while_in_hand_is_passed_over(feed: Feed, consumer: str | None) -> None:
    """A token that was given, not acknowledged, and dropped by age since then is no longer told."""
    feed.tell("a", "b")
    feed.break_over("a", "default", consumer)
    feed.redis.xtrim("notifier:feedback", maxlen=1, approximate=False)
    assert feed.names("default", consumer, lease=NOW) == ["b"]
    assert feed.names("default", consumer, lease=NOW) == []


def test_a_stream_that_vanished_is_begun_again(feed: Feed) -> None:
    """A loop outlives the stream: where it has expired, or Redis lost its data, the group is made anew."""
    feed.tell("a")
    loop = feed.notifier.feedback(follow=True)
    assert name(next(loop)) == "a"
    feed.redis.delete("notifier:feedback")
    told: list[str] = []
    thread = threading.Thread(target=lambda: told.append(name(next(loop))))
    thread.start()

    # While it waits, once more.
    eventually(lambda: feed.redis.exists("notifier:feedback"), "the group")
    feed.redis.delete("notifier:feedback")
    feed.tell("b")
    thread.join(PATIENCE_S)
    assert told == ["b"]


def test_the_example_removes_what_was_not_registered_again(
    feed: Feed, redis_server: EmbeddedRedis, tmp_path: Path
) -> None:
    """examples/remove_dead_tokens.py: who is registered anew after the token died stays."""
    with closing(sqlite3.connect(tmp_path / "devices.db")) as register, register:
        register.execute("CREATE TABLE devices (token, user, registered_at)")
        rows = [(f"registration-of-{name}", "anna", at) for name, at in (("old", 999), ("new", 1001), ("alive", 5))]
        register.executemany("INSERT INTO devices VALUES (?, ?, ?)", rows)
    feed.tell("old", "new", gone_at_us=1_000_000_000)
    done = warm.run(
        [sys.executable, EXAMPLES / "remove_dead_tokens.py", tmp_path / "devices.db"],
        env=clean_environ(NOTIFIER_CONFIG=str(write_config(tmp_path, redis_server.url))),
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 removed\n", "")
    with closing(sqlite3.connect(tmp_path / "devices.db")) as register:
        left = [token for (token,) in register.execute("SELECT token FROM devices")]
    assert left == ["registration-of-new", "registration-of-alive"]
    assert feed.names(lease=NOW) == []


@pytest.mark.parametrize(
    ("word", "status", "says"),
    [("--help", 2, "Removes dead tokens"), ("devises.db", 1, "unable to open database file")],
)
def test_the_example_makes_no_register(
    redis_server: EmbeddedRedis, tmp_path: Path, word: str, status: int, says: str
) -> None:
    """What names no register is a mistake, and makes none: an empty one would hide it."""
    config = write_config(tmp_path, redis_server.url)
    done = warm.run(
        [sys.executable, EXAMPLES / "remove_dead_tokens.py", word],
        cwd=tmp_path,
        env=clean_environ(NOTIFIER_CONFIG=str(config)),
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(says)
    assert not (tmp_path / word).exists()


# A shell lets what it starts in the background ignore Ctrl-C, and all that comes of that.
HEEDS_CTRL_C = """
import runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
sys.argv.pop(0)
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_ctrl_c_ends_the_example(feed: Feed, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """With --follow it waits for more until then, and says what it did."""
    (tmp_path / "devices.db").touch()
    with subprocess.Popen(
        [sys.executable, "-c", HEEDS_CTRL_C, EXAMPLES / "remove_dead_tokens.py", tmp_path / "devices.db", "--follow"],
        env=clean_environ(NOTIFIER_CONFIG=str(write_config(tmp_path, redis_server.url))),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    ) as process:
        eventually(lambda: feed.redis.exists("notifier:feedback"), "the group")
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE_S) == (b"0 removed\n", None)
    assert process.returncode == 0


def test_redis_away_is_an_error_and_loses_nothing(tmp_path: Path) -> None:
    """Where Redis stops, the loop ends with RedisUnusableError; the next one is given what was not acknowledged."""
    with MortalRedis(tmp_path / "redis", appendonly=True) as server:
        feed = Feed(Redis.from_url(server.url), server.url)
        feed.tell("a", "b", "c")
        loop = feed.notifier.feedback()
        assert [name(next(loop)), name(next(loop))] == ["a", "b"]
        server.kill()
        with pytest.raises(RedisUnusableError):
            next(loop)
        server.restart()
        assert feed.names(lease=NOW) == ["c", "b"]
        feed.notifier.close()
        feed.redis.close()
