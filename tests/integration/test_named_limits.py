"""The section `limits` of the configuration: named rates, live as all rates are."""

import asyncio
import os
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier import AsyncNotifier
from notifier.errors import SettingsError
from notifier.limiter import AsyncLimiter, Hold, Limiter, Permit
from notifier.settings import load_settings
from notifier.settings.loading import parse_settings, read_source
from notifier.settings.rates import rates_in
from notifier.store import live
from notifier.store.published import publish, withdraw
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.forks import exit_of_fork, stopped_reading
from tests.harness.support import PATIENCE_S, eventually, note


class File:
    """A configuration that is written anew."""

    def __init__(self, path: Path, url: str) -> None:
        self.path = path
        self._url = url

    def write(self, limits: str) -> None:
        self.path.write_text(f"redis: {{url: {self._url}}}\nlimits: {limits}\n")


@pytest.fixture
def file(tmp_path: Path, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, redis: Redis) -> File:
    assert redis.ping()
    monkeypatch.setattr(live, "LOOK_S", 0.01)
    made = File(tmp_path / "notifier.yaml", redis_server.url)
    made.write("{login: 2/day}")
    return made


def how_many(limiter: Any, key: str, name: str = "login") -> int:
    return sum(isinstance(limiter.acquire(key, name), Permit) for _ in range(12))


def goes_by(limiter: Any, rates: str, name: str = "login") -> None:
    """Await that a name stands for these rates."""
    eventually(lambda: limiter.policy(name) == limiter.policy(rates), f"{name}: {rates}")


def test_a_limit_is_asked_by_its_name(file: File) -> None:
    """A name stands for the rates of the file; another is refused where it enters, and the error says what is known."""
    with Limiter.from_config(file.path, namespace="n") as limiter:
        assert how_many(limiter, "k") == 2
        with pytest.raises(ValueError, match="no limit is named 'signup': known are login"):
            limiter.acquire("k", "signup")


def test_all_connections_are_closed(file: File, redis: Redis) -> None:
    """Those by which the limits are watched too, of both kinds of limiter."""

    async def ask_and_close() -> None:
        limiter = AsyncLimiter.from_config(file.path, namespace="n")
        assert await limiter.acquire("k", "login")
        await limiter.aclose()

    before = {each["id"] for each in redis.client_list()}
    with Limiter.from_config(file.path, namespace="n") as limiter:
        assert how_many(limiter, "k") == 2
        assert {each["id"] for each in redis.client_list()} > before
    redis.flushdb()
    asyncio.run(ask_and_close())
    eventually(lambda: {each["id"] for each in redis.client_list()} <= before, "all connections are closed")


def test_a_changed_file_holds(file: File) -> None:
    """A saved file is taken up once it is the same at two looks; what was taken goes on counting."""
    with Limiter.from_config(file.path, namespace="n") as limiter:
        assert how_many(limiter, "k") == 2
        file.write("{login: 5/day; 9/week, signup: 1/day}")
        goes_by(limiter, "5/day; 9/week")
        assert how_many(limiter, "k") == 3
        assert how_many(limiter, "k", "signup") == 0


def test_a_file_that_was_changed_a_while_ago_holds_at_once(file: File) -> None:
    """A program that asks for the first time long after its start has its new rates at that call."""
    with Limiter.from_config(file.path, namespace="n") as limiter:
        file.write("{login: 5/day}")
        os.utime(file.path, (time.time() - 2,) * 2)
        assert limiter.acquire("k", "login").remaining == 4


