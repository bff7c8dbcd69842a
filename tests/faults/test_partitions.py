"""A fleet in eight partitions of a Redis Cluster: whatever its slots do, all laws hold, and every command finds all."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from redis import Connection
from redis.crc import key_slot
from redis.exceptions import TimeoutError as RedisTimeoutError

from notifier import AsyncNotifier, Notifier
from notifier.errors import NotReplicatedError, RedisUnusableError, SettingsError
from notifier.limiter import Hold, Permit
from notifier.operations.stats import read_now, read_stats
from notifier.queue.health import LOOKED, Alive, find_workers
from notifier.queue.pauses import resume
from notifier.scripts import keys
from notifier.scripts.keys import under
from notifier.scripts.loader import run
from notifier.server import state
from notifier.settings import Settings, parse_settings
from notifier.store.connection import time_us
from notifier.store.partitions import Partitions, connect_all, ranges
from notifier.store.pipelining import ask_all, on_all
from notifier.store.published import publish
from notifier.store.tags import tag_of
from tests.faults.cluster import RedisCluster
from tests.faults.consistency import assert_empty_of_work
from tests.faults.test_cluster import RATES, assert_all_arrive_once
from tests.harness import processes, warm
from tests.harness.fleet import Fleet, notification, start_fleet
from tests.harness.processes import await_that
from tests.harness.serve_rig import TOKEN, serving
from workers.loop.turns import LATE_S

EIGHT = 8
SLOTS = [key_slot(tag_of(number, EIGHT).encode()) for number in range(EIGHT)]
PROVIDERS = "providers: {apns: {client: console}}\nevents: {keep: 1h}\nuser: {windows: ['100/1h']}\n"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as made:
        yield made


@pytest.fixture(autouse=True)
def of_their_own(cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """RQ reads its prefix when it is imported: so processes import it anew. And no test finds keys of another."""
    monkeypatch.setattr(keys, "_of_process", keys.in_force())
    monkeypatch.setattr(keys, "_asked_for", False)
    monkeypatch.setattr(processes, "launch", partial(warm.Popen, anew=True))
    for node in cluster.nodes:
        if node.ask("ROLE")[0] == b"master":
            node.ask("FLUSHALL")


@pytest.fixture
def settings(cluster: RedisCluster) -> Settings:
    return parse_settings(f"redis: {{url: '{cluster.url}', partitions: {EIGHT}, socket_timeout: 60s}}\n{PROVIDERS}")


def test_each_user_has_a_slot(cluster: RedisCluster, settings: Settings) -> None:
    """All keys of what is sent are in the slots of the partitions, and each user's in one; ids and users find them."""
    found: list[str] = []
    with Notifier.of(settings) as notifier:
        assert notifier.send_many((notification(f"u{n}", n) for n in range(1_000)), on_accepted=found.extend) == 1_000
        for n in (0, 1, 500, 999):
            status = notifier.status(found[n])
            assert status is not None
            assert status.record is not None
            assert (status.state, status.record.user) == ("queued", f"u{n}")
            assert notifier.status(found[n], user=f"u{n}") is not None
        assert notifier.send(notification("u3", 3), job_id="mine") == "mine"
        assert notifier.send(notification("u3", 3), job_id="mine") == "mine"
        assert notifier.status("mine") is not None
        assert notifier.status("never") is None
        assert notifier.cancel("mine") == "cancelled"
        done = notifier.cancel_many([*found[:100], "never", "mine"])
        assert (done.cancelled, done.unknown, done.too_late) == (101, ("never",), ())
        assert notifier.cancel(user="u200").cancelled == 1
        assert len(notifier.history("u3")) == 2
        assert {event.job_id for event in notifier.events()} == {*found[:100], "mine", found[200]}
    seen = {key_slot(key) for node in cluster.nodes for key in keys_of(node)}
    assert seen == set(SLOTS)


def keys_of(node: Any) -> list[bytes]:
    with node.client() as client:
        return [key for key in client.scan_iter("*") if client.exists(key)] if node.ask("ROLE")[0] == b"master" else []


def test_an_event_has_an_id_of_its_own(settings: Settings) -> None:
    """Of two that Redis numbers alike in two partitions, each shows its own."""
    users, parts = ("42", "4"), connect_all(settings.redis)
    entry = {"job_id": "j", "outcome": "delivered", "detail": ""}
    for user in users:
        with parts.at(user) as at:
            at.xadd(keys.redis_key("events"), entry | {"meta": json.dumps({"user": user})}, id="1795348800000-0")
    with Notifier.of(settings) as notifier:
        assert {event.user: event.event_id for event in notifier.events()} == {
            user: f"p{parts.of_user(user).number:02}-1795348800000-0" for user in users
        }
    assert parts.of_user("42").number == 2
    assert parts.of_user("4") is not parts.of_user("42")
    parts.close()


