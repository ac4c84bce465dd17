"""Measures how long payloads take: over HTTP, over gRPC, through shared memory, and between the server and a worker.

The models return their input: one is a Python function; the other, ``baseline``, is a C++ backend in the same server,
which responds immediately.
"""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import time
from collections.abc import Callable, Iterator
from multiprocessing.shared_memory import SharedMemory
from typing import Any

import numpy as np
from load import LoadError
from service import Service

from pytriton.client import ModelClient

_MODELS = {"": "tiny", "bare_": "baseline"}
"""Names of models by the prefix of their results."""

_STAGES = ("compute_input", "compute_output")
_ROUNDS_S = 0.4
_MIN_ROUNDS, _MAX_ROUNDS = 3, 300
_LONG_S = 5.0
_TIMEOUT_S = 300.0


class _Http:
    """A connection that copies no more than the kernel does."""

    def __init__(self, port: int, size: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = memoryview(bytearray(size + 65_536))

    def post(self, path: str, header: dict[str, Any], data: memoryview | None = None) -> memoryview:
        """Send a KServe request; returns the response's body, which is valid until the next one."""
        text = json.dumps(header).encode()
        size = len(text) + (0 if data is None else len(data))
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n"
        if data is not None:
            head += f"Inference-Header-Content-Length: {len(text)}\r\n"
        self._socket.sendall(head.encode() + b"\r\n" + text)
        if data is not None:
            self._socket.sendall(data)
        return self._receive(path)

    def get(self, path: str) -> Any:
        """Request JSON."""
        self._socket.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        return json.loads(bytes(self._receive(path)))

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _receive(self, path: str) -> memoryview:
        buffer, count, body = self._buffer, 0, -1
        while body < 0:
            count += self._receive_into(buffer[count:])
            body = bytes(buffer[: min(count, 4096)]).find(b"\r\n\r\n")
        head = bytes(buffer[:body]).decode().lower()
        body += 4
        end = body + int(head.partition("\r\ncontent-length:")[2].partition("\r\n")[0])
        while count < end:
            count += self._receive_into(buffer[count:end])
        if " 200 " not in head.partition("\r\n")[0]:
            raise LoadError(f"{path}: {head}\n{bytes(buffer[body:end][:500])!r}")
        return buffer[body:end]

    def _receive_into(self, buffer: memoryview) -> int:
        count = self._socket.recv_into(buffer)
        if not count:
            raise LoadError("the server closed the connection")
        return count


def measure_payload(service: Service, size: int) -> dict[str, float]:
    """Measure requests with a payload of a size there and back.

    Args:
        service: has the models.
        size: bytes of the payload.

    Returns:
        Milliseconds by transport, for both models: ``http_ms``, ``bare_http_ms`` and so on; the time from the server
        to the worker and back by Triton's statistics, ``way_ms``; two memcpys of that size, ``copies_ms``; and the
        ratio of these two.

    Raises:
        LoadError: if a request fails, or a response is not what was sent.
    """
    payload = np.resize(np.arange(251, dtype=np.uint8), size)
    found: dict[str, float] = {}
    with contextlib.closing(_Http(service.http_port, size)) as http:
        found |= _compare("http_ms", {name: _over_http(http, model, payload) for name, model in _MODELS.items()})
        with contextlib.ExitStack() as clients:
            sends = {
                name: _over_grpc(clients.enter_context(_grpc_client(service.grpc_port, model)), payload)
                for name, model in _MODELS.items()
            }
            found |= _compare("grpc_ms", sends)
        with _regions(http, payload) as target:
            sends = {name: _through_memory(http, model, target) for name, model in _MODELS.items()}
            sends["two_copies_"] = _two_copies(payload)
            for send in [*sends.values()] * 2:  # memory that was never written to takes long
                send()
            before = _statistics(http)
            found |= _compare("shm_ms", sends)
            after = _statistics(http)
    found["copies_ms"] = found.pop("two_copies_shm_ms")
    found["way_ms"] = sum(
        after["inference_stats"][stage]["ns"] - before["inference_stats"][stage]["ns"] for stage in _STAGES
    ) / (1e6 * (after["inference_count"] - before["inference_count"]))
    return found | {"ratio": found["way_ms"] / found["copies_ms"]}


def _compare(key: str, sends: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Measure in turns; the first ones, which do not count unless they are long, determine how many there are."""
    taken: dict[str, list[float]] = {name: [] for name in sends}

    def take_turns() -> None:
        for name, send in sends.items():
            started = time.perf_counter()
            send()
            taken[name].append((time.perf_counter() - started) * 1e3)

    take_turns()
    first_s = sum(times[0] for times in taken.values()) / 1e3
    if first_s < _LONG_S:
        taken = {name: [] for name in sends}
        for _ in range(min(max(int(_ROUNDS_S / first_s), _MIN_ROUNDS), _MAX_ROUNDS)):
            take_turns()
    return {f"{name}{key}": statistics.median(times) for name, times in taken.items()}


def _input(size: int, **parameters: object) -> dict[str, object]:
    return {"name": "x", "shape": [size], "datatype": "UINT8", "parameters": parameters}


def _over_http(http: _Http, model: str, payload: Any) -> Callable[[], object]:
    output = {"name": "y", "parameters": {"binary_data": True}}
    request = {"inputs": [_input(len(payload), binary_data_size=len(payload))], "outputs": [output]}
    _check(http.post(f"/v2/models/{model}/infer", request, memoryview(payload))[-len(payload) :], payload)
    return lambda: http.post(f"/v2/models/{model}/infer", request, memoryview(payload))


def _grpc_client(port: int, model: str) -> ModelClient:
    return ModelClient(f"grpc://127.0.0.1:{port}", model, inference_timeout_s=_TIMEOUT_S)


def _over_grpc(client: ModelClient, payload: Any) -> Callable[[], object]:
    return lambda: client.infer_sample(payload)


def _through_memory(http: _Http, model: str, target: memoryview) -> Callable[[], object]:
    size = len(target)
    place = {"shared_memory_byte_size": size}
    output = {"name": "y", "parameters": {"shared_memory_region": "target", **place}}
    request = {"inputs": [_input(size, shared_memory_region="source", **place)], "outputs": [output]}
    target[-1] = 255
    http.post(f"/v2/models/{model}/infer", request)
    if target[-1] == 255:
        raise LoadError(f"model {model!r} left its output's region as it was")
    return lambda: http.post(f"/v2/models/{model}/infer", request)


def _two_copies(payload: Any) -> Callable[[], object]:
    buffers = [np.zeros_like(payload) for _ in range(2)]

    def copy() -> None:
        np.copyto(buffers[0], payload)
        np.copyto(buffers[1], buffers[0])

    return copy


@contextlib.contextmanager
def _regions(http: _Http, payload: Any) -> Iterator[memoryview]:
    """Register a region with the payload, and one of the same size for what comes back."""
    size = len(payload)
    path = "/v2/systemsharedmemory"
    memories = [SharedMemory(create=True, size=size) for _ in range(2)]
    try:
        for name, memory in zip(("source", "target"), memories, strict=True):
            assert memory.buf is not None
            memory.buf[:size] = memoryview(payload)
            region = {"key": f"/{memory.name}", "offset": 0, "byte_size": size}
            http.post(f"{path}/region/{name}/register", region)
        buffer = memories[1].buf
        assert buffer is not None
        target = buffer[:size]
        yield target
        target.release()
        http.post(f"{path}/unregister", {})
    finally:
        for memory in memories:
            with contextlib.suppress(BufferError):
                memory.close()
            memory.unlink()


def _check(received: memoryview, payload: Any) -> None:
    if not np.array_equal(np.frombuffer(received, np.uint8), payload):
        raise LoadError("a response is not what was sent")


def _statistics(http: _Http) -> Any:
    return http.get("/v2/models/tiny/stats")["model_stats"][0]
