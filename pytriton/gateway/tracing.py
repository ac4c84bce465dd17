"""Creates spans for the gateway's requests, by OpenTelemetry's own middleware."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from pytriton.gateway.request import Scope
from pytriton.proxy.telemetry.tracer import current_tracer

LOGGER = logging.getLogger(__name__)

Application = Callable[[Scope, Any, Any], Awaitable[None]]

_UNTRACED = "/health/"
_CONTEXT = frozenset({b"traceparent", b"tracestate", b"baggage"})
_READERS = (
    "opentelemetry.trace.propagation.tracecontext",
    "opentelemetry.trace.span",
    "opentelemetry.baggage.propagation",
)


class TracedApplication:
    """An ASGI application whose requests have spans once this process uses OpenTelemetry.

    Args:
        app: The application.
        continue_traces: Whether requests continue the traces of clients; otherwise, each starts its own.
    """

    def __init__(self, app: Application, continue_traces: bool) -> None:
        self._app = app
        self._continue_traces = continue_traces
        self._is_decided = False

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        """Handles one request; see the ASGI specification."""
        if not self._is_decided and current_tracer() is not None:
            self._is_decided = True
            self._app = _traced(self._app)
        if not self._continue_traces:
            # Not in a copy: the protocol finds the task to cancel there when the client disconnects.
            scope["headers"] = [each for each in scope["headers"] if each[0].lower() not in _CONTEXT]
        await self._app(scope, receive, send)


def _traced(app: Application) -> Application:
    try:
        from opentelemetry.instrumentation.asgi import OpenTelemetryMiddleware
    except ImportError as error:
        LOGGER.warning("The gateway's requests have no spans (%s): pip install 'pytriton[telemetry]'.", error)
        return app
    for name in _READERS:  # of clients' headers, of which each malformed entry would be a line in the log
        if logging.getLogger(name).level == logging.NOTSET:
            logging.getLogger(name).setLevel(logging.ERROR)
    tracer: Any = current_tracer()
    traced: Application = OpenTelemetryMiddleware(
        app, excluded_urls=_UNTRACED, tracer=tracer, exclude_spans=["receive", "send"]
    )
    return traced
