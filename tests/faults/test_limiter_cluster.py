"""The limiter of keys on a Redis Cluster: each key in the slot of its own hash tag, whatever the cluster does."""

import asyncio
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from redis import Redis, RedisCluster
from redis.asyncio import RedisCluster as AsyncRedisCluster
from redis.crc import key_slot
from redis.exceptions import TryAgainError

from notifier.limiter import AsyncLimiter, Hold, Limiter, LimiterUnreachableError, MemoryLimiter, Permit
from notifier.limiter.calls import RedisRequests, tag_of
from notifier.limiter.middleware.guard import Guard, WebLimit
from notifier.limiter.middleware.request import of_environ
from notifier.scripts.keys import under
from notifier.settings import load_settings
from notifier.store import live
from notifier.store.partitions import connect_all
from notifier.store.published import publish
from tests.contract.test_key_limiter import Awaited
from tests.faults import cluster as harness
from tests.harness.processes import await_that
from tests.property.test_key_limiters_agree import START, STEPS, ask

KEYS = st.text(alphabet="ab{}:é", min_size=1, max_size=8)
NAMESPACES = itertools.count()


@pytest.fixture(scope="module")
def cluster() -> Iterator[harness.RedisCluster]:
    with harness.RedisCluster() as made:
        yield made


@pytest.fixture
def limiter(cluster: harness.RedisCluster) -> Iterator[Limiter]:
    with Limiter.from_url(cluster.url, namespace=f"n{next(NAMESPACES)}") as made:
        yield made


def keys_of(requests: RedisRequests, key: str) -> list[bytes]:
    """The keys that calls for this one declare: the guards, and the one of the sends."""
    call = requests.ask([requests.request(key, "5/s")], "take")
    return [*(call.declared if call.script.names_keys else ()), *call.keys]


@given(st.lists(KEYS, min_size=2, max_size=2, unique=True), st.sampled_from([None, "1h"]))
def test_names(keys: list[str], usage_keep: str | None) -> None:
    """Each key has a name of its own, in the slot of its hash tag; so has all else that a call declares."""
    requests = RedisRequests("n", in_cluster=True, usage_keep=usage_keep)
    names = [keys_of(requests, key) for key in keys]
    assert names[0][-1] != names[1][-1]
    for key, of in zip(keys, names, strict=True):
        assert {key_slot(name) for name in of} == {key_slot(tag_of(key.encode()))}


@pytest.mark.parametrize(
    ("key", "tag"), [("user:42", "user:42"), ("read:{42}", "42"), ("{42}:{43}", "42"), ("a}b", "a"), ("a{}", "a{")]
)
def test_a_tag_is_what_redis_takes_for_it(key: str, tag: str) -> None:
    """What a key has in braces; all of a key that has none, up to a brace that would end it."""
    assert tag_of(key.encode()).decode() == tag


@given(st.lists(STEPS, min_size=10, max_size=40), st.sampled_from(["1h", None]), st.booleans())
@settings(max_examples=25)
def test_it_answers_as_in_memory(
    cluster: harness.RedisCluster, steps: list[tuple[Any, ...]], usage_keep: str | None, is_async: bool
) -> None:
    """Whatever is asked of keys, both clients answer as the limiter in memory does."""
    now, namespace = START, f"n{next(NAMESPACES)}"
    of_memory = MemoryLimiter(lambda: now, usage_keep=usage_keep)
    permits: tuple[list[Permit], list[Permit]] = ([], [])
    with asyncio.Runner() as runner:
        made = (AsyncLimiter if is_async else Limiter).from_url(cluster.url, namespace=namespace, usage_keep=usage_keep)
        of_redis: Any = Awaited(made, runner) if isinstance(made, AsyncLimiter) else made
        for step in steps:
            if step[0] in {"top", "ahead"} or step == ("series", None) or (usage_keep is None and step[0] in USAGE):
                continue
            if step[0] == "advance":
                now += step[1] if usage_keep is None else min(step[1], 40_000_000)
                continue
            made._requests.clock = str(now)
            assert ask(of_memory, permits[1], step) == ask(of_redis, permits[0], step), step
        of_redis.aclose() if is_async else of_redis.close()


