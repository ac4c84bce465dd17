"""The access log: one line for each request."""

from __future__ import annotations

import logging

from pytriton.gateway.request import Request, Scope

LOGGER = logging.getLogger("pytriton.gateway.access")

_MAX_PATH = 500


def log_access(request: Request, scope: Scope, status: int, duration_s: float) -> None:
    """Logs a completed request.

    Args:
        request: The request.
        scope: The ASGI scope.
        status: The status of its response; 0 if there was none because the client disconnected.
        duration_s: How long it took, in seconds.
    """
    if not LOGGER.isEnabledFor(logging.INFO):
        return
    client = (scope.get("client") or ("",))[0]
    path, method = request.path[:_MAX_PATH], scope["method"]
    key = {"api_key": request.key_name} if request.key_name else {}
    LOGGER.info(
        "%s %r from %s%s: status %d after %.1f ms",
        method,
        path,
        client or "a client",
        f" with key {request.key_name!r}" if key else "",
        status,
        duration_s * 1e3,
        extra={
            "method": method,
            "path": path,
            "client": client,
            "status": status,
            "duration_ms": round(duration_s * 1e3, 3),
            **key,
        },
    )
