"""Trace contexts between processes, and the spans of requests that this process sends."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytriton.proxy.telemetry.tracer import current_tracer
from pytriton.proxy.wire.service import TraceActivity
from pytriton.utils.error_text import text_of

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.trace import Span


def context_of(trace_context: str) -> Context | None:
    """Returns the OpenTelemetry context of a trace from Triton's JSON form; None if it is invalid.

    Args:
        trace_context: JSON such as ``{"traceparent": "00-…"}``.
    """
    from opentelemetry.trace import get_current_span
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    try:
        carrier = json.loads(trace_context)
    except ValueError:
        return None
    if not isinstance(carrier, dict):
        return None
    context = TraceContextTextMapPropagator().extract(carrier)
    return context if get_current_span(context).get_span_context().is_valid else None


def headers_of(span: Span) -> dict[str, str]:
    """Returns the headers that carry a span's context: ``traceparent``, and ``tracestate`` if there is any."""
    from opentelemetry.trace import set_span_in_context
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    headers: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(headers, set_span_in_context(span))
    return headers


class RequestSpan:
    """The span of a request that this process sends, from sending it to its last response.

    Args:
        span: OpenTelemetry's span, of kind CLIENT.
    """

    __slots__ = ("_responses", "_span", "_times", "headers")

    def __init__(self, span: Span) -> None:
        self._span = span
        self._responses = 0
        self._times: dict[int, int] = {}
        self.headers = headers_of(span)
        """The trace context that the request carries."""

    @property
    def trace_context(self) -> str:
        """The headers as JSON, in Triton's form."""
        return json.dumps(self.headers) if self.headers else ""

    def sent_to(self, address: str, port: int) -> None:
        """Notes the server of the request; the last call wins."""
        self._span.set_attribute("server.address", address)
        self._span.set_attribute("server.port", port)

    def responded(self, final: bool = False) -> None:
        """Counts a response; the first one is an event, unless it is the only one."""
        self._responses += 1
        if self._responses == 1 and not final:
            self._span.add_event("first response")

    def note_activity(self, activity: int, time_ns: int) -> bool:
        """Notes when the server began or ended a step of the request; adds the steps' spans once it has been released.

        Args:
            activity: A `TraceActivity`.
            time_ns: Its time, on CLOCK_MONOTONIC.

        Returns:
            Whether more activities follow.
        """
        if activity != TraceActivity.RELEASED:
            self._times[activity] = time_ns
            return True
        self._add_step("queue", TraceActivity.QUEUE_START, TraceActivity.COMPUTE_START)
        self._add_step("compute", TraceActivity.COMPUTE_START, TraceActivity.COMPUTE_END)
        return False

    @property
    def is_followed(self) -> bool:
        """Whether the server reports activities of the request."""
        return bool(self._times)

    def _add_step(self, name: str, start: TraceActivity, end: TraceActivity) -> None:
        tracer = current_tracer()
        if tracer is None or start not in self._times or end not in self._times:
            return
        from opentelemetry.trace import set_span_in_context

        offset_ns = time.time_ns() - time.monotonic_ns()
        step = tracer.start_span(name, set_span_in_context(self._span), start_time=self._times[start] + offset_ns)
        step.end(self._times[end] + offset_ns)

    def end(self, error: BaseException | None = None) -> None:
        """Ends the span; further calls have no effect."""
        if not self._span.is_recording():
            return
        if self._responses:
            self._span.set_attribute("pytriton.response.count", self._responses)
        if error is not None:
            mark_failed(self._span, error)
        self._span.end()


def start_request_span(
    model: str, attributes: Mapping[str, Any], parent: str = "", *, may_begin: bool = True
) -> RequestSpan | None:
    """Starts the span of a request to a model; None while nothing in this process uses OpenTelemetry.

    Args:
        model: The model's name.
        attributes: Further attributes, such as ``server.address``.
        parent: The trace context of its parent; that of the current context by default.
        may_begin: Whether a request without a parent begins a trace; otherwise, it has no span.
    """
    tracer = current_tracer()
    if tracer is None:
        return None
    from opentelemetry.trace import SpanKind, get_current_span

    if not (parent or may_begin or get_current_span().get_span_context().is_valid):
        return None
    span = tracer.start_span(
        f"infer {model}",
        context_of(parent) if parent else None,
        SpanKind.CLIENT,
        {"triton.model_name": model, **attributes},
    )
    return RequestSpan(span)


def mark_failed(span: Span, error: BaseException) -> None:
    """Gives a span the status and the attributes of a failure."""
    from opentelemetry.trace import Status, StatusCode

    with contextlib.suppress(Exception):  # of an exception that cannot be shown
        kind = type(error)
        span.set_attribute("error.type", f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins."))
        span.record_exception(error)
    span.set_status(Status(StatusCode.ERROR, text_of(error)))