USAGE = {"usage", "series"}


def test_keys_are_spread_and_go(cluster: harness.RedisCluster, limiter: Limiter) -> None:
    """Every primary has some of them; a key that is forgotten leaves nothing."""
    keys = [f"k{n}" for n in range(60)]
    assert all(limiter.acquire_many([(key, "5/minute") for key in keys]))
    name = f"}}notifier:keys::{{{limiter._requests.namespace}}}".encode()
    has = [sum(name in key for key in node.ask("KEYS", "*")) for node in cluster.nodes[: cluster.primaries]]
    assert sum(has) == 60
    assert all(has)
    for key in keys:
        assert limiter.reset(key) == 1
    assert not any(name in key for node in cluster.nodes[: cluster.primaries] for key in node.ask("KEYS", "*"))


def test_keys_of_one_tag_are_taken_together(limiter: Limiter) -> None:
    """All or none."""
    asked = [("read:{42}", "5/minute"), ("total:{42}", "1/minute")]
    permits = limiter.acquire_all(asked)
    assert isinstance(permits, list)
    assert isinstance(limiter.acquire_all(asked), Hold)
    assert limiter.count("read:{42}", last="1m") == 1
    assert all(limiter.refund(permit) for permit in permits)


@pytest.mark.parametrize("is_async", [False, True])
def test_others_are_refused(cluster: harness.RedisCluster, is_async: bool) -> None:
    """The error says how to write them. So does the one of what is asked of all keys."""
    with asyncio.Runner() as runner:
        made = (AsyncLimiter if is_async else Limiter).from_url(cluster.url, namespace="refused", usage_keep="1h")
        limiter: Any = Awaited(made, runner) if isinstance(made, AsyncLimiter) else made
        with pytest.raises(ValueError, match=r"have one hash tag: write .*'read:\{customer:42\}'"):
            limiter.acquire_all([("read:42", "5/minute"), ("total:42", "1/minute")])
        assert limiter.count("read:42", last="1m") == 0
        for ask_all in (limiter.top, limiter.series):
            with pytest.raises(ValueError, match="ask for a key"):
                ask_all()
        limiter.aclose() if is_async else limiter.close()


def test_a_crowd_may_use_it_in_each_event_loop_in_turn(cluster: harness.RedisCluster) -> None:
    """Once it was closed in the one before, in which calls have waited for redis-py's first look at the cluster."""
    limiter = AsyncLimiter.from_url(cluster.url, namespace="in-turn")

    async def use() -> list[Permit | Hold]:
        async with limiter:
            return await asyncio.gather(*(limiter.acquire("k", "1000/day") for _ in range(5)))

    assert all(asyncio.run(use()) + asyncio.run(use()))


