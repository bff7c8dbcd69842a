"""Apple's provider token: one for all workers of a team, shared through a real Redis, never in the clear."""

import asyncio
import contextlib
import socket
import time
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator, Callable
from typing import Any

import jwt
import pytest
import structlog.testing
from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from notifier.errors import NotifierError
from notifier.providers.apns.provider import ApnsProvider
from notifier.providers.apns.token import ProviderToken
from notifier.providers.apns.token_store import Kept, LocalTokenStore, RedisTokenStore, TokenStore, TokenStoreError
from notifier.providers.contract import Answer, Outcome
from notifier.scripts import keys
from notifier.simulators.certificates import make_apns_key
from notifier.store.partitions import Partition, Partitions
from tests.contract.apns_rig import dispatch, make_provider, rig

TEAM, KEY_ID = "TEAM123456", "KEY1234567"
MINUTE_US = 60_000_000


class Clocked:
    """A real Redis's store whose clock a test sets ahead, and that counts the tokens it was offered."""

    def __init__(self, redis: Any) -> None:
        self._store = RedisTokenStore(Partitions.around(redis))
        self.ahead_us = 0
        self.offered = 0
        self.lost = False

    async def look(self, name: str) -> Kept:
        if self.lost:
            raise TokenStoreError("out of reach")
        return self._ahead(await self._store.look(name))

    async def offer(self, name: str, seen: bytes, sealed: bytes, made_us: int) -> Kept:
        self.offered += 1
        return self._ahead(await self._store.offer(name, seen, sealed, made_us))

    def _ahead(self, kept: Kept) -> Kept:
        return Kept(kept.sealed, kept.made_us, kept.now_us + self.ahead_us)


@pytest.fixture(scope="module")
def key(tmp_path_factory) -> str:
    return make_apns_key(tmp_path_factory.mktemp("key"))[0].read_text()


def token(key: str, store: TokenStore, **options: Any) -> ProviderToken:
    return ProviderToken(**{"team_id": TEAM, "key_id": KEY_ID, "key": key, "store": store, **options})


@contextlib.asynccontextmanager
async def stores(redis: Redis, count: int) -> AsyncIterator[list[Clocked]]:
    """As many stores on one Redis, each over a connection of its own, as workers have them."""
    address = redis.connection_pool.connection_kwargs
    clients = [AsyncRedis(host=address["host"], port=address["port"], db=address["db"]) for _ in range(count)]
    try:
        yield [Clocked(client) for client in clients]
    finally:
        for client in clients:
            await client.aclose()


def claims(authorization: bytes) -> dict[str, Any]:
    return jwt.decode(authorization.removeprefix(b"bearer "), options={"verify_signature": False})


async def test_fifty_start_at_once(redis, key):
    """Fifty workers that start in the same moment send with one token; its iat is whole and Redis's time."""
    async with stores(redis, 50) as shared:
        seen = await asyncio.gather(*(token(key, store).fetch() for store in shared))
        assert len(set(seen)) == 1
        issued_at = claims(seen[0])["iat"]
        assert type(issued_at) is int
        assert 0 <= redis.time()[0] - issued_at < 60
        assert claims(seen[0])["iss"] == TEAM


async def test_refreshed_by_one(redis, key):
    """A token is kept for 40 minutes; then one worker replaces it and the others take that one, none before."""
    async with stores(redis, 20) as shared:
        tokens = [token(key, store) for store in shared]
        first = (await asyncio.gather(*(t.fetch() for t in tokens)))[0]
        for minutes, kept in ((39, True), (41, False)):
            for store, one in zip(shared, tokens, strict=True):
                store.ahead_us, one._look_at = minutes * MINUTE_US, 0.0
                assert one.current()  # the old one, while the store is asked
            await asyncio.gather(*(t._looking for t in tokens))
            seen = {t.current() for t in tokens}
            assert (seen == {first}) == kept
            assert len(seen) == 1


