"""The example of a limited web program, and the page of `notifier serve` that shows what it counted."""

import json
import runpy
from pathlib import Path

import pytest
from redis import Redis

from notifier.limiter import Limiter
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.serve_rig import EVIL, serving
from tests.harness.support import write_config
from tests.integration.web_rig import serve_asgi

EXAMPLE = Path(__file__).parents[2] / "examples" / "limited_api" / "app.py"


def test_the_example_and_its_page(
    redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A burst of three goes, the fourth is refused; the page ranks the keys, and shows the series of each."""
    assert redis.ping()
    monkeypatch.setenv("NOTIFIER_REDIS_URL", redis_server.url)
    names = runpy.run_path(str(EXAMPLE))
    with serve_asgi(names["app"], names["limiter"]) as site:
        assert [site.get("export", X_API_Key="mine").status for _ in range(4)] == [200, 200, 200, 429]
        assert site.get("login", method="POST").status == 200
    with serving(write_config(tmp_path, redis_server.url)) as ask:
        assert [each["namespace"] for each in json.loads(ask("/api/v1/limits")[1])["namespaces"]] == ["web"]
        found = json.loads(ask("/api/v1/limits?id=web")[1])
        assert [each["total"] for each in found["top"]] == [5, 3, 1]
        (export,) = [each for each in found["top"] if each["key"].startswith("export:")]
        assert (export["total"], export["held"]) == (3, 1)
        assert "mine" not in export["key"], "a key is told by its hash"
        assert sum(point["count"] for point in found["series"]) == 9
        assert [each["held"] for each in json.loads(ask("/api/v1/limits?id=web&by=held")[1])["top"]] == [1]
        of_one = json.loads(ask(f"/api/v1/limits?id=web&key={export['key']}")[1])
        assert (of_one["key"]["total"], sum(point["count"] for point in of_one["series"])) == (3, 3)
        assert 'href="/limits?id=web"' in ask("/limits")[1]
        page = ask(f"/limits?id=web&by=held&key={export['key']}")[1]
        assert page.count(export["key"]) >= 2
        assert "The last hour of" in page


def test_what_nobody_knows_is_said(redis: Redis, redis_server: EmbeddedRedis, tmp_path: Path) -> None:
    """An unknown namespace, order or key; and a key that would be a tag is text."""
    for namespace in ("earlier", "n"):
        Limiter(redis, namespace=namespace, usage_keep="1d").acquire(EVIL, "5/minute")
    with serving(write_config(tmp_path, redis_server.url)) as ask:
        told = json.loads(ask("/api/v1/limits")[1])["namespaces"]
        assert [each["namespace"] for each in told] == ["n", "earlier"], "the last used first"
        assert ask("/limits?id=other")[0] == 404
        assert ask("/limits?id=n&by=size")[0] == ask("/api/v1/limits?id=n&by=size")[0] == 422
        status, page, _ = ask("/limits?id=n")
        assert status == 200
        assert EVIL not in page
        assert json.loads(ask("/api/v1/limits?id=n&key=unknown")[1])["key"]["total"] == 0
