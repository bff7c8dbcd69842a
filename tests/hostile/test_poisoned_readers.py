"""What no script can read breaks no page, no metrics and no command: each tells people so, and goes on."""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis

from notifier.server import feed
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.serve_rig import TOKEN, Client, basic, serving
from tests.harness.support import note, notifier, write_config
from tests.hostile.test_poisoned_redis import NAMES, PLANTS, keys_of, poison
from tests.integration.conftest import Run, run  # noqa: F401 - a fixture
from tests.integration.server.test_feed import Stream, watching

READ = (
    *("/", "/user?id=victim", "/routes", "/problems", "/pause", "/log", "/limits", "/rates", "/metrics"),
    *("/api/v1/stats", "/api/v1/users?id=victim"),
)

COMMANDS = (
    *("status job-1", "line victim", "explain --user victim", "routes", "history victim", "health", "stats"),
    *("users export --user victim", "audit --repair"),
)


@pytest.fixture
def config(tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis) -> Path:
    assert redis.dbsize() == 0
    return write_config(tmp_path, redis_server.url, user={"windows": ["1/1h"]}, history={"keep": "1h", "max": 10})


@pytest.fixture
def serve(config: Path) -> Iterator[Client]:
    with serving(config, TOKEN) as client:
        yield client.with_token()


@pytest.mark.parametrize("first", range(4))
def test_no_page_breaks(serve: Client, config: Path, redis: Redis, first: int) -> None:
    """Whatever is under a key, each page, the API and the metrics answer: with what was asked for, or why not."""
    with notifier(config) as producer:
        (job, *_) = [producer.send(note("victim")) for _ in range(3)]
    paths = (*READ, f"/job?id={job}", f"/api/v1/jobs?id={job}")
    whole = {key: redis.dump(key) for key in redis.scan_iter()}
    for name in NAMES:
        for turn in range(first, len(PLANTS), 4):
            plants = itertools.islice(itertools.cycle(PLANTS.values()), turn, None)
            keys = keys_of(name, job)
            for key, plant in zip(keys, plants, strict=False):
                poison(redis, key, plant)
            answers = {path: serve(path) for path in paths}
            told = {path: status for path, (status, _, _) in answers.items()}
            assert set(told.values()) <= {200, 404, 503}, (name, turn, told)
            for path in paths:
                if path.startswith("/api/"):  # programs take no Infinity
                    json.loads(answers[path][1], parse_constant=lambda word, path=path: pytest.fail(f"{word}: {path}"))
            redis.delete(*keys)
        for key, dump in whole.items():
            redis.restore(key, 0, dump, replace=True)
    assert [serve(path)[0] for path in paths] == [200] * len(paths)


@pytest.mark.parametrize("first", range(4))
def test_the_live_stream_goes_on(
    serve: Client, config: Path, redis: Redis, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is under a key, who watches is told numbers or a trouble, in JSON; no stream ends."""
    monkeypatch.setattr(feed, "EVERY_S", 0.005)
    monkeypatch.setattr(feed, "HEARTBEAT_S", 0.0)  # each reading tells something
    begun = heard = 0
    read = feed.Feed._last

    async def read_and_count(of: feed.Feed, minutes: int) -> feed.Minutes:
        nonlocal begun
        begun += 1
        return await read(of, minutes)

    monkeypatch.setattr(feed.Feed, "_last", read_and_count)

    def told_by(stream: Stream) -> list[str]:
        """The names of all events up to that of a reading which begins after this call."""
        nonlocal heard
        names = [stream.next()[0] for _ in range(begun + 1 - heard)]
        heard += len(names)
        return names

    with watching(serve, Authorization=basic(TOKEN)) as stream:
        troubles = 0
        for name, turn in itertools.product(NAMES, range(first, len(PLANTS), 4)):
            keys = keys_of(name, str(redis.time()[0] // 60))
            for key, plant in zip(keys, itertools.islice(itertools.cycle(PLANTS.values()), turn, None), strict=False):
                poison(redis, key, plant)
            told = told_by(stream)
            assert set(told) <= {"numbers", "trouble", "comment"}, (name, turn, told)
            troubles += told.count("trouble")
            redis.delete(*keys)
        assert troubles
        told_by(stream)  # none that follows was read while a key was poisoned
        # What has not changed is not told again: so something changes, rather than the minute.
        with notifier(config) as producer:
            producer.send(note("victim"))
        while (accepted := sum(each["accepted"] for each in stream.until("numbers")["minutes"])) == 0:
            pass
        assert accepted == 1


@pytest.mark.parametrize("turn", range(len(PLANTS)))
def test_no_command_breaks(run: Run, redis: Redis, turn: int) -> None:  # noqa: F811 - the fixture
    """Whatever is under a key, each command that reads ends with a line and one of its exit statuses."""
    for name in NAMES[turn % 3 :: 3]:
        plants = itertools.islice(itertools.cycle(PLANTS.values()), turn, None)
        for key, plant in zip(keys_of(name, "job-1"), plants, strict=False):
            poison(redis, key, plant)
        for command in COMMANDS:
            ran = run(*command.split())
            assert ran.status in {0, 1, 4}, (name, command, ran)
        redis.flushdb()