async def test_looks_again_when_it_is_time(redis, key):
    """The next look is within a minute, and no later than the fortieth minute of the token."""
    async with stores(redis, 1) as (store,):
        one = token(key, store)
        await one.fetch()
        now = asyncio.get_running_loop().time()
        assert 59 < one._look_at - now <= 60
        store.ahead_us, one._look_at = 39 * MINUTE_US + 50_000_000, 0.0
        one.current()
        await one._looking
        assert 1 <= one._look_at - asyncio.get_running_loop().time() < 11
        assert store.offered == 1


async def test_redis_out_of_reach(redis, key):
    """Without Redis a worker keeps its token while that is under an hour, says so once, and makes none of its own."""
    async with stores(redis, 2) as (store, other):
        one, late = token(key, store), token(key, other)
        first = await one.fetch()
        store.lost = other.lost = True
        with structlog.testing.capture_logs() as logs:
            for _ in range(3):
                one._look_at = 0.0
                assert one.current() == first
                await one._looking
            assert await late.fetch() == b""
        warnings = [entry["event"] for entry in logs if entry["log_level"] == "warning"]
        assert warnings == ["provider_token_store_unreachable"] * 2  # each of the two, once
        one._usable_until -= 59 * 60
        assert one.current() == b""
        await one.close()
        store.lost = False
        assert await one.fetch() == first


async def test_silent_redis(key):
    """A store that does not answer holds a send up for a second, no longer."""

    class Silent(LocalTokenStore):
        async def look(self, name: str) -> Kept:  # noqa: ARG002
            await asyncio.Event().wait()
            raise AssertionError

    async with asyncio.timeout(5):
        assert await token(key, Silent()).fetch() == b""


class Counted(LocalTokenStore):
    """A store that counts its looks, and fails as a test wants; with a TimeoutError it does not answer."""

    looks = 0
    fault: Exception | None = None

    async def look(self, name: str) -> Kept:
        self.looks += 1
        if isinstance(self.fault, TimeoutError):
            await asyncio.get_running_loop().create_future()
        if self.fault:
            raise self.fault
        return await super().look(name)


async def test_a_store_that_fails_is_asked_once_a_second(key):
    """While a token is usable, sends go on with it; what is wrong is said once, until the store has answered again."""
    store = Counted()
    one = token(key, store)
    authorization = await one.fetch()
    with structlog.testing.capture_logs() as logs:
        for _ in range(2):
            store.fault, store.looks, one._look_at = TokenStoreError("out of reach"), 0, 0.0
            for _ in range(10):
                assert one.current() == authorization
                await asyncio.gather(one._looking, return_exceptions=True)
            assert store.looks == 1
            one._look_at = 0.0
            one.current()
            await one._looking
            store.fault, one._look_at = None, 0.0
            one.current()
            await one._looking
    assert {(entry["event"], entry["why"]) for entry in logs} == {("provider_token_store_unreachable", "out of reach")}
    assert [entry["log_level"] for entry in logs] == ["warning", "debug"] * 2


async def test_a_refused_token_is_looked_for_once_a_second(key):
    """However many sends Apple has refused for it; a store that hangs holds up none of them, and raises nothing."""
    store = Counted()
    one = token(key, store, patience_s=0.05)
    authorization = await one.fetch()
    store.looks = 0
    assert await asyncio.gather(*(one.renew(authorization) for _ in range(50))) == [False] * 50
    assert store.looks == 1
    store.fault, one._refused_at = TimeoutError(), -1.0
    assert not await one.renew(authorization)
    assert store.looks == 2


async def test_lost_data_is_put_back(redis, key):
    """A Redis that has lost its data is given back the token that Apple knows; a new worker gets that one."""
    async with stores(redis, 2) as (store, other):
        one = token(key, store)
        first = await one.fetch()
        redis.flushdb()
        one._look_at = 0.0
        one.current()
        await one._looking
        assert await token(key, other).fetch() == one.current() == first


