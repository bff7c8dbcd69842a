"""What watchers of the page Now are told: once read for all, then what has changed alone."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from notifier.errors import RedisUnusableError
from notifier.server import feed as module
from notifier.server.feed import HEARTBEAT_S, MINUTES, Feed

Told = tuple[str, Any]


class Source:
    """Counts by minute. asked: how many minutes each time."""

    def __init__(self) -> None:
        self.asked: list[int] = []
        self.counts = dict.fromkeys(range(MINUTES), 0)
        self.fails = ""

    async def __call__(self, minutes: int) -> list[dict[str, Any]]:
        self.asked.append(minutes)
        await asyncio.sleep(0)
        if self.fails:
            raise RedisUnusableError(self.fails)
        newest = sorted(self.counts.items())[-minutes:]
        return [{"at": at * 60, "n": n} for at, n in newest]


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EVERY_S", 0.001)


@pytest.fixture
def source() -> Source:
    return Source()


async def following(stream: AsyncIterator[str]) -> Told:
    """The next event, or comment, as its name and its data."""
    text = await anext(stream)
    assert text.endswith("\n\n")
    if text.startswith(":"):
        return "comment", text
    fields = dict(line.split(": ", 1) for line in text.splitlines() if line)
    if "retry" in fields:
        return await following(stream)
    return fields["event"], json.loads(fields["data"])


async def test_first_all_then_what_has_changed(source: Source) -> None:
    """A stream begins with an hour; then it is told the minutes that changed, and only the newest are read again."""
    stream = Feed(source).events()
    name, told = await following(stream)
    assert (name, len(told["minutes"])) == ("numbers", MINUTES)
    source.counts[MINUTES - 1] = 7
    assert await following(stream) == ("numbers", {"minutes": [{"at": (MINUTES - 1) * 60, "n": 7}]})
    source.counts[MINUTES] = 1
    assert (await following(stream))[1]["minutes"] == [{"at": MINUTES * 60, "n": 1}]
    assert (source.asked[0], set(source.asked[1:])) == (MINUTES, {2})


async def test_who_reads_slowly_misses_no_minute(source: Source) -> None:
    """Where more minutes have begun than are read again, what stands between was never told, or not to its end."""
    stream = Feed(source).events()
    await following(stream)
    source.counts |= dict.fromkeys(range(MINUTES - 1, MINUTES + 2), 7)
    name, told = await following(stream)
    assert name == "numbers"
    assert [each["at"] // 60 for each in told["minutes"] if each["n"]] == [MINUTES - 1, MINUTES, MINUTES + 1]


async def test_many_watch_and_one_reads(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty streams that begin together cost one reading."""
    monkeypatch.setattr(module, "EVERY_S", 3600)
    feed = Feed(source)
    told = await asyncio.gather(*(following(feed.events()) for _ in range(20)))
    assert all(each == told[0] for each in told)
    assert source.asked == [MINUTES]


async def test_trouble_and_its_end(source: Source) -> None:
    """That Redis does not answer is told once, and that it answers again is told even where nothing has changed."""
    stream = Feed(source).events()
    await following(stream)
    source.fails = "Redis does not answer"
    assert await following(stream) == ("trouble", {"detail": "Redis does not answer"})
    source.fails = "Redis refuses"
    assert await following(stream) == ("trouble", {"detail": "Redis refuses"})
    source.fails = ""
    name, told = await following(stream)
    assert (name, len(told["minutes"])) == ("numbers", MINUTES)


async def test_one_reading_fails_for_all_who_watch(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Redis that hangs is waited for once by all of them, not by one after the other."""
    monkeypatch.setattr(module, "EVERY_S", 3600)
    source.fails = "Redis does not answer"
    feed = Feed(source)
    told = await asyncio.gather(*(following(feed.events()) for _ in range(20)))
    assert told == [("trouble", {"detail": "Redis does not answer"})] * 20
    assert source.asked == [MINUTES]


async def test_while_nothing_changes(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream on which nothing is told still says so from time to time: proxies and browsers give up silent ones."""
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += HEARTBEAT_S / 10
        return now

    monkeypatch.setattr(module, "monotonic", clock)
    stream = Feed(source).events()
    assert [(await following(stream))[0] for _ in range(3)] == ["numbers", "comment", "comment"]


async def test_it_ends_when_the_server_ends(source: Source) -> None:
    """All streams end, also those that begin after."""
    feed = Feed(source)
    stream = feed.events()
    await following(stream)
    feed.end()
    assert [text async for text in stream] == []
    assert [text async for text in feed.events() if "event" in text] == []
