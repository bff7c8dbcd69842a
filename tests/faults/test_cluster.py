"""A fleet in one slot of a Redis Cluster: the slot moves, fails over and dies under load, and all laws hold."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, nullcontext, suppress
from functools import partial
from typing import Any

import pytest
from redis.crc import key_slot
from redis.exceptions import AskError, ClusterDownError, MovedError, ResponseError, TryAgainError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

from notifier import AsyncNotifier, Notifier, RedisUnusableError
from notifier.limiter import Hold, Limiter, Permit
from notifier.operations import access
from notifier.producer import exchanges
from notifier.queue import calls
from notifier.scripts import keys
from notifier.scripts.loader import run, script
from notifier.settings import RedisSettings, parse_settings
from notifier.settings.redis_url import parse
from notifier.store.aio import connect_async
from notifier.store.cluster import async_client_of, client_of, owner_of
from notifier.store.connection import ask, check, connect, unusable
from tests.faults.cluster import Node, RedisCluster
from tests.faults.consistency import assert_empty_of_work
from tests.harness import processes, warm
from tests.harness.fleet import Fleet, broken_rules, notification, sends, start_fleet
from tests.harness.processes import await_that

SLOT = key_slot(b"53t")
# What is not answered in time, or not settled before its lease ends, may come twice: both are generous.
RATES = {"user": {"windows": ["10/1s"], "gap": "20ms"}, "worker": {"lease": "10s", "grace": "2s"}}
COUNT, USERS = 400, 20


@pytest.fixture(scope="module")
def cluster() -> Iterator[RedisCluster]:
    with RedisCluster() as made:
        yield made


@pytest.fixture(autouse=True)
def keys_of_their_own(cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here keys have a hash tag, and RQ reads its prefix when it is imported: so processes import it anew."""
    monkeypatch.setattr(keys, "_of_process", keys.in_force())
    monkeypatch.setattr(keys, "_asked_for", False)
    monkeypatch.setattr(processes, "launch", partial(warm.Popen, anew=True))
    cluster.owner(SLOT).ask("FLUSHALL")


@pytest.fixture
def client(cluster: RedisCluster) -> Iterator[Any]:
    """It signs in whenever it connects: so a reply on a new connection need not be that to its command."""
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "app", "on", ">secret", "~*", "&*", "+@all")
    with closing(connect(RedisSettings(url=cluster.url.replace("://", "://app:secret@")))) as made:
        made.connection_pool.connection_kwargs["driver_info"] = None  # Redis 6.2 refuses the command that tells it
        check(made)
        yield made


def held(*nodes: Node) -> dict[tuple[int, bytes], bytes]:
    """All keys of some nodes, as they are, also of a slot that a node is only to get."""
    found = {}
    for node in nodes:
        with node.client() as plain, plain.client() as one:
            for key in one.keys("*"):
                one.execute_command("ASKING")
                found[node.port, key] = one.dump(key)
    return found


@pytest.fixture
def half_moved(cluster: RedisCluster, client: Any) -> Iterator[tuple[Node, Node]]:
    """The two primaries of a slot of which one key has gone and another has not: {53t}a and {53t}b."""
    client.mset({"{53t}a": "1", "{53t}b": "1"})
    target = cluster.others(SLOT)[0]
    source = cluster.begin_move(SLOT, target)
    source.ask("MIGRATE", "127.0.0.1", target.port, "{53t}b", 0, 5_000)
    yield source, target
    cluster.move_keys(SLOT, source, target)
    cluster.end_move(SLOT, source, target)


WRITES_BOTH = "redis.call('SET', '{53t}a', '2'); return redis.call('SET', '{53t}b', '2')"


@pytest.mark.parametrize("declares", [[], ["{53t}a"]])
def test_without_the_two_keys_a_script_runs_half(half_moved: tuple[Node, Node], declares: list[str]) -> None:
    """With no key, or one that is still there, it writes until the first key that has gone."""
    source, _ = half_moved
    with pytest.raises(ResponseError, match="non local key"):
        source.ask("EVAL", WRITES_BOTH, len(declares), *declares)
    assert source.ask("GET", "{53t}a") == b"2"