async def test_sealed(redis, key, tmp_path):
    """What stands in Redis shows nothing of the token, lapses within the hour, and only the .p8 opens it."""
    async with stores(redis, 3) as (store, other, third):
        first = await token(key, store).fetch()
        (name,) = redis.keys("notifier:token:*")
        kept = redis.hgetall(name)
        assert name.startswith(f"notifier:token:apns:{TEAM}:{KEY_ID}:".encode())
        signature = first.rpartition(b".")[2]
        for part in (first[7:], signature, urlsafe_b64decode(signature + b"=="), b"ES256", TEAM.encode()):
            assert part not in b"".join(kept.values())
        assert 3500 < redis.ttl(name) <= 3600
        # Another key under the same id, as after a mistake, neither reads it nor puts it out of use.
        another = make_apns_key(tmp_path)[0].read_text()
        assert await token(another, other).fetch() != first
        assert await token(key, third).fetch() == first


async def test_garbage_in_redis(redis, key):
    """What cannot be opened is replaced, by one worker, and the log shows neither it nor a token."""
    async with stores(redis, 20) as shared:
        await token(key, shared[0]).fetch()
        (name,) = redis.keys("notifier:token:*")
        redis.hset(name, "sealed", b"garbage of somebody")
        with structlog.testing.capture_logs() as logs:
            seen = await asyncio.gather(*(token(key, store).fetch() for store in shared))
        assert len(set(seen)) == 1
        assert seen[0].startswith(b"bearer ")
        assert "provider_token_unreadable" in {entry["event"] for entry in logs}
        assert "garbage" not in str(logs)
        assert seen[0][7:].decode() not in str(logs)


async def test_never_shown(redis, key):
    """Neither token nor key is in a repr of what handles them."""
    async with stores(redis, 1) as (store,):
        one = token(key, store)
        authorization = await one.fetch()
        (name,) = redis.keys("notifier:token:*")
        kept = await store.look(name.removeprefix(b"notifier:token:").decode())
        assert kept.sealed
        assert str(kept.sealed)[2:20] not in repr(kept)
        assert authorization.decode()[7:40] not in repr(one) + repr(vars(one)["_log"])


async def test_clock_set_back(redis, key):
    """A token that is dated far in the future is not used: Redis's clock was set back."""
    async with stores(redis, 2) as (store, other):
        store.ahead_us = 180 * MINUTE_US
        first = await token(key, store).fetch()
        second = await token(key, other).fetch()
        assert second != first
        assert claims(second)["iat"] < claims(first)["iat"]


async def test_errors_are_ours():
    """A Redis that refuses connections is a TokenStoreError, which is a NotifierError."""
    client = AsyncRedis(host="127.0.0.1", port=1, retry=Retry(NoBackoff(), 0))
    with pytest.raises(TokenStoreError) as caught:
        await RedisTokenStore(Partitions.around(client)).look("name")
    assert isinstance(caught.value, NotifierError)
    await client.aclose()