async def test_so_it_is_in_asyncio(settings: Settings) -> None:
    """The same producer, permits and preferences; one event loop, a few connections to each node."""
    async with AsyncNotifier.of(settings) as notifier:
        found: list[str] = []
        count = await notifier.send_many((notification(f"u{n}", n) for n in range(300)), on_accepted=found.extend)
        assert count == len(set(found)) == 300
        statuses = await asyncio.gather(*(notifier.status(job_id) for job_id in found[:20]))
        assert [status and status.state for status in statuses] == ["queued"] * 20
        assert (await notifier.cancel_many(found[:50])).cancelled == 50
        await notifier.users.set("u7", gap="1h")
        assert [entry["user"] async for entry in notifier.users.export()] == ["u7"]
        permit = await notifier.acquire("u7")
        assert isinstance(permit, Permit)
        assert isinstance(await notifier.acquire("u7"), Hold)
        assert await notifier.refund(permit)
        assert isinstance(await notifier.acquire("u7"), Permit)
        assert len([event async for event in notifier.events()]) == 50


def test_the_number_is_fixed_at_the_first_start(cluster: RedisCluster, settings: Settings) -> None:
    """Whoever comes with another is refused, with both, whichever partition its first user is in."""
    with Notifier.of(settings) as notifier:
        notifier.send_many(notification(f"u{n}", n) for n in range(100))
    other = parse_settings(f"redis: {{url: '{cluster.url}', partitions: 64}}\n{PROVIDERS}")
    with Notifier.of(other) as wrong:
        for n in range(20):
            with pytest.raises(SettingsError, match=r"of 64, hash 1, but the cluster has it as 0 of 8, hash 1"):
                wrong.send(notification(f"u{n}", n))


@pytest.mark.parametrize("partitions", [1, 4])
def test_no_command_works_with_another_number(
    cluster: RedisCluster, cli: Cli, settings: Settings, tmp_path: Path, partitions: int
) -> None:
    """Not even with none, which is another slot: nothing is sent there, nothing is paused, no server and no worker."""
    with Notifier.of(settings) as notifier:
        notifier.send_many(notification(f"u{n}", n) for n in range(20))
    other = f"redis: {{url: '{cluster.url}', partitions: {partitions}}}\n{PROVIDERS}"
    (config := tmp_path / "other.yaml").write_text(other, encoding="utf-8")
    said = f"this is partition 0 of {partitions}, hash 1, but the cluster has it as 0 of 8, hash 1"
    for words in ("pause all", "explain --user 42", "audit", "config status", "send 4 --device fcm:x --title x"):
        assert said in Cli(config).run(*words.split(), status=3)
    assert said in Cli(config).run("worker", "--burst", status=3)
    with pytest.raises(SettingsError, match=said):
        state.State(config)

    async def send() -> None:
        async with AsyncNotifier.of(parse_settings(other)) as wrong:
            await wrong.send(notification("u1", 1))

    with pytest.raises(SettingsError, match=said):
        asyncio.run(send())
    assert cli.told("pause") == []
    assert {key_slot(key) for node in cluster.nodes for key in keys_of(node)} <= set(SLOTS)


def test_what_waits_without_partitions_is_not_left_behind(
    cluster: RedisCluster, cli: Cli, settings: Settings, tmp_path: Path
) -> None:
    """Who comes with partitions is refused, wherever its first user is, and the fleet without them goes on."""
    (config := tmp_path / "one.yaml").write_text(f"redis: {{url: '{cluster.url}'}}\n{PROVIDERS}", encoding="utf-8")
    with Notifier.from_config(config) as notifier, Notifier.of(settings) as wrong:
        notifier.send(notification("anna", 1))
        for n in range(20):
            with pytest.raises(SettingsError, match=r"of 8, hash 1, but the cluster has it as 0 of 1, hash 1"):
                wrong.send(notification(f"u{n}", n))
        notifier.send(notification("anna", 2))
    assert "partition 0 of 8" in cli.run("worker", "--burst", status=3)
    assert Cli(config).run("worker", "--burst").count("push apns user='anna'") == 2