def test_limits_of_a_request_are_by_the_same_key(limiter: Limiter) -> None:
    """They are taken together. Of those by several keys nothing is taken, and the error says what to do."""
    request = of_environ({"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "203.0.113.7"}, None)
    read, total = (WebLimit(name, "1/minute", key=lambda _: "42") for name in ("read", "total"))
    everyone = WebLimit("everyone", "9/minute", key=lambda _: "everyone")
    with pytest.raises(ValueError, match="by another key a middleware or a dependency of their own"):
        Guard(limiter, [read, everyone], awaited=False).ask(request)
    refusals = [Guard(limiter, [read, total], awaited=False).ask(request).refusal for _ in range(2)]
    assert [refusal and refusal.status for refusal in refusals] == [None, 429]


def test_limits_by_an_empty_key_are_by_the_same_key(limiter: Limiter) -> None:
    """A header that is not there, say: such requests share a budget, as any others with one key do."""
    request = of_environ({"REQUEST_METHOD": "GET", "PATH_INFO": "/", "REMOTE_ADDR": "203.0.113.7"}, None)
    limits = [WebLimit(name, "1/minute", key=lambda _: "") for name in ("read", "total")]
    refusals = [Guard(limiter, limits, awaited=False).ask(request).refusal for _ in range(2)]
    assert [refusal and refusal.status for refusal in refusals] == [None, 429]


def test_a_client_may_be_given(cluster: harness.RedisCluster) -> None:
    """One of each kind counts together with those of a URL. A client of one node is told what to give."""
    port, options = cluster.nodes[0].port, {"namespace": "given"}
    with Limiter.from_url(cluster.url, **options) as limiter:
        limiter.check("k", "3/minute")
        limiter.check("l", "3/minute")
    with Limiter(RedisCluster(host="127.0.0.1", port=port), **options) as limiter:
        limiter.check("k", "3/minute")

    async def story() -> Permit | Hold:
        async with AsyncLimiter(AsyncRedisCluster(host="127.0.0.1", port=port), **options) as limiter:
            return await limiter.acquire("k", "3/minute")

    match asyncio.run(story()):
        case Permit(remaining=remaining):
            assert remaining == 0
        case other:
            raise AssertionError(other)
    with cluster.nodes[0].client() as client, pytest.raises(LimiterUnreachableError, match="give a RedisCluster"):
        _ = [Limiter(client, **options).acquire(f"k{n}", "3/minute") for n in range(20)]


def test_a_client_of_another_kind_is_named() -> None:
    """Where it enters, with what would be right."""
    with pytest.raises(TypeError, match=r"a client of redis\.asyncio, .* not redis\.client\.Redis"):
        AsyncLimiter(Redis(), namespace="n")
    with pytest.raises(TypeError, match=r"or from_url a URL; not builtins\.str"):
        Limiter("redis://localhost", namespace="n")


def test_while_its_slot_moves_a_key_is_served(cluster: harness.RedisCluster, limiter: Limiter) -> None:
    """One that is still there, one that has gone, and one that is new; all counts are exact afterwards."""
    tag = "moving"
    slot, target = key_slot(tag.encode()), cluster.others(key_slot(tag.encode()))[0]
    stays, goes, new = (f"{name}:{{{tag}}}" for name in ("stays", "goes", "new"))
    limiter.check(stays, "3/day")
    limiter.check(goes, "3/day")
    source = cluster.begin_move(slot, target)
    name = keys_of(limiter._requests, goes)[-1]
    source.ask("MIGRATE", "127.0.0.1", target.port, name, 0, 5_000)
    for key in (stays, goes, new):
        limiter.check(key, "3/day")
    cluster.move_keys(slot, source, target)
    cluster.end_move(slot, source, target)
    assert [limiter.count(key, last="1d") for key in (stays, goes, new)] == [2, 2, 1]


def test_keys_together_run_whole_or_not_at_all(cluster: harness.RedisCluster, limiter: Limiter) -> None:
    """While one of two keys has gone, neither is taken; once the slot has moved, both are."""
    tag = "whole"
    slot, target = key_slot(tag.encode()), cluster.others(key_slot(tag.encode()))[0]
    asked = [(f"stays:{{{tag}}}", "3/day"), (f"goes:{{{tag}}}", "3/day")]
    limiter.acquire_all(asked)
    source = cluster.begin_move(slot, target)
    source.ask("MIGRATE", "127.0.0.1", target.port, keys_of(limiter._requests, asked[1][0])[-1], 0, 5_000)
    with pytest.raises(LimiterUnreachableError):
        limiter.acquire_all(asked)
    call = limiter._requests.ask(limiter._requests.every(asked), "every")
    with target.client() as asking, asking.client() as one:
        one.execute_command("ASKING")
        with pytest.raises(TryAgainError):
            one.execute_command("EVALSHA", call.script.sha, *call.words())
    cluster.move_keys(slot, source, target)
    cluster.end_move(slot, source, target)
    assert [limiter.count(key, last="1d") for key, _ in asked] == [1, 1]
    assert isinstance(limiter.acquire_all(asked), list)


def to_and_fro(cluster: harness.RedisCluster, slots: list[int]) -> None:
    """Each slot goes to another primary, twice."""
    for _ in range(2):
        for slot in slots:
            cluster.move(slot, cluster.others(slot)[0])


def fail_over(cluster: harness.RedisCluster, slots: list[int]) -> None:
    """The primary of the first gives way to its replica."""
    cluster.fail_over(slots[0])
    await_that(lambda: all(cluster.is_well(node) for node in cluster.nodes), "all in step", 30)


@pytest.mark.parametrize("what", [to_and_fro, fail_over])
@pytest.mark.parametrize("usage_keep", [None, "1h"])
def test_under_load_no_limit_is_exceeded(
    cluster: harness.RedisCluster,
    what: Callable[[harness.RedisCluster, list[int]], None],
    usage_keep: str | None,
) -> None:
    """Four threads ask for three keys until every one is used up: so many permits, whatever happens meanwhile."""
    keys, limit = ["a", "b", "c"], 300
    namespace = f"n{next(NAMESPACES)}"

    def drive(number: int) -> list[int]:
        had = [0] * len(keys)
        with Limiter.from_url(cluster.url, namespace=namespace, usage_keep=usage_keep) as limiter:
            for n in itertools.count(number):
                try:
                    answer = limiter.acquire(keys[n % 3], f"{limit}/day")
                except LimiterUnreachableError:
                    continue
                had[n % 3] += isinstance(answer, Permit)
                if happened.done() and all(isinstance(limiter.peek(key, f"{limit}/day"), Hold) for key in keys):
                    return had
        raise AssertionError

    with ThreadPoolExecutor(5) as pool:
        happened = pool.submit(what, cluster, [key_slot(key.encode()) for key in keys])
        permits = [sum(each) for each in zip(*pool.map(drive, range(4)), strict=True)]
        happened.result()
    assert all(0 < had <= limit for had in permits)
    with Limiter.from_url(cluster.url, namespace=namespace, usage_keep=usage_keep) as limiter:
        assert [limiter.count(key, last="1d") for key in keys] == [limit] * 3


def test_a_killed_primary_is_replaced(cluster: harness.RedisCluster, limiter: Limiter) -> None:
    """Meanwhile its keys are answered as `on_error` says; keys of others go on."""
    slot = key_slot(b"k")
    keys = (f"k{n}" for n in range(99))
    other = next(key for key in keys if cluster.owner(key_slot(key.encode())) is not cluster.owner(slot))
    with Limiter.from_url(cluster.url, namespace="killed", on_error="hold", timeout="1s") as held:
        limiter.check("k", "900/day")
        limiter.check(other, "900/day")
        before = cluster.kill_owner(slot)
        with pytest.raises(LimiterUnreachableError):
            limiter.check("k", "900/day")
        assert isinstance(held.acquire("k", "900/day"), Hold)
        limiter.check(other, "900/day")
        cluster.await_takeover(slot, before)
        await_that(lambda: isinstance(held.acquire("k", "900/day"), Permit), "the limiter to go on", 30)
        limiter.check("k", "900/day")
    before.restart()


@pytest.mark.parametrize("is_async", [False, True])
def test_a_node_that_cannot_be_asked_concerns_its_keys_alone(cluster: harness.RedisCluster, is_async: bool) -> None:
    """What `on_error` says is said of these; of all others Redis is asked, also by one call about both."""
    lost, options = "k", {"namespace": f"n{next(NAMESPACES)}", "on_error": "permit"}
    kept = next(key for key in map(str, range(99)) if node_of(cluster, key) is not node_of(cluster, lost))
    with asyncio.Runner() as runner, kept_from_writing(node_of(cluster, lost)):
        made: Any = (AsyncLimiter if is_async else Limiter).from_url(cluster.url, **options)  # type: ignore[arg-type]
        limiter: Any = Awaited(made, runner) if is_async else made
        first, rate = limiter.acquire(kept, "9/day"), "9/day"
        answers = [limiter.acquire(key, rate) for _ in range(4) for key in (lost, kept)]
        answers += limiter.acquire_many([(lost, rate), (kept, rate), (lost, rate), (kept, rate)])
        assert first.id
        assert [bool(answer.id) for answer in answers] == [False, True] * 6
        assert limiter.count(kept, last="1d") == 7
        limiter.aclose() if is_async else limiter.close()


def node_of(cluster: harness.RedisCluster, key: str) -> harness.Node:
    return cluster.owner(key_slot(key.encode()))


@contextmanager
def kept_from_writing(node: harness.Node) -> Iterator[None]:
    """It answers, and takes nothing: NOREPLICAS."""
    node.ask("CONFIG", "SET", "min-replicas-to-write", 9)
    try:
        yield
    finally:
        node.ask("CONFIG", "SET", "min-replicas-to-write", 0)


@pytest.mark.parametrize(("on_error", "answer"), [("permit", Permit), ("hold", Hold)])
def test_it_may_begin_without_its_cluster(on_error: Any, answer: type) -> None:
    """It connects when it is first asked."""
    with Limiter.from_url("redis+cluster://127.0.0.1:1,127.0.0.1:2", namespace="n", on_error=on_error) as limiter:
        assert isinstance(limiter.acquire("k", "5/minute"), answer)

    async def story() -> Permit | Hold:
        url = "redis+cluster://127.0.0.1:1,127.0.0.1:2"
        async with AsyncLimiter.from_url(url, namespace="n", on_error=on_error, timeout="1s") as limiter:
            return await limiter.acquire("k", "5/minute")

    assert isinstance(asyncio.run(story()), answer)


@pytest.mark.parametrize("kind", [Limiter, AsyncLimiter])
def test_by_a_configuration(
    cluster: harness.RedisCluster, kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a fleet in partitions: its prefix, its user and password file, its limits as applied; each key in its slot."""
    monkeypatch.setattr(live, "LOOK_S", 0.01)
    for node in cluster.nodes:
        node.ask("ACL", "SETUSER", "limits", "on", ">secret", "~*", "+@all")
    (tmp_path / "password").write_text("secret")
    url = cluster.url.replace("://", "://limits@")
    path = tmp_path / "notifier.yaml"
    path.write_text(
        f"redis: {{url: '{url}', partitions: 8, prefix: {kind.__name__}, password_file: {tmp_path}/password}}\n"
        "limits: {login: 2/day}\n"
    )
    namespace = f"n{next(NAMESPACES)}"
    with asyncio.Runner() as runner:
        made = kind.from_config(path, namespace=namespace)
        limiter: Any = Awaited(made, runner) if kind is AsyncLimiter else made
        admitted = {key: [bool(limiter.acquire(key, "login")) for _ in range(3)] for key in ("ada", "bob")}
        for at in connect_all(load_settings(path).redis):
            with under(at.prefixes):
                publish(at.client, {"limits": {"login": "3/day"}}, -1)
        await_that(lambda: limiter.policy("login") == limiter.policy("3/day"), "the applied limits", 30)
        admitted |= {"later": [bool(limiter.acquire("cy", "login")) for _ in range(4)]}
        found = {key for node in cluster.nodes for key in node.ask("KEYS", f"*{kind.__name__}:keys::{{{namespace}}}")}
        runner.run(made.aclose()) if kind is AsyncLimiter else made.close()

    assert admitted == {"ada": [True, True, False], "bob": [True, True, False], "later": [True, True, True, False]}
    begins = kind.__name__.encode()
    assert {key.partition(b":")[0] for key in found} == {b"{%b}%b" % (key, begins) for key in (b"ada", b"bob", b"cy")}
