"""What several integration tests share: the simulators of a module, and a producer by the test's configuration."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from redis import Redis

from notifier import Notifier
from notifier.cli.__main__ import main
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import Simulators, notifier, write_config


@dataclass
class Ran:
    status: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture(scope="module")
def simulators(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Simulators]:
    with Simulators(tmp_path_factory.mktemp("simulators")) as running:
        yield running


@pytest.fixture
def config(request: pytest.FixtureRequest, tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis) -> Path:
    """A configuration with the SECTIONS of the test's module, whose Redis is empty and whose providers print."""
    assert redis.dbsize() == 0
    return write_config(tmp_path, redis_server.url, **getattr(request.module, "SECTIONS", {}))


@pytest.fixture
def producer(config: Path) -> Iterator[Notifier]:
    """A producer by the fixture `config`, which some modules make with what they need."""
    with notifier(config) as made:
        yield made


@pytest.fixture
def run(config: Path, redis: Redis, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run the command in this process, on an empty Redis; the terminal is 80 columns wide."""
    assert redis.dbsize() == 0
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NOTIFIER_CONFIG", str(config))

    def run(*arguments: str) -> Ran:
        monkeypatch.setattr(sys, "argv", ["notifier", *arguments])
        capfd.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return Ran(int(ended.value.code or 0), out, err)

    return run