def test_who_may_not_write_may_look(cluster: RedisCluster, settings: Settings) -> None:
    """At what is there, and where nothing has ever been: only who writes needs the partition marked."""
    reads = "+@read +@connection +@scripting +info +time +cluster|slots"
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "looks", "reset", "on", ">secret", "~*", *reads.split())
    config = settings.redis.model_copy(update={"url": cluster.url.replace("://", "://looks:secret@")})
    looks = settings.model_copy(update={"redis": config})
    with Notifier.of(settings) as notifier, Notifier.of(looks) as reader:
        job_id = notifier.send(notification("42", 1))
        status = reader.status(job_id)
        assert status is not None
        assert status.state == "queued"
        assert reader.history("u1") == []
        assert reader.users.get("u1").as_dict() == {}
        assert [number for number, at in enumerate(notifier._partitions) if at.is_checked] == [0, 2]
        assert {key_slot(key) for node in cluster.nodes for key in keys_of(node)} == {SLOTS[0], SLOTS[2]}
        with pytest.raises(RedisUnusableError):
            reader.send(notification("42", 2))


def test_replicas_are_waited_for_in_each_partition(cluster: RedisCluster) -> None:
    """`wait_replicas` holds for every one of many, whichever nodes they go to."""
    text = f"redis: {{url: '{cluster.url}', partitions: {EIGHT}, wait_replicas: %d, socket_timeout: %s}}\n{PROVIDERS}"
    with Notifier.of(parse_settings(text % (1, "60s"))) as notifier:
        assert notifier.send_many(notification(f"u{n}", n) for n in range(50)) == 50
    with Notifier.of(parse_settings(text % (2, "1s"))) as notifier, pytest.raises(NotReplicatedError):
        notifier.send_many(notification(f"v{n}", n) for n in range(3))


def move_all(cluster: RedisCluster) -> None:
    """Each slot goes to another primary, one after the other."""
    for slot in SLOTS:
        cluster.move(slot, cluster.others(slot)[0])


def fail_over(cluster: RedisCluster) -> None:
    """A replica takes over all slots of a primary."""
    cluster.fail_over(SLOTS[0])
    await_that(lambda: all(cluster.is_well(node) for node in cluster.nodes), "all in step", 30)


def one_more(cluster: RedisCluster) -> None:
    """A node more takes half of the slots, and gives them back."""
    with cluster.one_more() as new:
        before = {slot: cluster.owner(slot) for slot in SLOTS[1::2]}
        for slot in before:
            cluster.move(slot, new)
        for slot, owner in before.items():
            cluster.move(slot, owner)


@pytest.mark.parametrize("what", [move_all, fail_over, one_more])
def test_nothing_is_lost_or_sent_twice_while_slots_change_hands(
    cluster: RedisCluster, what: Callable[[RedisCluster], None]
) -> None:
    """All that was accepted arrives once, in order, within every limit; no worker gives up; the audit is clean."""
    rates = {**RATES, "redis": {"partitions": EIGHT}}
    with start_fleet(
        rates, workers=2, latency_ms=10, apns={"timeout": "8s"}, redis_server=nullcontext(cluster)
    ) as fleet:
        assert_all_arrive_once(fleet, cluster, what)
        for at in fleet.partitions:
            with under(at.prefixes):
                assert_empty_of_work(at.client)


def test_a_process_has_no_more_under_way_than_it_may(cluster: RedisCluster) -> None:
    """Its engines share `worker.in_flight`: measured at the provider. In burst each waits for its turn.

    What a node gives late, after the others have taken its room, goes back.
    """
    most, latency_ms, jobs = 10, 100, 300
    rates = {"redis": {"partitions": EIGHT}, "worker": {"in_flight": most, "batch": 5}}
    with start_fleet(rates, workers=0, latency_ms=latency_ms, redis_server=nullcontext(cluster)) as fleet:
        with fleet.notifier() as notifier:
            notifier.send_many(notification(f"u{n}", n) for n in range(jobs))
        fleet.start_worker(more=["--burst"])
        for delivered in range(20, jobs, 40):
            fleet.await_delivered(delivered)
            cluster.owner(SLOTS[0]).ask("CLIENT", "PAUSE", round(2_000 * LATE_S))
        assert fleet.workers[0].wait(60) == 0
        at_us = [arrival.at_us for arrival in fleet.arrivals()]
    assert len(at_us) == jobs
    assert min(after - before for before, after in zip(at_us, at_us[most:], strict=False)) >= latency_ms * 1_000


def test_a_dead_node_takes_its_partitions_alone(cluster: RedisCluster, settings: Settings) -> None:
    """Who is elsewhere is sent to; the error of `send_many` names the others; all goes on after the takeover."""
    with Notifier.of(settings) as notifier:
        assert notifier.send_many(notification(f"u{n}", n) for n in range(100)) == 100
        killed = cluster.kill_owner(SLOTS[0])
        try:
            elsewhere = next(n for n in range(100) if not at_node(notifier, f"u{n}", killed.port))
            assert notifier.send(notification(f"u{elsewhere}", elsewhere))
            with pytest.raises(RedisUnusableError, match=r"asked for partitions 0, .* of 8"):
                notifier.send_many(notification(f"u{n}", n) for n in range(100))
        finally:
            cluster.await_takeover(SLOTS[0], killed)
            killed.restart()
            await_that(lambda: all(cluster.is_well(node) for node in cluster.nodes), "a replica again", 60)
        assert notifier.send_many(notification(f"u{n}", n) for n in range(100)) == 100


