"""Law 7: a changed file applies to what is already waiting, without a restart, a loss or a second send."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from notifier import Notifier
from notifier.rules.kinds.window import largest_count
from notifier.store.partitions import Partitions
from notifier.store.pipelining import on_all
from notifier.store.published import Published, followers, publish, published_rates, rates_before, withdraw
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.processes import await_that
from tests.harness.support import (
    Simulators,
    WorkerProcess,
    eventually,
    note,
    notifier,
    stood_still_us,
    worker,
    write_config,
)

BACKLOG = 20
SLOW = {"windows": ["1/1h"]}
FAST = {"windows": ["10/1s"]}


class Held:
    """What a test of live rates works with."""

    def __init__(
        self, path: Path, url: str, simulators: Simulators, workers: list[WorkerProcess], sender: Notifier
    ) -> None:
        self.path, self.url, self.simulators, self.workers, self.sender = path, url, simulators, workers, sender

    def rates(self, user: object) -> None:
        """Replace the file, as a deployment does."""
        new = write_config(self.path.parent / "new", self.url, self.simulators.providers(), user=user)
        new.replace(self.path)

    def logged(self, event: str) -> int:
        """How many workers have logged an event."""
        return sum(event in one.log for one in self.workers)


@pytest.fixture
def held(redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path, simulators: Simulators) -> Iterator[Held]:
    """Three workers, and a backlog of one user of which the rules let one go in an hour."""
    with contextlib.ExitStack() as stack:
        path = write_config(tmp_path, redis_server.url, simulators.providers(), user=SLOW)
        workers = [stack.enter_context(worker(path, name=f"live-{n}")).ready(redis) for n in range(3)]
        sender = stack.enter_context(notifier(path))
        sender.send_many(note("ann", f"live-{n:02}") for n in range(BACKLOG))
        eventually(lambda: simulators.titles("live-") and redis.zcard("rq:scheduled:default") == BACKLOG - 1)
        yield Held(path, redis_server.url, simulators, workers, sender)


def test_a_waiting_backlog_follows_the_new_rates(held: Held) -> None:
    """Held at 1 an hour, drained at 10 a second once the file says so: each once."""
    held.rates(FAST)
    eventually(lambda: held.logged("config_taken_up") == 3, "each worker to take it up")
    titles = [f"live-{n:02}" for n in range(BACKLOG)]
    eventually(lambda: len(held.simulators.titles("live-")) == BACKLOG, "the end of the backlog")
    assert sorted(held.simulators.titles("live-")) == titles


def test_what_waits_follows_the_rates_of_workers_that_begin(held: Held, redis: Redis) -> None:
    """As above, where the file changes while no worker runs: a deployment that stops the old ones first."""
    for one in held.workers:
        assert one.end() == 0
    held.rates(FAST)
    with worker(held.path, name="live-new") as new:
        new.ready(redis)
        eventually(lambda: len(held.simulators.titles("live-")) == BACKLOG, "the end of the backlog")


def test_what_waits_follows_the_rates_of_workers_that_begin_beside_the_old(
    held: Held, redis: Redis, tmp_path: Path
) -> None:
    """A rolling deployment: whoever begins has a file of its own, and the old ones end after that."""
    path = write_config(tmp_path / "rolled", held.url, held.simulators.providers(), user=FAST)
    with worker(path, name="live-new") as new:
        new.ready(redis)
        for one in held.workers:
            assert one.end() == 0
        eventually(lambda: len(held.simulators.titles("live-")) == BACKLOG, "the end of the backlog")


def test_a_broken_file_is_refused_and_the_old_rates_go_on(held: Held) -> None:
    """An unknown unit changes nothing but the log; the next good file is taken up."""
    held.rates({"windows": ["10/fortnight"]})
    eventually(lambda: held.logged("config_refused") == 3, "each worker says so")
    assert all("unknown unit" in one.log for one in held.workers)
    assert len(held.simulators.titles("live-")) == 1
    held.rates(FAST)
    eventually(lambda: len(held.simulators.titles("live-")) == BACKLOG, "the end of the backlog")


def apply(held: Held, rates: dict[str, object]) -> Published:
    """Publish rates as `notifier config apply` does, to hold in a second."""
    with Redis.from_url(held.url) as redis:
        return publish(redis, rates, 1_000_000)


def test_published_rates_hold_for_all_at_one_moment(held: Held, redis: Redis) -> None:
    """The backlog held at 1 an hour drains at 10 a second from the published moment on, and not before it.

    Its first comes within two seconds, and the time for which the machine stood still: others' sends tell that.
    """
    published = apply(held, {"user": FAST, "categories": {"default": {"lane": "default"}}})
    titles = [f"live-{n:02}" for n in range(BACKLOG)]
    sent_us: dict[str, int] = {}

    def drained() -> bool:
        sent_us[title := f"probe-{len(sent_us)}"] = time.time_ns() // 1000
        held.sender.send(note(title, title))
        return held.simulators.titles("live-") == titles

    await_that(drained, "the end of the backlog", poll_s=0.05)
    eventually(lambda: len(held.simulators.titles("probe-")) == len(sent_us), "the end of the others")
    moments = [held.simulators.arrived(title)[0].at_us for title in titles[1:]]
    spans = [(at_us, held.simulators.arrived(title)[0].at_us) for title, at_us in sent_us.items() if at_us < moments[0]]
    assert published.at_us <= moments[0] <= published.at_us + 2_000_000 + stood_still_us(spans)
    assert largest_count(moments, 1_000_000) <= 10

    def agreed() -> bool:
        at, workers = followers(redis)
        told = {(worker.version, worker.source, worker.problem) for worker in workers}
        return at == {0: published} and told == {(published.version, "redis", "")}

    eventually(agreed, "all three to follow")


def test_who_stood_still_goes_on_by_the_rates_in_force(
    tmp_path: Path, redis: Redis, redis_server: EmbeddedRedis, simulators: Simulators
) -> None:
    """Laws 1 and 7: it is stopped, as where its machine is, and what falls due meanwhile waits for the new rates.

    The window keeps what was sent for as long as the new rates ask for it.
    """
    path = write_config(tmp_path, redis_server.url, simulators.providers(), user={"windows": ["100/1h"], "gap": "3s"})
    with worker(path, name="still") as still, notifier(path) as sender:
        still.ready(redis)
        for n in range(2):
            sender.send_many(note(f"user-{user}", f"still-{user}-{n}") for user in range(20))
        eventually(lambda: len(simulators.titles("still-")) == 20 and not redis.zcard("notifier:leases"), "the first")
        os.killpg(still.process.pid, signal.SIGSTOP)
        publish(redis, {"user": {"windows": ["1/1h"]}, "categories": {"default": {"lane": "default"}}}, 0)
        eventually(lambda: redis.zcount("notifier:wakeups:default", 0, time.time_ns() // 1000) == 20, "the others")
        os.killpg(still.process.pid, signal.SIGCONT)
        sender.send(note("another", "another"))
        eventually(lambda: simulators.titles("another"), "one that may go")
        assert len(simulators.titles("still-")) == 20


def test_withdrawn_rates_give_way_to_the_files(held: Held, redis: Redis) -> None:
    """After `config withdraw` each follows its own file; a worker that starts before that follows the published."""
    own = {follower.version for follower in eventually(lambda: followers(redis)[1] or None)}
    published = apply(held, {"user": {"windows": ["7/1h"]}, "categories": {"default": {"lane": "default"}}})
    eventually(lambda: len(held.simulators.titles("live-")) == 7, "seven in the hour")
    with worker(held.path, name="late") as late:
        late.ready(redis)
        eventually(lambda: {w.version for w in followers(redis)[1]} == {published.version}, "four that agree")
    assert withdraw(redis)
    eventually(lambda: {w.version for w in followers(redis)[1]} == own, "their own files again")
    assert len(held.simulators.titles("live-")) == 7


def test_published_rates_that_a_host_cannot_follow_are_refused_there(held: Held, redis: Redis) -> None:
    """A worker whose own configuration does not go with them keeps its rates, says so, and is named by its problem."""
    apply(held, {"user": FAST, "categories": {"default": {"lane": "default", "app": "driver"}}})
    eventually(lambda: held.logged("config_refused") == 3, "three refusals")
    problems = eventually(lambda: {w.problem for w in followers(redis)[1]} - {""})
    assert all("driver" in problem for problem in problems)
    assert len(held.simulators.titles("live-")) == 1


def test_a_changed_file_of_users_is_taken_up_too(held: Held, redis: Redis) -> None:
    """A user who gets another rate in the file of users beside the configuration has it without a restart."""
    users = held.path.with_name("users.jsonl")
    users.write_text('{"user": "ann", "windows": ["3/1h"]}', encoding="utf-8")
    new = write_config(
        held.path.parent / "new", held.url, held.simulators.providers(), user=SLOW, users_from=str(users)
    )
    new.replace(held.path)
    eventually(lambda: len(held.simulators.titles("live-")) == 3, "three in the hour")
    versions = {follower.version for follower in followers(redis)[1]}
    users.write_text('{"user": "ann", "windows": ["9/1h"]}', encoding="utf-8")
    eventually(lambda: len(held.simulators.titles("live-")) == 9, "nine in the hour")
    eventually(lambda: not versions & {follower.version for follower in followers(redis)[1]}, "another version")


class Losing(Redis):
    """A client that loses the answer of one command, which Redis has run: the n-th from now on."""

    loses = 0

    def execute_command(self, *args: Any, **options: Any) -> Any:
        answer = super().execute_command(*args, **options)
        self.loses -= 1
        if self.loses == 0:
            raise RedisTimeoutError("Timeout reading from socket")
        return answer


@pytest.mark.parametrize("lost", range(1, 6))
def test_a_lost_answer_takes_no_way_back(redis: Redis, lost: int) -> None:
    """Whichever answer is lost, and however often the same is applied or taken back, revert goes to what was before."""
    losing = Losing(port=redis.get_connection_kwargs()["port"])
    rates = [{"user": {"gap": f"{n}s"}} for n in range(2)]
    publish(redis, rates[0], 0)
    losing.loses = lost
    on_all(Partitions.around(losing), lambda client: publish(client, rates[1], 0))
    publish(redis, rates[1], 0)  # as who was told that one partition did not answer
    assert (published_rates(redis)[1], rates_before(redis)) == (rates[1], rates[0])
    losing.loses = lost
    assert withdraw(losing)
    assert not withdraw(redis)
    assert (published_rates(redis)[1], rates_before(redis)) == (None, rates[1])
    losing.close()
