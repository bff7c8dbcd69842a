"""What all tests share: a Redis of their own, and how Hypothesis runs."""

import asyncio
import gc
import importlib
import inspect
import itertools
import logging
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import structlog.dev
from hypothesis import HealthCheck, Phase, settings
from redis import Redis

from notifier import log
from notifier.testing.embedded import EmbeddedRedis
from tests.harness import processes, warm
from tests.harness.deal import deal
from tests.harness.patient_loop import PatientLoop

# What is imported and collected stays: nothing of it is garbage, and to look through it all at each collection took a
# tenth of the tests' time.
gc.disable()

# What the caller's shell configures is not the tests' affair, least of all which Redis; these are for them.
TOLD = {"NOTIFIER_REDIS_SERVER", "NOTIFIER_PEERS", "NOTIFIER_INDEPENDENT_APNS"}
for name in [name for name in os.environ if name.startswith("NOTIFIER_") and name not in TOLD]:
    del os.environ[name]

# To rewrite the assertions of all files takes each process of pytest a quarter of a minute, unless the last one's are
# kept. So they are, whatever the caller's shell says.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Rich takes most of a second of CPU for a traceback that nobody reads.
structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback

# What needs apns2 runs in its environment: make test-apns2. There its h2 has to be made importable before all else.
collect_ignore = ["extra_apns2"]
if find_spec("apns2"):
    importlib.import_module("notifier.providers.apns.pyapns2.compat")
    collect_ignore = []

# The processes of tests.harness.fleet begin warm here; those of the benchmarks do not.
processes.launch = warm.launch

# What the models assert is shown as well as what the tests do.
pytest.register_assert_rewrite("tests.property.clock_model", "tests.property.model", "tests.property.world")

# "ci", the default, tries the same examples each time, and shows the first that fails: to look for the shortest takes
# minutes. "thorough" tries more and looks for the shortest; "explore" does so with new ones each time.
# `redis` is shared by the examples of one test: each flushes it for itself.
settings.register_profile(
    "ci",
    derandomize=True,
    print_blob=True,
    report_multiple_bugs=False,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
# For tests/harness/mutants.py: that a test fails is enough, by which example does not matter.
settings.register_profile("mutants", settings.get_profile("ci"))
# For other Pythons, `make test-python`: a tenth of the examples shows what a Python does otherwise.
settings.register_profile("few", settings.get_profile("ci"), max_examples=10)
settings.register_profile("thorough", settings.get_profile("ci"), phases=list(Phase))
settings.register_profile("explore", settings.get_profile("thorough"), derandomize=False)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Order them for the processes of xdist, of which each does the same."""
    if processes_of_xdist := os.environ.get("PYTEST_XDIST_WORKER_COUNT"):
        items[:] = deal(items, lambda item: item.nodeid.partition("::")[0], int(processes_of_xdist))


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop() -> None:
    """Look for garbage from now on, in what the tests make."""
    gc.collect()
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is written as a coroutine, each on an event loop of its own."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    given = pyfuncitem.funcargs
    asyncio.run(pyfuncitem.obj(**{name: given[name] for name in inspect.signature(pyfuncitem.obj).parameters}))
    return True


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown() -> None:
    """Leave logging as it was found: at another level the next test, whichever that is, does not see what it awaits."""
    logging.getLogger("rq.worker").setLevel(logging.NOTSET)  # RQ sets it, whoever configured the rest
    if not structlog.is_configured():
        return
    structlog.reset_defaults()
    root = logging.getLogger()
    root.handlers[:] = [handler for handler in root.handlers if not isinstance(handler, log._Handler)]
    root.setLevel(logging.WARNING)
    for name in log.QUIET:
        logging.getLogger(name).setLevel(logging.NOTSET)


@pytest.fixture(autouse=True)
def _patient(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no timeout depend on what else the machine does, where all that is waited for is in the loop of the test."""
    if request.path.relative_to(Path(__file__).parent).parts[0] in {"contract", "unit"}:
        monkeypatch.setattr(asyncio.events, "new_event_loop", PatientLoop)


@pytest.fixture
def slow_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let two seconds lie between any two looks at a configuration, so that its second look finds a file settled."""
    monkeypatch.setattr("notifier.store.followed.time.monotonic_ns", itertools.count(step=2_000_000_000).__next__)


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """One redis-server for all tests; `redis_server.url` leads to it. A missing one fails, never skips."""
    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def redis(redis_server: EmbeddedRedis) -> Iterator[Redis]:
    """A client of the tests' server, whose database is empty."""
    client: Redis = Redis.from_url(redis_server.url)
    client.flushdb()
    yield client
    client.close()