def test_what_is_elsewhere_is_given(cluster: RedisCluster, cli: Cli, settings: Settings) -> None:
    """Events of the others come before the error that names the partitions; `pause` lists what there is."""
    gone = cluster.owner(SLOTS[0])
    away = [n for n in range(EIGHT) if cluster.owner(SLOTS[n]) is gone]
    said = f"asked for partitions {', '.join(map(str, away))} of 8"
    with Notifier.of(settings) as notifier:
        notifier.send_many((notification(str(n), n) for n in range(40)), job_ids=[f"own-{n}" for n in range(40)])
        notifier.cancel_many([f"own-{n}" for n in range(40)])
        cli.run("pause", "all")
        there = {f"own-{n}" for n in range(40) if notifier._partitions.of_user(str(n)).number not in away}

        async def read() -> None:
            async with AsyncNotifier.of(settings) as one:
                async for event in one.events("others"):
                    by_asyncio.add(event.job_id)

        killed = cluster.kill_owner(SLOTS[0])
        try:
            found, by_asyncio = set[str](), set[str]()
            with pytest.raises(RedisUnusableError, match=said):
                found.update(event.job_id for event in notifier.events())
            with pytest.raises(RedisUnusableError, match=said):
                asyncio.run(read())
            assert found == by_asyncio == there
            shown = cli.run("pause")
            assert "partition 0: Redis does not answer" in shown
            assert "all " in shown
        finally:
            cluster.await_takeover(SLOTS[0], killed)
            killed.restart()
            await_that(lambda: all(cluster.is_well(node) for node in cluster.nodes), "a replica again", 60)