def test_a_child_of_a_fork_reads_what_its_parent_was_about_to_read(file: File, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread of the parent was in a look at the fork, and the child has no such thread: it looks for itself."""
    with Limiter.from_config(file.path, namespace="n") as limiter, stopped_reading(monkeypatch) as reads:
        file.write("{login: 5/day}")
        os.utime(file.path, (0, 0))
        thread = threading.Thread(target=how_many, args=(limiter, "of the parent"))
        thread.start()
        assert reads.wait(PATIENCE_S)
        assert exit_of_fork(lambda: sys.exit(how_many(limiter, "of the child"))) == 5
    thread.join()


def test_what_is_published_stands_in_the_place_of_the_file(file: File, redis: Redis) -> None:
    """Rates applied through Redis hold from their moment on, until they are withdrawn."""
    with Limiter.from_config(file.path, namespace="n") as limiter:
        publish(redis, {"limits": {"login": "7/day"}}, 60_000_000)
        assert how_many(limiter, "early") == 2
        publish(redis, {"limits": {"login": "4/day"}}, -1)
        goes_by(limiter, "4/day")
        assert how_many(limiter, "k") == 4
        withdraw(redis)
        goes_by(limiter, "2/day")
        assert how_many(limiter, "later") == 2


def test_what_cannot_be_used_changes_nothing(file: File, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong file, half a file, a lost name: it is logged, the rates in force hold on, and a program does not fail."""
    with Limiter.from_config(file.path, namespace="n") as limiter:
        assert how_many(limiter, "k") == 2
        for wrong, why in {
            "{login: 5 a day}": "'5 a day' is not a rate",
            "{login: [": "is not YAML",
            "{}": "no limit login any more: its last rates hold on",
        }.items():
            caplog.clear()
            file.write(wrong)
            eventually(lambda why=why: why in caplog.text, why)
            assert how_many(limiter, wrong) == 2
        file.path.unlink()
        eventually(lambda: "cannot be read" in caplog.text, "that it is gone")
        assert how_many(limiter, "gone") == 2


async def test_asyncio_follows_as_well(file: File) -> None:
    """AsyncLimiter takes up the same changes; it reads the file in a thread."""
    limiter = AsyncLimiter.from_config(file.path, namespace="n")
    assert [type(await limiter.acquire("k", "login")) for _ in range(3)] == [Permit, Permit, Hold]
    file.write("{login: 3/day}")
    await asyncio.to_thread(goes_by, limiter, "3/day")
    assert [type(await limiter.acquire("k", "login")) for _ in range(2)] == [Permit, Hold]
    await limiter.aclose()


async def test_a_program_whose_threads_are_all_busy_waits_for_none(file: File) -> None:
    """Neither a limiter nor a Notifier of asyncio needs a free one of the loop's own threads to begin to follow."""
    document = file.path.read_text() + "categories: {default: {lane: default}}\nproviders: {apns: {client: console}}\n"
    file.path.write_text(document)
    free = threading.Event()
    loop = asyncio.get_running_loop()
    loop.set_default_executor(ThreadPoolExecutor(1))
    own = loop.run_in_executor(None, free.wait)
    try:
        async with (
            asyncio.timeout(PATIENCE_S),
            AsyncLimiter.from_config(file.path, namespace="n") as limiter,
            AsyncNotifier.from_config(file.path) as notifier,
        ):
            assert await limiter.acquire("k", "login")
            assert await notifier.send(note("anna"), timeout=2)
    finally:
        free.set()
        await own


def test_names_cost_nothing(file: File, monkeypatch: pytest.MonkeyPatch, redis: Redis) -> None:
    """Between two looks: Redis is asked what is published once, not at each call."""
    monkeypatch.setattr(live, "LOOK_S", 3600.0)
    with Limiter.from_config(file.path, namespace="n") as limiter:
        redis.config_resetstat()
        how_many(limiter, "k")
        assert redis.info("commandstats")["cmdstat_hmget"]["calls"] == 1


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ("{login: 5 a minute}", "limits.login: '5 a minute' is not a rate"),
        ("{login: 5}", "limits.login: must be rates, is a number; write for example '5/minute;"),
        ("{login: ''}", "limits.login: '' holds no rate"),
        ("{login: gap 1s; gap 2s}", "one gap and one burst at most"),
        ("{5min: 5/minute}", "begins with a letter"),
        ("{login: 3/calendar-year}", "limits.login: "),
    ],
)
def test_config_check_says_what_is_wrong(limits: str, why: str) -> None:
    """A limit that cannot be meant is refused with its line and key, as all of the file is."""
    with pytest.raises(SettingsError, match=r"^n\.yaml:1:\d+: ") as raised:
        parse_settings(f"limits: {limits}\n", name="n.yaml")
    assert why in str(raised.value)


def test_limits_are_rates(file: File) -> None:
    """They are applied, compared and told apart by their version as the other rates are."""
    before = load_settings(file.path).rates_version
    file.write("{login: 3/day}")
    assert load_settings(file.path).rates_version != before
    assert rates_in(read_source(file.path).data) == {"limits": {"login": "3/day"}}