def test_with_them_nothing_runs_at_either_node(half_moved: tuple[Node, Node]) -> None:
    """The one asks to go on at the other, which says to try again, also to who asks there first."""
    source, target = half_moved
    before = held(source, target)
    with pytest.raises(AskError):
        source.ask("EVAL", WRITES_BOTH, 2, *keys.declared())
    with pytest.raises(MovedError):
        target.ask("EVAL", WRITES_BOTH, 2, *keys.declared())
    with target.client() as asking, asking.client() as one:
        one.execute_command("ASKING")
        with pytest.raises(TryAgainError):
            one.execute_command("EVAL", WRITES_BOTH, 2, *keys.declared())
    assert held(source, target) == before


def test_a_call_waits_for_its_slot(cluster: RedisCluster, half_moved: tuple[Node, Node], client: Any) -> None:
    """It is refused as a whole, and goes through by itself once the slot has moved."""
    source, target = half_moved
    call = calls.enqueue(
        [calls.Job("one", "bulk", b"x", b'{"user": "u", "category": "default"}')],
        dedupe_for_us=1,
        stamp="",
    )
    refused, owner = threading.Event(), client.connection_pool.connection_kwargs["owner"]
    take_up = owner.note

    def note(refusal: Exception) -> None:
        take_up(refusal)
        refused.set()

    owner.note = note
    for node in half_moved:
        node.ask("SCRIPT", "LOAD", script("enqueue").source)
    before = held(source, target)
    with ThreadPoolExecutor(1) as pool:
        accepted = pool.submit(run, client, call)
        assert refused.wait(20)
        assert held(source, target) == before
        cluster.move_keys(SLOT, source, target)
        cluster.end_move(SLOT, source, target)
        assert accepted.result(30) == ["one"]
    assert client.llen(keys.rq_key("queue", "bulk")) == 1


def move(cluster: RedisCluster) -> None:
    """The slot goes to another primary."""
    cluster.move(SLOT, cluster.others(SLOT)[0])


def fail_over(cluster: RedisCluster) -> None:
    """Its replica takes over."""
    cluster.fail_over(SLOT)
    await_that(lambda: all(cluster.is_well(node) for node in cluster.nodes), "all in step", 30)


CHANGES = pytest.mark.parametrize("change", [move, fail_over])


def test_a_call_waits_for_a_slot_that_nobody_has(cluster: RedisCluster, client: Any) -> None:
    """The node says CLUSTERDOWN; the call goes through by itself once somebody has the slot."""
    client.set("{53t}x", "1")
    owner, known = cluster.owner(SLOT), client.connection_pool.connection_kwargs["owner"]
    client.delete("{53t}x")
    refused, take_up = threading.Event(), known.note

    def note(refusal: Exception) -> None:
        take_up(refusal)
        if isinstance(refusal, ClusterDownError):
            refused.set()

    known.note = note
    owner.ask("CLUSTER", "DELSLOTS", SLOT)
    try:
        with ThreadPoolExecutor(1) as pool:
            asked = pool.submit(client.incr, "{53t}x")
            assert refused.wait(20)
            owner.ask("CLUSTER", "ADDSLOTS", SLOT)
            assert asked.result(30) == 1
    finally:
        with suppress(ResponseError):  # it has it again
            owner.ask("CLUSTER", "ADDSLOTS", SLOT)


@CHANGES
def test_whatever_is_asked_follows_the_slot(
    cluster: RedisCluster, client: Any, change: Callable[[RedisCluster], None]
) -> None:
    """Commands, pipelines, transactions, scripts that the node has not seen, a limiter: all go to the new owner."""
    limiter = Limiter(client, namespace="n", prefix="{53t}")
    client.set("{53t}x", "1")
    assert isinstance(limiter.acquire("k", "2/day"), Permit)
    change(cluster)
    with client.pipeline(transaction=True) as pipe:
        assert pipe.incr("{53t}x").incr("{53t}x").execute() == [2, 3]
    change(cluster)
    with client.pipeline(transaction=False) as pipe:
        assert pipe.incr("{53t}x").get("{53t}x").execute() == [4, b"4"]
    change(cluster)
    assert isinstance(limiter.acquire("k", "2/day"), Permit)
    assert isinstance(limiter.acquire("k", "2/day"), Hold)
    with client.client() as one:
        one.set("{53t}x", "5")
        assert one.wait(1, 2_000) == 1


