"""Where Redis takes a right away from its user for a while: a worker ends, and nothing is lost or comes twice."""

from pathlib import Path

import pytest
from redis import Redis

from notifier import Notifier
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.processes import total
from tests.harness.support import (
    PATIENCE_S,
    Simulators,
    WorkerProcess,
    apns,
    eventually,
    note,
    notifier,
    worker,
    write_config,
)


@pytest.fixture
def url(redis: Redis, redis_server: EmbeddedRedis) -> str:
    """Where a worker signs in as a user that has all rights, so far."""
    redis.execute_command("ACL", "SETUSER", "app", "on", "nopass", "~*", "&*", "+@all")
    return f"redis://app@127.0.0.1:{redis_server.port}/0"


def sends(process: WorkerProcess, redis: Redis, producer: Notifier, simulators: Simulators) -> None:
    """Have the worker send a message, whose answer is held."""
    process.ready(redis)
    producer.send(note("ann", "in flight", apns("ann")))
    eventually(lambda: simulators.arrived("in flight"), "it to leave")


def test_what_is_in_flight_comes_once(redis: Redis, url: str, tmp_path: Path) -> None:
    """The worker takes nothing more, settles what is in flight once the right is back, and ends; another goes on."""
    with Simulators(tmp_path / "simulators") as simulators:
        config = write_config(tmp_path, url, simulators.providers(), worker={"lease": "60s", "grace": "60s"})
        let_go = simulators.hold(apns("ann"))
        with notifier(config) as producer:
            with worker(config) as process:
                sends(process, redis, producer, simulators)
                redis.execute_command("ACL", "SETUSER", "app", "-evalsha")
                try:
                    eventually(lambda: "limiter_unreachable" in process.log, "the worker to be refused")
                    let_go()
                finally:
                    redis.execute_command("ACL", "SETUSER", "app", "+evalsha")
                assert process.process.wait(PATIENCE_S) == 4
                assert "may not run EVALSHA; `notifier redis acl` prints what to grant" in process.log
            producer.send(note("ann", "after", apns("ann")))
            with worker(config, name="another"):
                eventually(lambda: total(redis, "delivered") == 2, "both to be delivered")
        assert [arrival.title for arrival in simulators.all()] == ["in flight", "after"]


@pytest.mark.parametrize("right", ["zadd", "zremrangebyscore", "hmget"])
def test_who_lacks_a_right_begins_with_nothing(redis: Redis, url: str, tmp_path: Path, right: str) -> None:
    """A script would take a message from the queue, and fail at that command. One line names it, at the start."""
    config = write_config(tmp_path, url)
    with notifier(config) as producer:
        producer.send(note("ann"))
        redis.execute_command("ACL", "SETUSER", "app", f"-{right}")
        with worker(config) as process:
            assert process.process.wait(PATIENCE_S) == 4
        assert f"Redis refuses: its user may not run {right.upper()}; `notifier redis acl` prints" in process.log
        assert redis.llen("rq:queue:default") == 1
        redis.execute_command("ACL", "SETUSER", "app", f"+{right}")
        with worker(config, name="another"):
            eventually(lambda: total(redis, "delivered") == 1, "it to be delivered")


def test_what_was_left_halfway_while_another_is_in_flight_goes_on(redis: Redis, url: str, tmp_path: Path) -> None:
    """The worker that ends waits for some seconds to settle that one: it leaves the repair to one that may."""
    with Simulators(tmp_path / "simulators") as simulators:
        config = write_config(tmp_path, url, simulators.providers(), worker={"grace": "5s"})
        let_go = simulators.hold(apns("ann"))
        with notifier(config) as producer:
            with worker(config) as process:
                sends(process, redis, producer, simulators)
                redis.execute_command("ACL", "SETUSER", "app", "-zadd")
                producer.send(note("bob", "after", apns("bob")))
                assert process.process.wait(PATIENCE_S) == 4
            assert redis.llen("rq:queue:default") == 0
            let_go()
            redis.execute_command("ACL", "SETUSER", "app", "+zadd")
            with worker(config, name="another"):
                eventually(lambda: simulators.arrived("after"), "it to be sent")