def test_rates_are_followed_without_the_first_partition(cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Law 7: the others have them too, for a worker that starts, one that runs, and a producer."""
    rates = {"user": {"windows": ["100/1h"]}, "redis": {"partitions": EIGHT, "socket_timeout": "5s"}}
    with start_fleet(rates, workers=0, redis_server=nullcontext(cluster)) as fleet:
        monkeypatch.setenv("NOTIFIER_REDIS_URL", cluster.url)
        applied = {"user": {"windows": ["1/1h"]}, "categories": {"extra": {"lane": "default"}}}
        on_all(fleet.partitions, lambda at: publish(at, applied, 0))
        gone = cluster.owner(SLOTS[0])
        there = Partitions(at for at in fleet.partitions if cluster.owner(SLOTS[at.number]) is not gone)
        users = [user for user in map(str, range(40)) if fleet.partitions.of_user(user) in there]
        killed = cluster.kill_owner(SLOTS[0])
        try:
            fleet.start_worker()
            with Notifier.from_config(fleet.config) as notifier:
                notifier.send_many(
                    notification(user, n, "extra") for user in users for n in (int(user), 100 + int(user))
                )
            await_that(lambda: len(fleet.arrivals()) == len(users), "one of each user", 60, 0.05)
            on_all(there, lambda at: publish(at, applied | {"user": {"windows": ["2/1h"]}}, 0))
            await_that(lambda: len(fleet.arrivals()) == 2 * len(users), "the other one", 60, 0.05)
        finally:
            cluster.await_takeover(SLOTS[0], killed)
            killed.restart()
            await_that(lambda: all(cluster.is_well(node) for node in cluster.nodes), "a replica again", 60)


@pytest.mark.parametrize(("option", "value"), [("min-replicas-to-write", 9), ("maxmemory", 1)])
def test_a_worker_starts_while_a_node_takes_nothing(cluster: RedisCluster, option: str, value: int) -> None:
    """Law 9: it serves the others, as where that node is away, and in the end all. A full node gives what it has."""
    full = cluster.owner(SLOTS[0])
    rates = {"redis": {"partitions": EIGHT, "socket_timeout": "60s"}}
    with start_fleet(rates, workers=0, redis_server=nullcontext(cluster)) as fleet, fleet.notifier() as notifier:
        users = {n: f"u{n}" for n in range(40)}
        there = {n for n in users if cluster.owner(SLOTS[fleet.partitions.of_user(users[n]).number]) is not full}
        notifier.send_many(notification(user, n) for n, user in users.items())
        full.ask("CONFIG", "SET", option, value)
        try:
            fleet.start_worker()
            await_that(lambda: there <= arrived(fleet), "those of the other nodes", 60, 0.05)
        finally:
            full.ask("CONFIG", "SET", option, 0)
        await_that(lambda: users.keys() == arrived(fleet), "the rest", 60, 0.05)


def test_each_partition_has_its_layout_and_number_also_after_a_flush(cluster: RedisCluster) -> None:
    """Whoever comes later with another number, or another layout, is refused, whichever partition it looks at."""
    rates = {"redis": {"partitions": EIGHT, "socket_timeout": "60s"}}
    with start_fleet(rates, workers=1, redis_server=nullcontext(cluster)) as fleet:
        marks = [
            key
            for at in fleet.partitions
            for key in (f"{at.prefixes.ours}:layout", f"{at.prefixes.ours}:partition")
            if at.prefixes
        ]

        def are_there() -> bool:
            return all(fleet.partitions[n // 2].client.exists(key) for n, key in enumerate(marks))

        assert are_there()
        for node in cluster.nodes:
            if node.ask("ROLE")[0] == b"master":
                node.ask("FLUSHALL")
        await_that(are_there, "the marks", 60, 0.05)
        fleet.partitions[5].client.set(marks[10], "2")
        status = RedisUnusableError.exit_status
        said = Cli(fleet.config).run("worker", "--burst", status=status, NOTIFIER_REDIS_URL=cluster.url)
    assert "keys of layout 2, and this version knows layout 1" in said


def arrived(fleet: Fleet) -> set[int]:
    return {int(arrival.data["n"]) for arrival in fleet.arrivals()}


def at_node(notifier: Notifier, user: str, port: int) -> bool:
    """Whether the slot of a user was last known to be at the node with this port."""
    owner = notifier._partitions.of_user(user).client.connection_pool.connection_kwargs["owner"]
    return bool(owner.known and owner.known[1] == port)


class Cli:
    """The command, in processes of its own."""

    def __init__(self, config: Path) -> None:
        self._environ = {**os.environ, "NOTIFIER_CONFIG": str(config), "COLUMNS": "200"}

    def run(self, *words: str, status: int = 0, **environ: str) -> str:
        command = [sys.executable, "-m", "notifier.cli", *words]
        done = warm.run(command, env=self._environ | environ, anew=True)
        assert done.returncode == status, done.stdout + done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def told(self, *words: str, status: int = 0) -> Any:
        return json.loads(self.run(*words, "--json", status=status))


@pytest.fixture
def cli(cluster: RedisCluster, tmp_path: Path) -> Cli:
    config = tmp_path / "notifier.yaml"
    redis = f"redis: {{url: '{cluster.url}', partitions: {EIGHT}, socket_timeout: 60s}}\n"
    config.write_text(redis + PROVIDERS, encoding="utf-8")
    os.utime(config, (0, 0))
    return Cli(config)


def test_a_plain_producer_of_rq_is_told_the_prefix(cli: Cli, settings: Settings) -> None:
    """`notifier partition` prints it, and what is enqueued so is this user's notification."""
    told = cli.told("partition", "--user", "42")
    assert (told["partition"], told["of"]) == (2, EIGHT)
    enqueue = "import sys, redis.crc; from rq.defaults import RQ_KEY_PREFIX; print(RQ_KEY_PREFIX)"
    environ = {**os.environ, "RQ_KEY_PREFIX": told["RQ_KEY_PREFIX"]}
    done = subprocess.run([sys.executable, "-c", enqueue], env=environ, capture_output=True, text=True, check=True)
    partitions = connect_all(settings.redis)
    with under(partitions.of_user("42").prefixes):
        assert done.stdout.strip() == keys.in_force().rqs == "{740}notifier:rq".replace("740", told["tag"])
    for at in partitions:
        with closing(at.client):
            pass


def test_commands_find_all(cli: Cli) -> None:
    """Those that look at one user find the user's partition; those that look at all look at each."""
    first, second = (cli.run("send", user, "--device", "apns:" + "ab" * 32, "--title", "x").strip() for user in "42")
    assert cli.run("status", first).startswith("queued")
    assert cli.told("explain", "--user", "4")["user"] == "4"
    assert "2 jobs" in cli.run("audit")
    assert cli.told("cancel", second)["answer"] == "cancelled"
    assert cli.told("pause", "all")[0]["what"] == "all"
    assert cli.told("resume", "all")["resumed"]
    assert "no worker works" in cli.run("routes")
    assert cli.told("health", status=1)["unserved"] == list(range(EIGHT))
    cli.run("pause", "user:42", "--reason", "who is 42 asked us")
    cli.run("users", "forget", "42", "--yes")
    assert not any("user:42" in str(each) for each in [cli.told("pause"), cli.told("config", "log")])
    cli.run("worker", "--burst")
    assert cli.run("status", first, "--user", "4").startswith("delivered")
    assert cli.told("history", "4")[0]["outcome"] == "delivered"
    assert cli.run("cancel", "--all-users", "--category", "default", "--yes").startswith("0 notifications")


def test_a_pause_that_some_partitions_lack_is_told(cli: Cli, settings: Settings) -> None:
    """As of one that were away when somebody paused all: by `stats`, until all is paused again."""
    at = connect_all(settings.redis)[6]
    cli.run("pause", "all", "--who", "anna")
    with under(at.prefixes), closing(at.client) as client:
        run(client, resume("all:", "nobody"))
    assert "until it is resumed, but not in partition 6: pause it again" in cli.run("stats")
    assert cli.told("stats")["now"]["pauses"][0]["lacks"] == [6]
    cli.run("pause", "all")
    assert cli.told("stats")["now"]["pauses"][0]["lacks"] == []


def test_what_is_suspended_in_one_partition_is_told_of_that_one(cli: Cli, settings: Settings) -> None:
    """By `stats` and `health`: how many wait there; the others work, and a probe restarts nothing."""
    partitions = connect_all(settings.redis)

    def look() -> None:
        for at in partitions:  # a worker of all
            with under(at.prefixes):
                entry = {"hostname": socket.gethostname(), LOOKED: time_us(at.client)}
                at.client.hset(keys.rq_key("worker", "w1"), mapping=entry)
                at.client.sadd(keys.rq_key("workers"), keys.rq_key("worker", "w1"))

    with under(partitions[6].prefixes):
        partitions[6].client.set(keys.rq_key("suspended"), 1)
    users = [f"u{n}" for n in range(40)]
    of_six = [user for user in users if partitions.of_user(user).number == 6]
    with Notifier.of(settings) as notifier:
        notifier.send_many(notification(user, n) for n, user in enumerate(users) if user not in of_six)
        look()
        assert read_stats(partitions, 1).as_json()["now"]["empty"] == "not while more come than go"
        notifier.send_many(notification(user, n) for n, user in enumerate(of_six))
    look()
    assert read_stats(partitions, 1).as_json()["now"]["empty"] == "not while something is stopped or paused"
    look()
    said = cli.run("stats")
    look()
    now = cli.told("stats")["now"]
    assert said.startswith("✖ Suspended: rq suspend keeps all workers from work in partition 6, until rq resume; ")
    assert f"; {len(of_six)} wait\n" in said
    assert "routes: all working" in said
    assert (now["suspended"], now["suspended_in"], now["works"]) == (True, [6], True)
    waits = {each["what"]: each["waiting"] for each in now["waits"]}
    assert waits == {"rq resume": len(of_six), "a worker: in the queue still": 40 - len(of_six)}
    look()
    assert "partition 6: suspended by rq suspend: nothing is sent until rq resume" in cli.run("health")
    look()
    assert cli.told("health")["suspended_in"] == [6]
    for at in partitions:
        with under(at.prefixes):
            at.client.set(keys.rq_key("suspended"), 1)
    look()
    assert cli.run("stats").startswith("✖ Suspended: rq suspend keeps all workers from work, until rq resume; ")
    look()
    assert "\nsuspended by rq suspend: nothing is sent until rq resume\n" in cli.run("health", status=1)


def test_rates_that_some_partitions_lack_are_told(cli: Cli, settings: Settings) -> None:
    """As of one that was away when they were applied, be it the first one: by `config status`, with which they are."""
    with Notifier.of(settings) as notifier:
        published = on_all(notifier._partitions[3:], lambda at: publish(at, {"user": {"gap": "1s"}}, 0))[0]
    said = cli.run("config", "status", status=1)
    assert f"applied: {published.version}, from " in said
    assert "not in partition 0-2: apply or withdraw them again\n" in said
    told = cli.told("config", "status", status=1)
    assert (told["published"]["version"], told["lacking"]) == (published.version, [0, 1, 2])
    cli.run("config", "withdraw", "--yes")
    assert cli.told("config", "status", status=1)["lacking"] == []


def test_one_partition_can_be_named(cli: Cli) -> None:
    """Then `stats` is of that one alone; a number that there is not is refused."""
    assert cli.told("stats", "--partition", "7")["now"]["unserved"] == []
    assert "is none of 0 to 7" in cli.run("stats", "--partition", "8", status=3)
    assert "numbers from 0 to 7" in cli.run("worker", "--partitions", "8", status=3)


def test_the_numbers_are_of_all(cli: Cli, settings: Settings, tmp_path: Path) -> None:
    """`stats` sums them up, and names what nobody serves; a recording has what came to any of them."""
    trace = tmp_path / "trace.jsonl"
    recording = subprocess.Popen(
        [sys.executable, "-m", "notifier.cli", "trace", "record", "--out", str(trace), "--for", "1h"], env=cli._environ
    )
    try:
        at = connect_all(settings.redis)[EIGHT - 1]
        with under(at.prefixes), closing(at.client) as last:
            await_that(lambda: last.exists(keys.redis_key("trace")), "the recording to begin", 30)
        with Notifier.of(settings) as notifier:
            notifier.send_many(notification(f"u{n}", n) for n in range(40))
    finally:
        recording.send_signal(signal.SIGINT)
        assert recording.wait(30) == 0
    assert Counter(event["user"] for event in map(json.loads, trace.read_text().splitlines())) == {
        f"u{n}": 1 for n in range(40)
    }
    told = cli.told("stats")
    assert sum(lane["queued"] for lane in told["now"]["lanes"].values()) == 40
    assert told["minutes"][-1]["accepted"] + told["minutes"][-2]["accepted"] == 40
    assert told["now"]["unserved"] == list(range(EIGHT))
    cli.run("worker", "--burst")
    told = cli.told("stats")
    assert told["now"]["totals"]["delivered"] == 40
    assert sum(each["count"] for each in told["outcomes"]) == 40


def test_pages_metrics_and_the_api_are_of_all(
    cluster: RedisCluster, cli: Cli, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each user and job as of one Redis; of all together the sums; of a node that is away its partitions' names."""
    monkeypatch.setattr(state, "_hasty", lambda config: config)  # a killed node refuses; a living one may stand still
    with Notifier.of(settings) as notifier, serving(Path(cli._environ["NOTIFIER_CONFIG"]), TOKEN) as server:
        ask, ids = server.with_token(), list[str]()

        def told(path: str) -> Any:
            return json.loads(ask(f"/api/v1/{path}")[1])

        def done(path: str, **given: Any) -> Any:
            return json.loads(ask.post(f"/api/v1/{path}", given)[1])

        notifier.send_many((notification(f"u{n}", n) for n in range(40)), on_accepted=ids.extend)
        assert sum(lane["queued"] for lane in told("stats")["now"]["lanes"].values()) == 40
        assert "no worker serves partition 0-7" in ask("/")[1]
        due = re.findall(r'notifier_partition_due{partition="(\d)"} (\d+)', ask("/metrics")[1])
        users = Counter(notifier._partitions.of_user(f"u{n}").number for n in range(40))
        assert {int(number): int(n) for number, n in due} == {n: users[n] for n in range(EIGHT)}
        assert told("users?id=u7")["outside"] == f"{users[notifier._partitions.of_user('u7').number]} queued"
        assert told(f"jobs?id={ids[7]}")["user"] == "u7"
        assert done("pause", what="lane:default")["paused"]
        assert [each["what"] for each in told("pauses")["pauses"]] == ["lane:default"]
        assert done("resume", what="lane:default")["resumed"]
        assert [each["action"] for each in told("actions")["actions"][:2]] == ["resume", "pause"]
        assert done("jobs/cancel", id=ids[7])["answer"] == "cancelled"
        new = done("notifications", user="u7", devices=[{"platform": "apns", "token": "ab" * 32}], title="x")["job_id"]
        assert (new[:4], told(f"jobs?id={new}")["state"]) == (ids[7][:4], "queued")
        for page in ("user?id=u7", f"job?id={new}", "routes", "rates", "log", "problems", "pause", "limits"):
            assert ask(f"/{page}")[0] == 200, page
        killed = cluster.kill_owner(SLOTS[0])
        try:
            text = ask("/metrics")[1]
            away = [n for n in range(EIGHT) if f'notifier_partition_up{{partition="{n}"}} 0.0' in text]
            assert 0 in away
            assert len(away) < EIGHT
            assert "notifier_redis_up 0.0" in text
            assert f"partition {ranges(away)} does not answer" in ask("/")[1]
            lost = next(f"u{n}" for n in range(40) if notifier._partitions.of_user(f"u{n}").number == 0)
            status, page, _ = ask(f"/user?id={lost}")
            assert (status, "Redis does not answer at" in page, "It answered last" in page) == (503, True, False)
            assert "nothing is accepted for the users of its partitions until it does." in page
        finally:
            cluster.await_takeover(SLOTS[0], killed)
            killed.restart()
            await_that(lambda: all(cluster.is_well(node) for node in cluster.nodes), "a replica again", 60)
        await_that(lambda: "notifier_redis_up 1.0" in ask("/metrics")[1], "all to answer", 30)


def test_a_node_that_hangs_is_waited_for_once(
    cluster: RedisCluster, cli: Cli, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever a page asks, and however often: so all is answered in time, with what the other nodes tell."""
    waits: list[Any] = []

    def read(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return of_redis(self, *args, **kwargs)
        except RedisTimeoutError:
            waits.append(self.port)
            raise

    def patient(config: Settings) -> Settings:  # a living node may stand still for a while
        return config.model_copy(update={"redis": config.redis.model_copy(update={"socket_timeout_us": 5_000_000})})

    of_redis, hung = Connection.read_response, cluster.owner(SLOTS[0])
    monkeypatch.setattr(state, "_hasty", patient)
    monkeypatch.setattr(Connection, "read_response", read)
    with Notifier.of(settings) as notifier, serving(Path(cli._environ["NOTIFIER_CONFIG"]), TOKEN) as server:
        notifier.send_many(notification(f"u{n}", n) for n in range(40))
        ask = server.with_token()
        pages = ("/metrics", "/", "/routes", "/rates", "/problems", "/pause", "/log", "/api/v1/stats", "/api/v1/routes")
        for page in pages:
            assert ask(page)[0] == 200, page
        processes.stop(hung.pid)
        try:
            assert {page: ask(page)[0] for page in pages} == dict.fromkeys(pages, 200)
            assert 'notifier_partition_up{partition="0"} 0.0' in ask("/metrics")[1]
            assert waits == [hung.port]
        finally:
            os.kill(hung.pid, signal.SIGCONT)
    await_that(lambda: all(cluster.is_well(node) for node in cluster.nodes), "a cluster that is well", 60)


def test_rates_are_applied_to_all(cluster: RedisCluster, tmp_path: Path) -> None:
    """Workers of different partitions follow them; `health` names the partition that nobody serves."""
    new = tmp_path / "new.yaml"
    new.write_text("user: {windows: ['1/1h']}\n", encoding="utf-8")
    rates = {"user": {"windows": ["100/1h"]}, "redis": {"partitions": EIGHT}}
    with start_fleet(rates, workers=0, redis_server=nullcontext(cluster)) as fleet:
        for some in ("0-3", "4-6"):
            fleet.start_worker(more=["--partitions", some])
        mine = Cli(fleet.config)
        mine._environ["NOTIFIER_REDIS_URL"] = cluster.url
        await_that(lambda: mine_told(mine)["unserved"] == [7], "both to have looked everywhere", 60, 0.5)
        mine.run("config", "apply", str(new), "--yes", "--in", "0s", "--replace")
        await_that(lambda: agreed(mine), "both to follow", 60, 0.5)
        with fleet.notifier() as notifier:
            served = [f"u{n}" for n in range(40) if fleet.partitions.of_user(f"u{n}").number < 7]
            notifier.send_many(notification(user, 10 * n + i) for n, user in enumerate(served) for i in range(2))
        await_that(lambda: len(fleet.arrivals()) == len(served), "one of each user", 60, 0.05)


def test_of_a_worker_each_partition_tells_the_same(cluster: RedisCluster) -> None:
    """Since when it runs; and where `rq suspend` is in force since when it has seen that. All looks tell both."""
    with start_fleet({"redis": {"partitions": EIGHT}}, workers=0, redis_server=nullcontext(cluster)) as fleet:
        with under(fleet.partitions[6].prefixes):
            fleet.partitions[6].client.set(keys.rq_key("suspended"), 1)
        fleet.start_worker()

        def seen() -> dict[int, Alive]:
            found = ask_all(fleet.partitions, find_workers).found
            return {number: worker for number, workers in found.items() for worker in workers}

        await_that(lambda: len(seen()) == EIGHT, "an entry in each partition", 60)
        assert {worker.since for worker in seen().values()} == {seen()[0].since}
        assert [number for number, worker in seen().items() if worker.suspended] == [6]
        (worker,) = read_now(fleet.partitions).workers
        assert (worker.since, worker.suspended) == (seen()[0].since, seen()[6].suspended)


def mine_told(cli: Cli) -> Any:
    command = [sys.executable, "-m", "notifier.cli", "health", "--json"]
    return json.loads(warm.run(command, env=cli._environ, anew=True).stdout)


def agreed(cli: Cli) -> bool:
    command = [sys.executable, "-m", "notifier.cli", "config", "status", "--json"]
    told = json.loads(warm.run(command, env=cli._environ, anew=True).stdout)
    return len(told["workers"]) == 2 and {w["version"] for w in told["workers"]} == {told["published"]["version"]}