async def test_another_partition_keeps_it_while_the_node_of_the_first_hangs(redis, key):
    """So nothing of the others waits for that node, and all workers ask the same one."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        address = redis.connection_pool.connection_kwargs
        hangs = AsyncRedis(port=mute.getsockname()[1], socket_timeout=60)
        answers = AsyncRedis(host=address["host"], port=address["port"], db=address["db"])
        served = [Partition(n, 2, keys.in_force(), client) for n, client in enumerate((hangs, answers))]
        workers = [token(key, RedisTokenStore(served), patience_s=0.05) for _ in range(2)]
        assert [await each.fetch() for each in workers] == [b"", b""]
        for each in workers:
            each._patience_s = 60.0  # the machine may be slow
        first, second = [await each.fetch() for each in workers]
        await hangs.aclose()
        await answers.aclose()
    assert first
    assert first == second


# As a strict server sees it.


async def test_fifty_providers_and_apples_rule(redis, identity):
    """Apple that admits one new token in 20 minutes sees one from 50 workers at once, and one more when it expires."""
    ahead_s = [0.0]
    rule = {"token_update_s": 1200, "clock": lambda: time.time() + ahead_s[0]}
    async with stores(redis, 50) as shared, rig(identity, **rule) as r:
        providers = [make_provider(identity, r.simulator.url, tokens=store) for store in shared]
        try:
            assert await send_all(providers) == {(Outcome.DELIVERED, "")}
            assert r.simulator.checks.tokens_seen == 1
            ahead_s[0] = 21 * 60.0
            for store in shared:
                store.ahead_us = 21 * MINUTE_US
            r.simulator.expire_tokens()
            assert await send_all(providers) == {(Outcome.UNSENT, "ExpiredProviderToken")}
            assert await send_all(providers) == {(Outcome.DELIVERED, "")}
            assert r.simulator.checks.tokens_seen == 2
            assert r.simulator.connections_opened == 50
        finally:
            for provider in providers:
                await provider.close()


async def test_a_send_without_a_token_spends_no_attempt(redis, identity):
    """While the store does not answer, nothing goes to Apple; a second later the send may be tried again."""
    async with stores(redis, 1) as (store,), rig(identity, client={"tokens": store}) as up:
        store.lost = True
        assert await up.send() == Answer(Outcome.UNSENT, reason="NoProviderToken", retry_after_us=1_000_000)
        assert not up.log.arrivals


async def test_expiry_by_the_clock_of_redis(identity):
    """The moment at which a message expires is told by the store's clock: the worker's own may be wrong by hours."""
    now_s, loop = time.time() + 3 * 3600, asyncio.get_running_loop()  # this machine's clock is three hours slow
    true_s, begun = lambda: now_s, loop.time()
    async with rig(identity, client={"tokens": LocalTokenStore(true_s)}, clock=true_s) as r:
        for _ in range(2):
            assert (await r.send(ttl_us=90 * 1_000_000)).outcome is Outcome.DELIVERED
        for headers in r.simulator.seen:
            assert 0 <= int(headers["apns-expiration"]) - (now_s + 90) <= loop.time() - begun + 1


async def send_all(providers: list[ApnsProvider]) -> set[tuple[Outcome, str]]:
    answers = await asyncio.gather(*(p.send(dispatch(job_id=f"job-{n}")) for n, p in enumerate(providers)))
    return {(answer.outcome, answer.reason) for answer in answers}


class Told(LocalTokenStore):
    """A store that says when it has answered, before whoever asked has read it."""

    def __init__(self) -> None:
        super().__init__()
        self.answered: list[Callable[[], None]] = []

    async def offer(self, name: str, seen: bytes, sealed: bytes, made_us: int) -> Kept:
        kept = await super().offer(name, seen, sealed, made_us)
        for tell in self.answered:
            tell()
        return kept


@pytest.mark.parametrize("hops", range(7))
async def test_who_waited_for_the_token_goes_before_who_comes_when_it_is_there(identity, hops):
    """Law 4: sends that had to wait for the first token, and one that comes at any moment after, arrive in order."""
    store = Told()
    async with rig(identity, client={"tokens": store}) as up:
        tasks: list[asyncio.Task[Any]] = []
        all_begun = asyncio.Event()

        def send(left: int = 0) -> None:
            if left:
                asyncio.get_running_loop().call_soon(send, left - 1)
            else:
                tasks.append(asyncio.create_task(up.send(title=f"{len(tasks)}")))
                if len(tasks) == 3:
                    all_begun.set()

        send()
        send()
        store.answered.append(lambda: send(hops))
        await all_begun.wait()
        assert {(await task).outcome for task in tasks} == {Outcome.DELIVERED}
        assert [arrival.title for arrival in up.log.arrivals] == ["0", "1", "2"]
