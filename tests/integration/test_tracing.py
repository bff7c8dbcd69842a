"""OpenTelemetry, by its real SDK: a span where a notification is enqueued, and one for its delivery, linked."""

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from redis import Redis

from notifier import AsyncNotifier, SettingsError
from notifier.notification.job import read_meta
from notifier.queue.spans import Spans, carried_in
from notifier.settings import load_settings
from notifier.simulators.wire import Reply
from notifier.testing.embedded import EmbeddedRedis
from tests.harness.support import Simulators, fcm, note, notifier, write_config
from workers import PushWorker


@pytest.fixture(scope="session")
def exporter() -> InMemorySpanExporter:
    """What the one provider of this process heard: OpenTelemetry takes no second one."""
    provider, found = TracerProvider(), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(found))
    trace.set_tracer_provider(provider)
    return found


@pytest.fixture
def config(tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis, simulators: Simulators) -> Path:
    assert redis.dbsize() == 0
    return write_config(tmp_path, redis_server.url, simulators.providers(), tracing="opentelemetry")


@pytest.fixture
def spans(exporter: InMemorySpanExporter) -> Iterator[InMemorySpanExporter]:
    exporter.clear()
    yield exporter
    exporter.clear()


def work(redis: Redis, config: Path) -> None:
    """One worker, in this process, until nothing is due."""
    worker = PushWorker(["urgent", "default", "bulk"], connection=redis, settings=load_settings(config, {}))
    worker.work(burst=True, logging_level="CRITICAL")


def told(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def test_enqueue_and_delivery_are_linked(
    config: Path, redis: Redis, simulators: Simulators, spans: InMemorySpanExporter
) -> None:
    """A delivery is a trace of its own, linked to the span in which its notification was enqueued."""
    dead = simulators.answer(fcm("dead"), Reply(404, "UNREGISTERED"))
    with notifier(config) as producer:
        with trace.get_tracer("a web program").start_as_current_span("request") as request:
            good = producer.send(note("ann", "1", fcm("ann"), category="chat"))
        bad = producer.send(note("bob", "1", dead))
        work(redis, config)
    sent, _, _, *delivered = spans.get_finished_spans()
    assert (sent.name, sent.kind) == ("send chat", trace.SpanKind.PRODUCER)
    assert sent.parent.span_id == request.get_span_context().span_id
    assert told(sent) == {
        "messaging.system": "push_throttle",
        "messaging.operation.type": "send",
        "messaging.operation.name": "enqueue",
        "messaging.destination.name": "chat",
    }
    by_job = {told(span)["messaging.message.id"]: span for span in delivered}
    assert set(by_job) == {good, bad}
    span = by_job[good]
    assert (span.name, span.kind, span.parent) == ("process chat", trace.SpanKind.CONSUMER, None)
    assert [link.context.span_id for link in span.links] == [sent.context.span_id]
    assert told(span)["messaging.operation.type"] == "process"
    assert (told(span)["push_throttle.outcome"], told(span)["push_throttle.route"]) == ("delivered", "fcm")
    assert told(span)["http.response.status_code"] == 200
    assert span.status.status_code is trace.StatusCode.UNSET
    failed = by_job[bad]
    assert told(failed)["error.type"] == "UNREGISTERED"
    assert (failed.status.status_code, told(failed)["push_throttle.outcome"]) == (trace.StatusCode.ERROR, "rejected")
    text = "".join(str(told(span)) for span in delivered)
    assert not any(secret in text for secret in ("fcm-registration", "Hello", "ann"))


def test_asyncio_and_many_at_once(config: Path, redis: Redis, spans: InMemorySpanExporter) -> None:
    """AsyncNotifier has the same span; `send_many` makes one for each notification; a plain job has no link."""

    async def send() -> None:
        async with AsyncNotifier.from_config(config, {}) as producer:
            await producer.send(note("ann", "1", fcm("ann")))
            await producer.send_many([note("bob", "1", fcm("bob"))])

    asyncio.run(send())
    work(redis, config)
    names = [(span.name, len(span.links)) for span in spans.get_finished_spans()]
    assert sorted(names) == [("create default", 0), ("process default", 1), ("process default", 1), ("send default", 0)]


@pytest.mark.parametrize(
    "meta", [None, b"", b"[", b"[1]", b'{"traceparent": 1}', b'{"traceparent": "%s"}' % (b"x" * 999)]
)
def test_what_others_wrote_there(meta: bytes | None) -> None:
    """Whatever stands in a meta: it is a context, or there is none."""
    assert carried_in(meta) == {}


def test_off_nothing_is_written_or_needed(tmp_path: Path, redis_server: EmbeddedRedis, redis: Redis) -> None:
    """By default no meta carries a trace, and neither producer nor worker needs OpenTelemetry."""
    config = write_config(tmp_path, redis_server.url)
    with notifier(config) as producer:
        job_id = producer.send(note("ann", "1", fcm("ann")))
    assert set(read_meta(redis.hget(f"rq:job:{job_id}", "meta") or b"")) == {"user", "category"}
    code = (
        "import sys; sys.modules['opentelemetry'] = None; from notifier import Notifier; import workers.push; "
        f"Notifier.from_config({str(config)!r}, {{}})"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_where_it_is_not_installed() -> None:
    """It says which package to install."""
    with patch.dict(sys.modules, {"opentelemetry": None}), pytest.raises(SettingsError, match=r"push-throttle\[otel\]"):
        Spans()