@CHANGES
async def test_so_does_an_asyncio_client(cluster: RedisCluster, change: Callable[[RedisCluster], None]) -> None:
    """Also what it waits for: a list that is filled at the new owner wakes it."""
    settings = RedisSettings.model_validate({"url": cluster.url, "socket_timeout": "30s"})  # more than it waits for
    redis: Any = connect_async(settings)
    await redis.set("{53t}x", "1")
    waits = asyncio.create_task(redis.blpop(["{53t}list"], 20))
    await asyncio.sleep(0)
    await asyncio.to_thread(change, cluster)
    async with redis.pipeline(transaction=True) as pipe:
        assert await pipe.incr("{53t}x").get("{53t}x").execute() == [2, b"2"]
    await redis.rpush("{53t}list", "woken")
    assert await waits == (b"{53t}list", b"woken")
    await redis.aclose()


FROZEN = {"socket_timeout": "1s"}


def test_a_frozen_primary_is_left(cluster: RedisCluster) -> None:
    """A call that it does not answer is the last: the next goes to the replica that took over."""
    with closing(connect(RedisSettings(url=cluster.url, **FROZEN))) as client:
        client.set("{53t}x", "1")
        assert client.wait(1, 10_000) == 1
        with cluster.frozen_owner(SLOT):
            with pytest.raises(RedisTimeoutError):
                client.incr("{53t}x")
            assert client.incr("{53t}x") == 2


async def test_an_asyncio_client_leaves_it_too(cluster: RedisCluster) -> None:
    """A worker waits for it once, and goes on at the replica."""
    redis: Any = connect_async(RedisSettings(url=cluster.url, **FROZEN))
    await redis.set("{53t}x", "1")
    assert await redis.wait(1, 10_000) == 1
    with cluster.frozen_owner(SLOT):
        with pytest.raises(RedisTimeoutError):
            await redis.incr("{53t}x")
        assert await redis.incr("{53t}x") == 2
    await redis.aclose()


@pytest.mark.parametrize("knows", [True, False], ids=["that worked before", "a fresh one"])
def test_an_asyncio_producer_leaves_it_too(cluster: RedisCluster, knows: bool) -> None:
    """Its deadline is over before redis-py's time-out is; and the URL names the node that hangs first."""
    if cluster.owner(SLOT) is not cluster.nodes[0]:
        cluster.move(SLOT, cluster.nodes[0]) if cluster.nodes[0] in cluster.others(SLOT) else cluster.fail_over(SLOT)
    settings = parse_settings(
        f"redis: {{url: '{cluster.url}', socket_timeout: 3s}}\nproviders: {{apns: {{client: console}}}}"
    )

    async def send() -> list[bool]:
        said = []
        async with AsyncNotifier.of(settings) as notifier:
            if knows:
                await notifier.send(notification("ann", 0))
            with cluster.frozen_owner(SLOT):
                for n in range(3):
                    try:
                        await notifier.send(notification("ann", n))
                        said.append(True)
                    except RedisUnusableError:
                        said.append(False)
        return said

    assert asyncio.run(send())[1:] == [True, True]


