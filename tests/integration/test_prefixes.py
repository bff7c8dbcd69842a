"""Two products in one Redis database: each has a prefix for its keys, and one for RQ's."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
from redis import Redis
from rq.version import VERSION

from notifier.limiter import Limiter
from notifier.scripts.keys import CATALOGUE, Prefixes, in_script, under
from notifier.testing.embedded import EmbeddedRedis
from tests.harness import warm
from tests.harness.support import CONSOLE, clean_environ, client_of, write_config

ROOT = Path(__file__).parents[2]
DEVICE = f"apns:{'ab' * 32}"
HELD = {"user": {"windows": ["1 / 1h"]}}
ON_RQ_3 = pytest.mark.skipif(VERSION.startswith("2."), reason="RQ 2 has no prefix of its own")


# RQ reads its prefix when it is imported, so each process imports it: one for what a product does in one go.
COMMANDS = """
import json, sys
from notifier.cli.__main__ import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["notifier", *words]
    try:
        main()
    except SystemExit as ended:
        if ended.code:
            raise
    print("---", flush=True)
"""


class Product:
    """One product: its configuration, and the environment of its processes."""

    def __init__(self, folder: Path, url: str, name: str) -> None:
        self.config = write_config(folder / name, url, CONSOLE, **HELD)
        text = self.config.read_text(encoding="utf-8")
        self.config.write_text(text.replace("redis:\n", f"redis:\n  prefix: {name}\n"), encoding="utf-8")
        self._environ = clean_environ(NOTIFIER_CONFIG=str(self.config), RQ_KEY_PREFIX=f"{name}-rq")

    def run(self, *args: str, status: int = 0) -> str:
        done = warm.run([sys.executable, *args], env=self._environ, anew=True)
        assert done.returncode == status, done.stderr
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr

    def cli(self, *commands: list[str]) -> list[str]:
        """What each of these commands prints."""
        return self.run("-c", COMMANDS, json.dumps(commands)).split("---\n")


def standing(printed: str) -> tuple[int, int, dict[str, int]]:
    """By its stats: how many are queued and wait, and how many ended how."""
    stats = json.loads(printed)
    lane = stats["now"]["lanes"]["default"]
    return lane["queued"], lane["waiting"], {one["outcome"]: one["count"] for one in stats["outcomes"]}


@ON_RQ_3
def test_neither_sees_the_other(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """Each sends its own alone and is limited by its own alone; no key of one has a name of the other."""
    stats = ["stats", "--json"]
    with client_of(write_config(tmp_path, redis_server.url)) as redis:
        redis.flushdb()
        shop, news = (Product(tmp_path, redis_server.url, name) for name in ("shop", "news"))
        for product in (shop, news):
            product.cli(*(["send", "42", "--device", DEVICE, "--title", title] for title in ("first", "second")))
        for product, queued_of_news in ((shop, 2), (news, 0)):
            worked, stood, audited, _ = product.cli(["worker", "--burst"], stats, ["audit"])
            assert "title='first'" in worked
            assert standing(stood) == (0, 1, {"delivered": 1})
            assert standing(news.cli(stats)[0])[0] == queued_of_news
            assert "1 job, 1 user: all right" in audited
        names = {key.partition(b":")[0] for key in redis.scan_iter(count=1000)}
        assert names == {b"shop", b"news", b"shop-rq", b"news-rq"}


def test_one_process_has_one_prefix(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """A second configuration with another prefix is refused in words: its keys could not be told apart."""
    files = [str(Product(tmp_path, redis_server.url, name).config) for name in ("shop", "news")]
    code = f"""
from notifier import Notifier, SettingsError
first, second = {files!r}
Notifier.from_config(first).close()
Notifier.from_config(first).close()
try:
    Notifier.from_config(second)
except SettingsError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=clean_environ())
    assert "redis.prefix is 'news', but this process already uses 'shop'" in done.stdout


def test_rq_2_refuses_a_prefix(tmp_path: Path, redis_server: EmbeddedRedis) -> None:
    """RQ 2 would look for jobs where no producer puts them: its worker does not start, and says what to do."""
    if not VERSION.startswith("2."):
        pytest.skip("RQ 3 has a prefix")
    product = Product(tmp_path, redis_server.url, "shop")
    assert "install RQ 3" in product.run("-m", "workers", "--burst", status=4)


def test_a_name_that_nobody_declared_is_no_key() -> None:
    """A script that spells an unknown name is not loaded."""
    assert in_script("redis.call('GET', '@seq')").endswith("redis.call('GET', OURS .. 'seq')")
    with pytest.raises(KeyError, match="leasses"):
        in_script("redis.call('ZSCORE', '@leasses', id)")


@pytest.mark.parametrize("name", CATALOGUE)
def test_each_name_is_used(name: str) -> None:
    """The catalogue lists no key that is gone."""
    scripts = (path.read_text(encoding="utf-8") for path in ROOT.glob("notifier/**/*.lua"))
    modules = (
        text
        for path in [*ROOT.glob("notifier/**/*.py"), *ROOT.glob("workers/**/*.py")]
        if path.name != "keys.py" and "_key(" in (text := path.read_text(encoding="utf-8"))
    )
    assert any(f"'@{name}" in text for text in scripts) or any(f'"{name}"' in text for text in modules)


@pytest.mark.parametrize("prefix", [None, "shop"])
def test_a_limiter_keeps_its_prefix(redis: Redis, prefix: str | None) -> None:
    """All its calls are about the same keys, whichever prefix its process takes up before it is made, or after."""
    of_notifier = Prefixes("news", "rq")
    make = partial(Limiter, redis, namespace="web", usage_keep="1d", **({"prefix": prefix} if prefix else {}))
    made = [make()]
    with under(of_notifier):
        made.append(make())
        first, second = made
        permit = first.check("ada", "2/minute")
        assert second.acquire("ada", "2/minute")
        assert not first.acquire("ada", "2/minute")
        assert first.count("ada", last="1m") == second.usage("ada").total == 2
        assert second.refund(permit)
        first.block("ada", "15m")
    assert not second.acquire("ada", "2/minute")
    assert {key.partition(b":")[0].decode() for key in redis.scan_iter()} == {prefix or "notifier"}
