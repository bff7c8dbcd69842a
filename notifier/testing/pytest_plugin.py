"""The fixtures that pytest finds where this package is installed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from notifier.testing.embedded import EmbeddedRedis
    from notifier.testing.fake import FakeNotifier

pytest.register_assert_rewrite("notifier.simulators.provider_contract")


@pytest.fixture
def notifier_outbox(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNotifier]:
    """A FakeNotifier. While the test runs, `Notifier.from_config` returns it to the code under test.

    `AsyncNotifier.from_config` returns its `aio`. The fake uses the configuration that the code under test names.
    """
    from notifier import AsyncNotifier, Notifier  # noqa: PLC0415 - loaded by the tests that use it
    from notifier.settings import load_settings  # noqa: PLC0415
    from notifier.testing.fake import FakeNotifier  # noqa: PLC0415

    fake = FakeNotifier(_djangos_config())

    def take(
        path: str | Path | None = None,
        environ: Mapping[str, str] = os.environ,
        *,
        follow: bool = True,  # noqa: ARG001
    ) -> FakeNotifier:  # as `from_config`
        named = path or environ.get("NOTIFIER_CONFIG")
        if named and not fake.accepted:
            fake._use(load_settings(named, {}))  # noqa: SLF001 - as `LiveSettings` does
        return fake

    monkeypatch.setattr(Notifier, "from_config", take)
    monkeypatch.setattr(AsyncNotifier, "from_config", lambda *args, **options: take(*args, **options).aio)
    _forget_djangos()
    yield fake
    _forget_djangos()


def _djangos_config() -> Path | None:
    """Return NOTIFIER_CONFIG of Django's settings; None lets `Notifier` find the configuration."""
    conf = sys.modules.get("django.conf")
    if conf is None or not conf.settings.configured:
        return None
    named = getattr(conf.settings, "NOTIFIER_CONFIG", None)
    return None if named is None else Path(named)


def _forget_djangos() -> None:
    # The Django app caches its Notifier beyond a test. If no test has loaded the app, it has none.
    if (sending := sys.modules.get("notifier.django.sending")) is not None:
        sending.get_notifier.cache_clear()


@pytest.fixture(scope="session")
def _notifier_redis_server() -> Iterator[EmbeddedRedis]:
    from notifier.testing.embedded import EmbeddedRedis  # noqa: PLC0415 - as above

    with EmbeddedRedis() as server:
        yield server


@pytest.fixture
def notifier_redis(_notifier_redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A client of an empty embedded Redis. While the test runs, NOTIFIER_REDIS_URL is its URL."""
    from redis import Redis  # noqa: PLC0415 - as above

    monkeypatch.setenv("NOTIFIER_REDIS_URL", _notifier_redis_server.url)
    client = Redis.from_url(_notifier_redis_server.url)
    client.flushdb()
    yield client
    client.close()
