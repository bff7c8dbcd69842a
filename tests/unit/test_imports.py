"""What is loaded with what: a program pays at its start for what it uses, and a driver is loaded by its first use."""

import ast
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from notifier.settings import parse_settings
from notifier.simulators.certificates import make_apns_key
from notifier.simulators.fcm import make_service_account

ROOT = Path(__file__).parents[2]
LAZY = ["notifier", "notifier.settings", "notifier.limiter", "notifier.testing", "workers"]
DRIVERS = {
    "aiohttp", "apns2", "django", "fastapi", "flask", "google", "h2", "hyper", "jwt", "prometheus_client", "py_vapid",
    "pyfcm", "pywebpush", "requests", "starlette", "typer", "uvicorn",
}  # fmt: skip
REDIS = "import redis.asyncio, redis.sentinel; "


def loaded(statement: str, *, before: str = "") -> set[str]:
    """The packages of others that a fresh Python has loaded after a statement, without those of `before`."""
    code = (
        "import sys\n"
        f"{before}\n"
        "known = set(sys.modules)\n"
        f"{statement}\n"
        "found = {name.partition('.')[0] for name in set(sys.modules) - known}\n"
        "print(*found - sys.stdlib_module_names - {'notifier', 'workers'})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    return {name for name in done.stdout.split() if not name.startswith(("_", "cython_runtime"))}


def test_a_bare_import_loads_nothing_of_others() -> None:
    """Neither package, nor the plugin that pytest loads wherever this is installed, brings a package of others."""
    assert loaded("import notifier, workers, notifier.testing.pytest_plugin", before="import pytest") == set()


def test_a_notification_needs_no_redis() -> None:
    """What describes and checks a notification loads the zones' data, and nothing else of others."""
    assert loaded("from notifier import Notification, Device, InvalidNotificationError, Policy") <= {"tzdata"}


def test_a_producer_loads_redis_alone() -> None:
    """What a web process imports to send loads redis: neither YAML nor pydantic, no logging, no driver."""
    names = "Notifier, AsyncNotifier, Limiter, Permit, Held, Gone, Status"
    assert loaded(f"from notifier import {names}", before=REDIS) <= {"tzdata"}


def test_a_worker_loads_no_driver() -> None:
    """The worker class brings RQ, logging and the settings; a driver comes with the platform that needs it."""
    assert loaded("from workers import PushWorker") & DRIVERS == set()


@pytest.mark.parametrize(
    ("platform", "foreign"),
    [
        ("apns", {"aiohttp", "google", "pyfcm", "py_vapid", "pywebpush", "requests"}),
        ("fcm", {"h2", "py_vapid", "pywebpush"}),
        ("console", DRIVERS),
    ],
)
def test_a_platform_loads_its_own_driver(tmp_path: Path, platform: str, foreign: set[str]) -> None:
    """A worker loads the drivers of the platforms that are configured, and of no other."""
    key, _ = make_apns_key(tmp_path)
    account = make_service_account(tmp_path, "https://127.0.0.1:1/token", "demo")
    settings = {
        "apns": {"client": "h2", "team_id": "TEAM123456", "key_id": "ABCDE12345", "key_file": str(key),
                 "topic": "com.example.app"},
        "fcm": {"client": "pyfcm", "service_account": str(account)},
        "console": {"client": "console"},
    }  # fmt: skip
    providers = {"apns" if platform == "console" else platform: settings[platform]}
    text = json.dumps({"providers": providers})
    assert parse_settings(text)
    build = f"""
from workers.__main__ import main
from workers.configuration.wiring import build_providers
from notifier.settings import parse_settings
assert build_providers(parse_settings({text!r}))
"""
    assert loaded(build) & foreign == set()


@pytest.mark.parametrize("package", LAZY)
def test_what_a_type_checker_sees_is_there(package: str) -> None:
    """A lazy package offers by name what its imports for type checkers and `__all__` say, from the same modules."""
    module = importlib.import_module(package)
    tree = ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8"))
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert set(seen) == set(module.__all__) <= set(dir(module))
    # mypy reads one that is computed as empty, and `from notifier import *` gives it no name.
    assert "__all__" not in {name.id for name in ast.walk(tree) if isinstance(name, ast.Name)}
    for name, home in seen.items():
        assert getattr(module, name) is getattr(importlib.import_module(str(home)), name)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'nothing'"):
        _ = module.nothing