def test_a_frozen_primary_is_waited_for_once(cluster: RedisCluster) -> None:
    """What asks many of a fleet's partitions waits for the node of some of them once, with either kind of client."""
    said, port = "It did not answer a moment ago", cluster.owner(SLOT).port
    nodes, hasty = parse(cluster.url), {"socket_timeout": 1.0}
    tags = [f"{n}" for n in range(100) if cluster.owner(key_slot(b"%d" % n)) is cluster.owner(SLOT)][:4]
    clients = [client_of("53t", nodes, hasty)]
    clients += [client_of(tag, nodes, hasty, clients[0]) for tag in tags]

    async def ask() -> None:
        first = None
        for client in clients:
            redis: Any = async_client_of(client.connection_pool, hasty, first)
            owner_of(redis).rest_s = 3600.0  # type: ignore[union-attr]
            first = first or redis
            with pytest.raises(RedisConnectionError) as error:
                await redis.ping()
            assert str(unusable(error.value)) == f"Redis does not answer at 127.0.0.1:{port}: {said}"
            await redis.aclose()

    with cluster.frozen_owner(SLOT, takeover=False):
        for n, client in enumerate(clients):
            owner_of(client).rest_s = 3600.0  # type: ignore[union-attr]
            with pytest.raises(RedisTimeoutError) as error:
                client.ping()
            assert n == 0 or str(unusable(error.value)) == f"Redis does not answer at 127.0.0.1:{port}: {said}"
        asyncio.run(ask())


def to_and_fro(cluster: RedisCluster) -> None:
    """The slot goes from one primary to another, six times."""
    for _ in range(6):
        move(cluster)


def stays(fleet: Fleet, cluster: RedisCluster, what: Callable[[RedisCluster], None]) -> list[tuple[str, int]]:
    """Send while this happens, and wait for all; what arrived, in order, as users and numbers."""
    with fleet.notifier() as notifier, ThreadPoolExecutor(1) as pool:
        happens = pool.submit(what, cluster)
        for n in range(COUNT):
            send_until_accepted(notifier, n)
        happens.result(120)
    await_that(lambda: len({a.data["n"] for a in fleet.arrivals()}) == COUNT, "all to arrive", 120, 0.05)
    fleet.await_ended(COUNT, 60)
    return [(f"u{int(a.data['n']) % USERS}", int(a.data["n"])) for a in fleet.arrivals()]


def send_until_accepted(notifier: Any, n: int) -> None:
    """Send under an id of its own, again where it was not accepted."""
    while True:
        try:
            notifier.send(notification(f"u{n % USERS}", n), job_id=f"job-{n}")
        except RedisUnusableError:
            continue
        return


def in_order(arrived: list[tuple[str, int]]) -> bool:
    """Whether each user's came in the order in which they were accepted; a repeat counts once."""
    by_user: dict[str, list[int]] = defaultdict(list)
    for user, n in arrived:
        if n not in by_user[user]:
            by_user[user].append(n)
    return all(numbers == sorted(numbers) for numbers in by_user.values())


@pytest.mark.parametrize("what", [to_and_fro, fail_over])
def test_nothing_is_lost_or_sent_twice_while_the_slot_changes_hands(
    cluster: RedisCluster, what: Callable[[RedisCluster], None]
) -> None:
    """All that was accepted arrives once, in order, within every limit; no worker gives up; the audit is clean."""
    with start_fleet(
        RATES, workers=2, latency_ms=10, apns={"timeout": "8s"}, redis_server=nullcontext(cluster)
    ) as fleet:
        assert_all_arrive_once(fleet, cluster, what)
        assert_empty_of_work(fleet.redis)


