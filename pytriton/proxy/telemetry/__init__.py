"""OpenTelemetry's spans of requests: of inference callables, of their calls of other models, and of clients.

The names are the same as in nvidia-pytriton. OpenTelemetry is imported on first use.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from pytriton.proxy.telemetry.propagation import mark_failed
from pytriton.proxy.telemetry.tracer import (
    build_proxy_tracer_from_triton_config,
    current_tracer,
    get_telemetry_tracer,
    parse_trace_config,
    raise_if_no_telemetry,
    set_telemetry_tracer,
)

if TYPE_CHECKING:
    from opentelemetry.trace import Span

__all__ = [
    "build_proxy_tracer_from_triton_config",
    "end_span",
    "get_span_dict",
    "get_telemetry_tracer",
    "parse_trace_config",
    "raise_if_no_telemetry",
    "set_telemetry_tracer",
    "start_span_from_remote",
    "start_span_from_span",
    "traced_span",
]


def start_span_from_span(span: Span | None, name: str) -> Span | None:
    """Starts a child of a span; its caller ends it.

    Args:
        span: The parent.
        name: The child's name.

    Returns:
        The child; None if there is no parent, or nothing in this process uses OpenTelemetry.
    """
    tracer = current_tracer()
    if span is None or tracer is None:
        return None
    from opentelemetry.trace import set_span_in_context

    return tracer.start_span(name, set_span_in_context(span))


def get_span_dict(span: Span | None) -> dict[str, int] | None:
    """Returns the ids of a span, ``trace_id`` and ``span_id``, for `start_span_from_remote` in another process."""
    if span is None:
        return None
    context = span.get_span_context()
    return {"trace_id": context.trace_id, "span_id": context.span_id}


def start_span_from_remote(span_dict: Mapping[str, int] | None, name: str) -> Span | None:
    """Starts a child of a span of another process; its caller ends it.

    Args:
        span_dict: The result of `get_span_dict` there.
        name: The child's name.

    Returns:
        The child; None if there is no parent, or nothing in this process uses OpenTelemetry.
    """
    if span_dict is None:
        return None
    from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

    context = SpanContext(span_dict["trace_id"], span_dict["span_id"], True, TraceFlags(TraceFlags.SAMPLED))
    return start_span_from_span(NonRecordingSpan(context), name)


def end_span(span: Span | None, error: BaseException | str | None = None) -> None:
    """Ends a span, with the status of a failure if an error is given."""
    if span is None:
        return
    if error is not None:
        mark_failed(span, error if isinstance(error, BaseException) else RuntimeError(error))
    span.end()


@contextlib.contextmanager
def traced_span(request: Any, span_name: str, **kwargs: Any) -> Iterator[Span | None]:
    """Opens a child of a request's span for a block; does nothing if the request is not traced.

    The child is the current span in the block. An error that leaves the block is recorded.

    Args:
        request: A request passed to an inference callable.
        span_name: The child's name.
        **kwargs: Further arguments of OpenTelemetry's ``Tracer.start_as_current_span``.

    Yields:
        The child, or None.

    Examples:
        >>> def infer(requests):
        ...     for request in requests:
        ...         with traced_span(request, "tokenize"):
        ...             ...
    """
    parent = getattr(request, "span", None)
    tracer = current_tracer()
    if parent is None or tracer is None:
        yield None
        return
    from opentelemetry.trace import set_span_in_context

    with tracer.start_as_current_span(span_name, set_span_in_context(parent), **kwargs) as child:
        yield child
