"""Spans of OpenTelemetry, by its conventions for messaging: where a notification is enqueued, and for each delivery.

The context of the first travels in the job's meta, under `traceparent` and `tracestate`. A delivery may come hours
later, so it begins a trace of its own, with a link to the first. Nothing is imported before `Spans` is made.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

from notifier.errors import needs_extra
from notifier.notification.json_values import fields_of

if TYPE_CHECKING:
    from notifier.scripts.records import Leased

T = TypeVar("T")
NAME: Final = "push-throttle"
SYSTEM: Final = "push_throttle"
CARRIED: Final = ("traceparent", "tracestate")
MAX_CARRIED: Final = 512  # characters of each, as the W3C says of tracestate
NO_SPAN: Final[AbstractContextManager[Mapping[str, str]]] = nullcontext({})
Operation = Literal["send", "create"]


class Spans:
    """Makes the spans, by the tracer provider of this process."""

    def __init__(self) -> None:
        """Raises SettingsError where OpenTelemetry is not installed."""
        with needs_extra("tracing: opentelemetry", "otel"):
            from opentelemetry import trace  # noqa: PLC0415 - only if tracing is on
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator  # noqa: PLC0415
        self._trace = trace
        self._tracer = trace.get_tracer(NAME)
        self._propagator = TraceContextTextMapPropagator()

    @contextmanager
    def produce(self, operation: Operation, category: str) -> Iterator[Mapping[str, str]]:
        """A span in which a notification is made and, with 'send', enqueued. Yields the context for the job's meta."""
        attributes = _attributes(operation, "enqueue" if operation == "send" else "create", category)
        kind, carried = self._trace.SpanKind.PRODUCER, dict[str, str]()
        with self._tracer.start_as_current_span(f"{operation} {category}", kind=kind, attributes=attributes):
            self._propagator.inject(carried)
            yield carried

    async def deliver(
        self,
        leased: Leased,
        meta: bytes | None,
        send: Callable[[], Awaitable[T]],
        tell: Callable[[T], Mapping[str, Any]],
    ) -> T:
        """Await `send` in a span that is linked to where the notification was enqueued.

        meta: of its job. tell: further attributes, of the result; with `error.type` among them it went wrong.
        """
        trace = self._trace
        origin = trace.get_current_span(self._propagator.extract(carried_in(meta))).get_span_context()
        with self._tracer.start_as_current_span(
            f"process {leased.category}",
            context=trace.set_span_in_context(trace.INVALID_SPAN),
            kind=trace.SpanKind.CONSUMER,
            links=[trace.Link(origin)] if origin.is_valid else None,
            attributes=_attributes("process", "deliver", leased.category) | {"messaging.message.id": leased.job_id},
        ) as span:
            result = await send()
            told = tell(result)
            span.set_attributes(told)
            if "error.type" in told:
                span.set_status(trace.StatusCode.ERROR)
            return result


def carried_in(meta: bytes | None) -> dict[str, str]:
    """Return the trace context in a job's meta, from the program that enqueued it."""
    found = fields_of(meta)
    told = {name: found.get(name) for name in CARRIED}
    return {name: value for name, value in told.items() if isinstance(value, str) and len(value) <= MAX_CARRIED}


def _attributes(kind: str, name: str, category: str) -> dict[str, str]:
    return {
        "messaging.system": SYSTEM,
        "messaging.operation.type": kind,
        "messaging.operation.name": name,
        "messaging.destination.name": category,
    }
