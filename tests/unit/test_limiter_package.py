"""The distribution of the limiter alone: a package of its own, of the limiter and the little that it imports."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from redis import Redis

from notifier.testing.embedded import EmbeddedRedis

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "packaging/limiter"))

from hatch_build import closure, write_package  # noqa: E402 - beside its pyproject.toml, as hatch wants it

OURS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PACKAGE = tomllib.loads((ROOT / "packaging/limiter/pyproject.toml").read_text())["project"]
HOUSE = {
    *("errors", "lazy", "units", "rules", "scripts"),
    *(f"rules.{name}" for name in ("calendar_windows", "hours", "policy", "rate_text", "record", "zones")),
    *("rules.kinds", *(f"rules.kinds.{name}" for name in ("burst", "gap", "kind", "window"))),
    *(f"scripts.{name}" for name in ("keys", "loader", "pooled", "records", "connection_wait")),
}
IN_MEMORY = """
import sys
sys.modules.update(dict.fromkeys(["notifier", "redis", "structlog", "pydantic", "yaml"]))
from push_throttle_limiter import AsyncMemoryLimiter, Hold, MemoryLimiter, Permit
from push_throttle_limiter.middleware import ASGILimits, WSGILimits
memory = MemoryLimiter()
assert isinstance(memory.acquire("k", "1/minute"), Permit)
assert isinstance(memory.acquire("k", "1/minute"), Hold)
"""
IN_REDIS = """
import sys
sys.modules["notifier"] = None
from push_throttle_limiter import Hold, Limiter, Permit
with Limiter.from_url(sys.argv[1], namespace="n", usage_keep="1d") as limiter:
    assert isinstance(limiter.acquire("k", "1/minute"), Permit)
    assert isinstance(limiter.acquire("k", "1/minute"), Hold)
    assert limiter.block("b", "1m") is None and limiter.usage("k").total == 1
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the package stands."""
    folder = tmp_path_factory.mktemp("package")
    write_package(folder / "push_throttle_limiter")
    return folder


def run(package: Path, *words: str) -> None:
    done = subprocess.run([sys.executable, "-c", *words], capture_output=True, text=True, check=False, cwd=package)
    assert done.returncode == 0, done.stderr


def test_it_is_the_limiter_and_little_else() -> None:
    """What it takes of the house is known: who makes the limiter import more says so here."""
    modules = {name.removeprefix("notifier.") for name in closure()}
    assert {name for name in modules if not name.startswith("limiter")} == HOUSE


def test_it_names_no_module_of_the_house(package: Path) -> None:
    """It imports nothing of `notifier`, so both can be installed, and neither has a file of the other."""
    wrong = [path for path in package.rglob("*.py") if "from notifier" in path.read_text()]
    assert not wrong
    assert [path.name for path in package.iterdir()] == ["push_throttle_limiter"]


def test_memory_needs_no_redis(package: Path) -> None:
    """The limiter in memory, and the middleware, without redis."""
    run(package, IN_MEMORY)


def test_it_runs_in_redis(package: Path, redis: Redis, redis_server: EmbeddedRedis) -> None:
    """All scripts and their pieces are in it."""
    run(package, IN_REDIS, redis_server.url)
    assert redis.dbsize() > 0


def test_it_is_of_one_version() -> None:
    """Both distributions have one version, and need the same of redis and of the zones."""
    assert PACKAGE["version"] == OURS["version"]
    needs = {*PACKAGE["dependencies"], *PACKAGE["optional-dependencies"]["redis"]}
    assert needs <= set(OURS["dependencies"])
