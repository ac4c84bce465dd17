"""The spans of a batch that an inference callable serves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytriton.proxy.telemetry.propagation import context_of, mark_failed
from pytriton.proxy.telemetry.tracer import current_tracer

if TYPE_CHECKING:
    from opentelemetry.trace import Span


class BatchSpans:
    """The spans of a batch: one for each traced request, and one for the call of the inference callable.

    A request's span is a child of Triton's span of the model. The call's span is a child of the first one, with links
    to all: a span belongs to only one trace.

    Args:
        spans: The span of each request; None for those that are not traced.
        call: The span of the call.
    """

    __slots__ = ("_counts", "_token", "call", "requests")

    def __init__(self, spans: list[Span | None], call: Span) -> None:
        self.requests = spans
        self.call = call
        self._counts = [0] * len(spans)
        self._token: Any = None

    def enter(self) -> None:
        """Makes the call's span the current one of this thread or task."""
        from opentelemetry.context import attach
        from opentelemetry.trace import set_span_in_context

        self._token = attach(set_span_in_context(self.call))

    def exit(self) -> None:
        """Undoes `enter`, in the same thread or task."""
        from opentelemetry.context import detach

        token, self._token = self._token, None
        if token is not None:
            detach(token)

    def fail(self, error: BaseException) -> None:
        """Notes an error that the callable has raised."""
        mark_failed(self.call, error)
        for request in range(len(self.requests)):
            self.fail_request(request, error)

    def fail_request(self, request: int, error: BaseException) -> None:
        """Notes the error of one request."""
        span = self.requests[request]
        if span is not None and span.is_recording():
            mark_failed(span, error)

    def responded(self, request: int, has_data: bool, final: bool) -> None:
        """Counts a response, of which the first one is an event; ends the request's span with the last one."""
        span = self.requests[request]
        if span is None:
            return
        if has_data:
            self._counts[request] += 1
            if self._counts[request] == 1 and not final:
                span.add_event("first response")
        if final:
            span.set_attribute("pytriton.response.count", self._counts[request])
            span.end()

    def end_call(self) -> None:
        """Ends the call's span; further calls have no effect."""
        if self.call.is_recording():
            self.call.end()

    def end(self) -> None:
        """Ends all spans that have not ended."""
        self.end_call()
        for span in self.requests:
            if span is not None and span.is_recording():
                span.end()


def start_spans(
    contexts: Sequence[str], request_ids: Sequence[str], model: str, version: int, rows: Sequence[int]
) -> BatchSpans | None:
    """Starts the spans of a batch; returns None if no request is traced, or nothing here uses OpenTelemetry.

    Args:
        contexts: The trace context of each request, as JSON; empty for those that are not traced.
        request_ids: The id of each request; empty for those that have none.
        model: The model's name.
        version: Its version.
        rows: The number of rows of each request; empty if the model does not batch.
    """
    tracer = current_tracer()
    parents = [context_of(context) if context else None for context in contexts]
    if tracer is None or not any(parents):
        return None
    from opentelemetry.trace import Link, SpanKind, set_span_in_context

    of_model = {"triton.model_name": model, "triton.model_version": version}
    spans: list[Span | None] = []
    for number, parent in enumerate(parents):
        if parent is None:
            spans.append(None)
            continue
        attributes: dict[str, Any] = dict(of_model)
        if request_ids[number]:
            attributes["triton.request_id"] = request_ids[number]
        if rows:
            attributes["pytriton.request.rows"] = rows[number]
        spans.append(tracer.start_span(f"request {model}", parent, SpanKind.INTERNAL, attributes))
    traced = [span for span in spans if span is not None]
    first = next((span for span in traced if span.is_recording()), traced[0])
    attributes = {**of_model, "pytriton.batch.requests": len(contexts)}
    if rows:
        attributes["pytriton.batch.rows"] = sum(rows)
    links = [Link(span.get_span_context()) for span in traced]
    call = tracer.start_span(f"call {model}", set_span_in_context(first), SpanKind.INTERNAL, attributes, links)
    for span in traced:
        if span is not first and hasattr(span, "add_link"):  # since 1.23
            span.add_link(call.get_span_context())
    return BatchSpans(spans, call)
