"""What the pages about the limiter show works as it stands there."""

import re
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from notifier.limiter import Limiter
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.pages import python_blocks, run_blocks
from tests.integration.web_rig import serve_asgi

ROOT = Path(__file__).parents[2]
YAML = re.compile(r"^```yaml\n(.*?)^```", re.MULTILINE | re.DOTALL)
THEIRS = "redis://localhost:6379/0"


@pytest.mark.usefixtures("redis")
@pytest.mark.parametrize("page", [f"how-to/limiter{n}.md" for n in ("", "-users", "-web", "-migrate", "-recipes")])
def test_the_examples_run(
    page: str, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Each example of the page runs, in the order of the page, with the configuration that it shows."""
    config = tmp_path / "notifier.yaml"
    config.write_text("".join(["{}\n", *YAML.findall((ROOT / "docs" / page).read_text(encoding="utf-8"))][-1:]))
    monkeypatch.setenv("NOTIFIER_CONFIG", str(config))
    monkeypatch.setenv("NOTIFIER_REDIS_URL", redis_server.url)
    assert run_blocks(page, redis_server.url)


def test_each_method_has_an_example() -> None:
    """Whatever `Limiter` can do, the page shows."""
    shown = "".join(python_blocks("how-to/limiter.md", THEIRS))
    methods = [name for name in dir(Limiter) if not name.startswith("_") and callable(getattr(Limiter, name))]
    assert len(methods) > 12
    assert [name for name in methods if not re.search(rf"\.{name}\(", shown)] == []


def test_the_readme_limits_a_fastapi_program(redis_server: EmbeddedRedis, redis: Redis) -> None:
    """The ten lines of the README, copied as they are: five may log in within a minute, the sixth may not."""
    (program,) = (block for block in python_blocks("../README.md", redis_server.url) if "FastAPI" in block)
    assert len([line for line in program.splitlines() if line]) <= 10
    names: dict[str, Any] = {"__name__": "readme"}
    exec(compile(program, "README.md", "exec"), names)
    with serve_asgi(names["app"], names["limiter"]) as served:
        replies = [served.get("login", method="POST") for _ in range(6)]
    assert [reply.status for reply in replies] == [200] * 5 + [429]
    assert replies[0].body == b'{"ok":true}'
    assert replies[0].headers["RateLimit"] == '"login-1m";r=4;t=60'
    assert 0 < int(replies[5].headers["Retry-After"]) <= 60
    assert redis.keys("*") == [b"notifier:keys:web:{login:{ip:127.0.0.1}}"]
