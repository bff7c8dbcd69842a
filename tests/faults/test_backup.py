"""A backup taken while workers sent, restored as docs/how-to/backup.md says: it is clean, and bursts nobody."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier.errors import RedisUnusableError
from notifier.store.partitions import Partitions
from notifier.testing.embedded import EmbeddedRedis
from tests.faults.consistency import assert_consistent, assert_empty_of_work
from tests.harness.fleet import Fleet, broken_rules, notification, sends, start_fleet
from tests.harness.mortal_redis import MortalRedis
from tests.harness.processes import await_that, await_workers, total

RATES = {
    "user": {"windows": ["3/1s"], "gap": "20ms"},
    "worker": {"lease": "3s", "grace": "2s"},
}
OF = {n: (f"u{n % 12}", "default") for n in range(84)}
SOON = 24  # delivered when the copy is taken


def copy_rdb(redis: Any, source: Path, target: Path) -> None:
    """The snapshot, while everything runs."""
    redis.bgsave()
    await_that(lambda: not redis.info("persistence")["rdb_bgsave_in_progress"], "the snapshot")
    shutil.copy(source / "dump.rdb", target)


def copy_aof(redis: Any, source: Path, target: Path) -> None:
    """The append-only files, while everything runs: none of them is rewritten meanwhile."""
    redis.config_set("auto-aof-rewrite-percentage", 0)
    await_that(lambda: not redis.info("persistence")["aof_rewrite_in_progress"], "the end of a rewrite")
    for found in source.glob("appendonly*"):  # one file on Redis 6.2, a folder on 7
        (shutil.copytree if found.is_dir() else shutil.copy)(found, target / found.name)
    redis.config_set("auto-aof-rewrite-percentage", 100)


@contextmanager
def restored_rdb(folder: Path) -> Iterator[EmbeddedRedis]:
    """From a snapshot: first without the append-only files, as Redis would not read the snapshot; then with them."""
    with EmbeddedRedis(folder) as server, Redis.from_url(server.url) as redis:
        redis.config_set("appendonly", "yes")
        await_that(lambda: not redis.info("persistence")["aof_rewrite_in_progress"], "the append-only files")
        assert list(folder.glob("appendonly*"))
        yield server


@contextmanager
def restored_aof(folder: Path) -> Iterator[EmbeddedRedis]:
    with MortalRedis(folder, appendonly=True) as server:
        yield server


@pytest.mark.parametrize(("copy", "restored"), [(copy_rdb, restored_rdb), (copy_aof, restored_aof)])
def test_a_copy_that_was_taken_while_workers_sent(
    copy: Callable[..., None], restored: Callable[[Path], Any], tmp_path: Path
) -> None:
    """It is consistent before a worker starts, each user's limits hold across it, and all that waits in it goes."""
    with start_fleet(RATES, workers=2, apns={"timeout": "1s"}, appendonly=copy is copy_aof) as fleet:
        with fleet.notifier() as producer:
            producer.send_many(notification(user, n) for n, (user, _) in OF.items())
        fleet.await_delivered(SOON)
        copied = len(fleet.arrivals())
        copy(fleet.redis, fleet.server.folder, tmp_path)
        before = {arrival.data["n"]: arrival for arrival in fleet.arrivals()}
        stop_workers(fleet)
        lost = len(fleet.arrivals())
        with restored(tmp_path) as server, Redis.from_url(server.url) as redis:
            assert_consistent(redis)
            known = total(redis, "delivered")
            assert SOON <= known < len(OF)
            fleet.server, fleet.partitions = server, Partitions.around(redis)
            fleet.start_worker()
            fleet.await_ended(len(OF))
            stop_workers(fleet)
            assert_empty_of_work(redis)
            assert total(redis, "delivered") == len(OF)
        after = fleet.arrivals()[lost:]
        assert {int(arrival.data["n"]) for arrival in after} | {int(n) for n in before} == set(OF)
        assert len(after) >= len(OF) - known  # what went after the copy goes once more
        assert broken_rules(fleet, sends([*fleet.arrivals()[:copied], *after], OF)) == []


def test_a_redis_that_crashes_back_to_before_a_change_of_the_rates() -> None:
    """Laws 3 and 7: what waits in it goes by the rates that the workers follow, which run on."""
    with start_fleet({"user": {"windows": ["1/1h"]}}, workers=1) as fleet:
        with fleet.notifier() as producer:
            producer.send_many(notification("u", n) for n in range(5))
        fleet.await_delivered(1)
        fleet.redis.save()
        fleet.config.write_text(fleet.config.read_text(encoding="utf-8").replace("1/1h", "100/1s"), encoding="utf-8")
        fleet.await_delivered(5)
        walks = partial(fleet.redis.hmget, "notifier:leaders", "#walked", "#since")
        await_that(lambda: len(set(walks())) == 1, "the end of the walk")
        fleet.server.kill()
        fleet.server.restart()
        await_that(lambda: len(fleet.arrivals()) == 9, "those that Redis does not know of any more", 30)


def test_a_redis_that_is_emptied_under_workers_that_run() -> None:
    """What is sent from then on goes, by the rules of each user; the workers are known again, and so is the layout."""
    rates = {"user": {"windows": ["100/1s"]}, "users": {"u": {"windows": ["1/1h"]}}}
    with start_fleet(rates, workers=2) as fleet, fleet.notifier() as producer:
        producer.send_many(notification("u", n) for n in range(2))
        fleet.await_delivered(1)
        fleet.redis.flushall()
        await_that(lambda: fleet.redis.get("notifier:layout") is not None, "the layout")
        await_workers(fleet.redis, 2)
        producer.send_many(notification("u", n) for n in range(2, 5))
        producer.send_many(notification("v", n) for n in range(5, 25))
        fleet.await_delivered(21)
        assert_consistent(fleet.redis)
        assert sorted(int(arrival.data["n"]) for arrival in fleet.arrivals()) == [0, 2, *range(5, 25)]


def test_a_redis_that_comes_back_with_keys_of_another_layout_ends_its_workers() -> None:
    """They would not find what waits there, and say which layout they found, as at their start."""
    with start_fleet({}, workers=1) as fleet:
        (one,) = fleet.workers
        await_that(lambda: fleet.redis.exists("notifier:looked"), "its first beat")
        with fleet.redis.pipeline() as pipe:
            pipe.flushall().set("notifier:layout", "2").execute()
        assert one.wait(30) == RedisUnusableError.exit_status
        assert any("keys of layout 2, and this version knows layout 1" in log for log in fleet.logs())


def stop_workers(fleet: Fleet) -> None:
    fleet.end_workers()
    for worker in fleet.workers:
        worker.wait(30)
