"""A configuration that is only half written takes no limit away, wherever it breaks off (issue 9, item 18)."""

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from notifier.errors import SettingsError
from notifier.operations.action_log import read_actions
from notifier.rules.policies import Policies
from notifier.settings import load_settings
from notifier.store.partitions import Partitions
from notifier.testing.embedded import EmbeddedRedis
from workers.configuration.reload import Reload
from workers.configuration.start import load_at_start

WHOLE = """\
worker: {lease: 60s}
categories:
  chat: {lane: urgent, windows: [5/10s]}
tiers:
  quiet: {windows: [1/1h], gap: 5s}
user: {windows: [1/1m, 20/1h], gap: 1s}
users: {"42": quiet}
"""
BEFORE = 'user: {windows: [1/1m, 20/1h], gap: 2s}\ntiers: {quiet: {gap: 9s}}\nusers: {"42": quiet}\n'
MISSING = "the section user is missing, but the rules in force have one"

pytestmark = pytest.mark.usefixtures("redis", "slow_looks")
Looks = Callable[[str | None], Awaitable[Policies | None]]


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


@asynccontextmanager
async def watched(path: Path, url: str) -> AsyncIterator[tuple[Reload, Looks]]:
    """A worker that follows BEFORE, and `look`, which writes a text over it, if there is one, and looks."""
    async with AsyncRedis.from_url(url) as client:
        write(path, BEFORE)
        reload = Reload(path, Partitions.around(client), load_settings(path, environ={}))
        await reload.begin()
        await reload.changed()

        async def look(text: str | None) -> Policies | None:
            if text is not None:
                write(path, text)
            return await reload.changed()

        yield reload, look


async def test_looks_in_quick_succession_do_not_settle_a_file(
    tmp_path: Path, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Law 7: published rates make a worker look at once, and half a file may be YAML: it counts seconds, not looks."""
    async with watched(tmp_path / "n.yaml", redis_server.url) as (_, look):
        now_ns = 10**12
        monkeypatch.setattr("notifier.store.followed.time.monotonic_ns", lambda: now_ns)
        assert await look(WHOLE) is None
        for _look in range(5):
            now_ns += 190_000_000
            assert await look(None) is None
        now_ns += 60_000_000
        assert await look(None) is not None


async def test_half_a_file_on_a_server_whose_clock_is_behind_is_left_alone(
    tmp_path: Path, redis_server: EmbeddedRedis
) -> None:
    """Its time says that nobody has written it for a minute, and a worker looked at it a moment ago."""
    path = tmp_path / "n.yaml"
    async with watched(path, redis_server.url) as (reload, look):
        for text in (WHOLE[: WHOLE.index("users:")], WHOLE):
            write(path, text)
            os.utime(path, (path.stat().st_mtime - 60,) * 2)
            assert await look(None) is None
        assert await look(None) is not None
        assert reload.problem == ""


@pytest.mark.parametrize("rest", range(4))
async def test_a_file_that_is_still_being_written_is_left_alone(
    rest: int, tmp_path: Path, redis_server: EmbeddedRedis
) -> None:
    """A look finds the first half, the next the whole, at every fourth place: nothing but the whole is taken up."""
    async with watched(tmp_path / "n.yaml", redis_server.url) as (reload, look):
        for cut in range(rest, len(WHOLE), 4):
            assert await look(WHOLE[:cut]) is None
            assert reload.problem == ""
            assert await look(WHOLE) is None, "it has changed since"
            taken = await look(None)
            assert (taken.for_user("7").gap_us, taken.for_user("42").gap_us) == (1_000_000, 5_000_000)
            assert await look(BEFORE) is None
            assert await look(None) is not None


async def test_a_changed_file_stands_in_the_log_once(tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis) -> None:
    """Where, when, from which rates to which, and the difference; of the workers of a host one writes it."""
    path = tmp_path / "n.yaml"
    async with watched(path, redis_server.url) as (reload, look):
        client = AsyncRedis.from_url(redis_server.url)
        other = Reload(path, Partitions.around(client), load_settings(path, environ={}))
        await other.begin()
        before = reload.version
        await look(BEFORE.replace("gap: 2s", "gap: 3s"))
        assert await look(None) is not None
        await other.changed()
        assert await other.changed() is not None
        await client.aclose()
        (action,) = read_actions(redis, 9)
        assert (action.who, action.address, action.action) == ("the file", socket.gethostname(), "change rates")
        assert action.of == f"{before} to {reload.version}"
        assert action.answer == f"{path}; - user.gap: 2s; + user.gap: 3s"


async def test_a_half_that_stays_takes_the_limits_of_nobody(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """Whoever wrote it died: at the end of each line it is YAML, and says nothing of what follows."""
    lines = WHOLE.splitlines(keepends=True)
    halves = ["".join(lines[:n]) for n in range(1, lines.index("user: {windows: [1/1m, 20/1h], gap: 1s}\n") + 1)]
    async with watched(tmp_path / "n.yaml", redis_server.url) as (reload, look):
        for half in halves:
            assert await look(half) is None
            assert await look(None) is None
            assert MISSING in reload.problem or "tiers" in reload.problem or "categories" in reload.problem
            assert await look(None) is None


@pytest.mark.parametrize(("text", "taken_up"), [("user: {}\n", True), ("tiers: {}\n", False), ("user:\n", False)])
async def test_that_there_is_no_limit_is_to_be_said(
    text: str, taken_up: bool, tmp_path: Path, redis_server: EmbeddedRedis
) -> None:
    """`user: {}` is no accident; the section that is lost, or breaks off after its name, may be one."""
    async with watched(tmp_path / "n.yaml", redis_server.url) as (reload, look):
        assert await look(text) is None
        taken = await look(None)
        assert (taken is not None) == taken_up
        assert (reload.problem == "") == taken_up
        if taken is not None:
            assert taken.for_user("7").is_empty
            assert await look("users: {}\n") is None
            assert await look("tiers: {}\n") is None
            assert await look(None) is None, "these are the same rates"
            assert reload.problem == "", "where no limit is in force, none is lost"


HALVES = {"no YAML": "user: {windows: [1/1m], gap: 1", "no limits": "worker: {lease: 60s}\n"}


@pytest.mark.parametrize("half", HALVES.values(), ids=HALVES.keys())
def test_a_worker_that_starts_on_half_a_file_reads_the_whole(
    half: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits until the file has been the same for a second: so it neither ends nor sends without limits."""
    path, now_s = tmp_path / "n.yaml", 1_800_000_000.0
    parts = [half, half + "#", WHOLE]

    def write_more(seconds: float) -> None:
        nonlocal now_s
        now_s += seconds
        if parts:
            path.write_text(parts.pop(0), encoding="utf-8")
            os.utime(path, (now_s - 0.3, now_s - 0.3))

    monkeypatch.setattr("workers.configuration.start.time.sleep", write_more)
    monkeypatch.setattr("workers.configuration.start.time.time", lambda: now_s)
    write_more(0)
    assert load_at_start(path).policies().for_user("7").gap_us == 1_000_000
    assert parts == []


def test_a_file_of_yesterday_is_read_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for; a broken one is refused, and one that is not there too."""
    path = tmp_path / "n.yaml"
    path.write_text(HALVES["no YAML"], encoding="utf-8")
    os.utime(path, (path.stat().st_mtime - 86_400,) * 2)
    monkeypatch.setattr("workers.configuration.start.time.sleep", None)
    with pytest.raises(SettingsError, match="is not YAML"):
        load_at_start(path)
    with pytest.raises(SettingsError):
        load_at_start(tmp_path / "nowhere.yaml")
