"""The applications of `serve_granian.py` under the names by which Granian's workers import them."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from workloads import NAMES, STREAM, WORKLOADS

_BINARY = [("content-type", "application/octet-stream")]
_EVENTS = [("content-type", "text/event-stream")]

Application = Callable[[Any, Any], Awaitable[None]]
"""Takes the scope of a request, and the protocol that reads it and responds."""


def make_app(name: str) -> Application:
    """Make the application; any GET shows that it is ready."""
    if name == STREAM:
        return _stream
    workload = WORKLOADS[name]
    function = workload.function()

    async def answer(scope: Any, protocol: Any) -> None:
        if scope.method == "GET":
            protocol.response_empty(200, [])
            return
        body = await protocol()
        if workload.datatype == "BYTES":
            texts = function(np.array([[text.encode() for text in json.loads(body)]], dtype=np.object_))
            reply = json.dumps([text.decode() for text in texts[0]]).encode()
        else:
            reply = function(np.frombuffer(body, np.float32).reshape(1, *workload.shape)).tobytes()
        protocol.response_bytes(200, _BINARY, reply)

    return answer


async def _stream(scope: Any, protocol: Any) -> None:
    if scope.method == "GET":
        protocol.response_empty(200, [])
        return
    count = json.loads(await protocol())["count"]
    transport = protocol.response_stream(200, _EVENTS)
    for number in range(count):
        await transport.send_str(f"data: {number}\n\n")


def __getattr__(name: str) -> Application:
    """Make the application of a workload when Granian asks for it."""
    if name in NAMES:
        return make_app(name)
    raise AttributeError(name)