@pytest.mark.parametrize("is_async", [False, True])
def test_replicas_of_the_primary_that_took_it_are_waited_for(
    cluster: RedisCluster, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    """Those of another say nothing of what the first one took, and may have lost: it is asked to take it, too."""
    redis = f"redis: {{url: '{cluster.url}', wait_replicas: 1, socket_timeout: 60s}}"
    took, settings = exchanges.accepted, parse_settings(f"{redis}\nproviders: {{apns: {{client: console}}}}")

    def accepted(answers: Any) -> list[str]:
        job_ids = took(answers)
        if not done:  # the primary had no time to tell its replica
            done.append(cluster.owner(SLOT))
            with done[0].client() as plain:
                assert plain.delete(keys.job_key(job_ids[0])) == 1
            fail_over(cluster)
        return job_ids

    async def send() -> str:
        async with AsyncNotifier.of(settings) as notifier:
            return await notifier.send(notification("ann", 1))

    done: list[Node] = []
    monkeypatch.setattr(exchanges, "accepted", accepted)
    if is_async:
        job_id = asyncio.run(send())
    else:
        with Notifier.of(settings) as notifier:
            job_id = notifier.send(notification("ann", 1))
    with cluster.owner(SLOT).client() as plain:
        assert plain.exists(keys.job_key(job_id)) == 1


def test_a_primary_that_dies_takes_nothing_along_that_a_replica_has(cluster: RedisCluster) -> None:
    """With `wait_replicas` all that was accepted arrives, after the takeover, in order and within every limit."""
    killed: list[Node] = []

    def kill(cluster: RedisCluster) -> None:
        killed.append(cluster.kill_owner(SLOT))
        cluster.await_takeover(SLOT, killed[0])
        killed[0].restart()
        await_that(lambda: all(cluster.is_well(node) for node in cluster.nodes), "a replica again", 60)

    rates = {**RATES, "redis": {"wait_replicas": 1, "socket_timeout": "1s"}}
    with start_fleet(
        rates, workers=2, latency_ms=10, apns={"timeout": "8s"}, redis_server=nullcontext(cluster)
    ) as fleet:
        arrived = stays(fleet, cluster, kill)
        assert [worker.poll() for worker in fleet.workers] == [None, None]
        end(fleet)
        assert {n for _, n in arrived} == set(range(COUNT))
        assert len(arrived) - COUNT <= 2 * 100, "no more came twice than the workers had in flight"
        assert in_order(arrived)
        assert_empty_of_work(fleet.redis)


def assert_all_arrive_once(fleet: Fleet, cluster: RedisCluster, what: Callable[[RedisCluster], None]) -> None:
    """What is accepted while this happens arrives once, in order, within every limit; two workers end well."""
    arrived = stays(fleet, cluster, what)
    assert [worker.poll() for worker in fleet.workers] == [None, None]
    end(fleet)
    assert sorted(n for _, n in arrived) == list(range(COUNT))
    assert in_order(arrived)
    who = {n: (f"u{n % USERS}", "default") for n in range(COUNT)}
    assert broken_rules(fleet, sends(fleet.arrivals(), who)) == []


def end(fleet: Fleet) -> None:
    """Let the workers settle what they have, and end."""
    fleet.end_workers()
    for worker in fleet.workers:
        worker.wait(60)


@pytest.mark.parametrize("role", ["producer", "worker"])
def test_a_user_of_a_role_may_do_it(cluster: RedisCluster, role: str, client: Any) -> None:
    """`notifier redis acl` grants what a cluster needs: to ask for the owner, and the keys that each call declares."""
    assert client.ping()
    major, minor, *_ = client.info("server")["redis_version"].split(".")
    rules = access.rules(role, (int(major), int(minor)))
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", f"notifier-{role}", "reset", "on", ">secret", *rules)
    url = cluster.url.replace("://", f"://notifier-{role}:secret@")
    wrong = RedisSettings(url=url.replace("secret", "guess"))
    with closing(connect(wrong)) as stranger, pytest.raises(RedisUnusableError, match="refuses the password"):
        check(stranger)
    with closing(connect(RedisSettings(url=url))) as signed_in:
        check(signed_in)
        call = calls.enqueue(
            [calls.Job("one", "bulk", b"x", b'{"user": "u", "category": "default"}')],
            dedupe_for_us=1,
            stamp="",
        )
        assert run(signed_in, call) == ["one"]


def test_a_plain_url_of_a_node_is_refused(cluster: RedisCluster) -> None:
    """Who names a node as if it were the one Redis is told the right form at the start, and by each call."""
    url = f"redis://127.0.0.1:{cluster.nodes[0].port}/0"
    wrong = r"is a node of a cluster; write its URL as redis\+cluster://"
    with closing(connect(RedisSettings(url=url))) as plain:
        with pytest.raises(RedisUnusableError, match=wrong):
            check(plain)
        with pytest.raises(RedisUnusableError, match=wrong):
            ask(lambda: [plain.get(str(n)) for n in range(99)])
