"""Receives streams over gRPC and counts the responses; prints the results as JSON.

It speaks just enough HTTP/2 to open gRPC streams, and decodes messages only as far as it must, so that it needs far
less processor time than the servers that it measures: `client_cpu` says how much. It runs with any Python.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import statistics
import struct
import sys
import time
from collections.abc import Callable, Iterator

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_ACK, _END_STREAM, _END_HEADERS = 1, 1, 4
_INITIAL_WINDOW_SIZE = 4
_LARGEST_WINDOW = (1 << 31) - 1
_DEFAULT_WINDOW = 65535
_STREAM = 1
_FRAME = struct.Struct(">BHBBI")  # length in three bytes, type, flags, stream
_PREFIX = struct.Struct(">BI")  # compressed or not, length
_RECEIVE_SIZE = 1 << 18

_FINAL = b"\x0a\x15triton_final_response\x12\x02\x08\x01"
_SIZE = 16
_DATA_PREFIX = bytes([6 << 3 | 2, _SIZE])  # the last field of a response with an output of 16 bytes

_WARM_UP_S = 1.0
_PAUSE_S = 0.005
_TIMEOUT_S = 60.0


class StreamError(RuntimeError):
    """The server ended a stream, or responded with an error or with something unexpected."""


class Connection:
    """A connection with one gRPC stream, which any number of requests may share.

    Args:
        port: The server's port for gRPC, on 127.0.0.1.
        model: The model's name.
    """

    def __init__(self, port: int, model: str) -> None:
        """Connect, and open the stream."""
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=_TIMEOUT_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._model = model
        self._frames = bytearray()
        self._messages = bytearray()
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": "/inference.GRPCInferenceService/ModelStreamInfer",
            ":authority": f"127.0.0.1:{port}",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        self.socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, struct.pack(">HI", _INITIAL_WINDOW_SIZE, _LARGEST_WINDOW))
            + _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _LARGEST_WINDOW - _DEFAULT_WINDOW))
            + _frame(_HEADERS, _END_HEADERS, _STREAM, b"".join(_literal(*each) for each in headers.items()))
        )

    def send(self, *counts: int) -> None:
        """Request streams, each of a number of responses; a request's id is its position in the arguments."""
        frames = []
        for number, count in enumerate(counts):
            message = _request(self._model, str(number), count)
            frames.append(_frame(_DATA, 0, _STREAM, _PREFIX.pack(0, len(message)) + message))
        self.socket.sendall(b"".join(frames))

    def receive(self) -> list[bytes]:
        """Wait for data, and return the responses that it completes.

        Raises:
            StreamError: The server has ended the stream.
        """
        data = self.socket.recv(_RECEIVE_SIZE)
        if not data:
            raise StreamError("the server closed the connection")
        frames = self._frames
        frames += data
        start = 0
        while len(frames) - start >= _FRAME.size:
            high, low, kind, flags, _ = _FRAME.unpack_from(frames, start)
            end = start + _FRAME.size + (high << 16 | low)
            if end > len(frames):
                break
            if kind == _DATA:
                self._messages += frames[start + _FRAME.size : end]
            else:
                self._control(kind, flags, bytes(frames[start + _FRAME.size : end]))
            start = end
        del frames[:start]
        return list(self._complete())

    def _control(self, kind: int, flags: int, payload: bytes) -> None:
        if kind in (_SETTINGS, _PING) and not flags & _ACK:
            self.socket.sendall(_frame(kind, _ACK, 0, payload if kind == _PING else b""))
        elif kind in (_RST_STREAM, _GOAWAY) or (kind == _HEADERS and flags & _END_STREAM):
            raise StreamError(f"the server ended the stream: {payload!r}")

    def _complete(self) -> Iterator[bytes]:
        messages = self._messages
        start = 0
        while len(messages) - start >= _PREFIX.size:
            _, size = _PREFIX.unpack_from(messages, start)
            end = start + _PREFIX.size + size
            if end > len(messages):
                break
            yield bytes(messages[start + _PREFIX.size : end])
            start = end
        del messages[:start]


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return _FRAME.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


def _literal(name: str, value: str) -> bytes:
    """Encode a header by HPACK, without any of its tables."""
    return b"".join([b"\0", bytes([len(name)]), name.encode(), bytes([len(value)]), value.encode()])


def _field(number: int, value: bytes) -> bytes:
    """Encode a field of Protocol Buffers that contains bytes."""
    return bytes([number << 3 | 2]) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _request(model: str, request_id: str, count: int) -> bytes:
    """Encode an `inference.ModelInferRequest` for a stream of ``count`` responses."""
    shape = b"\x01\x04"
    tensor = _field(1, b"x") + _field(2, b"FP32") + _field(3, shape)
    empty_final = _field(1, b"triton_enable_empty_final_response") + _field(2, b"\x08\x01")
    return b"".join(
        [
            _field(1, model.encode()),
            _field(3, request_id.encode()),
            _field(4, empty_final),
            _field(5, tensor),
            _field(7, struct.pack("<4f", count, 0, 0, 0)),
        ]
    )


def _fields(message: bytes) -> dict[int, bytes]:
    """Return the fields of a message that contain bytes, the last of each number."""
    found = {}
    position = 0
    while position < len(message):
        number = message[position] >> 3
        size = shift = 0
        while True:
            position += 1
            size |= (message[position] & 0x7F) << shift
            shift += 7
            if message[position] < 0x80:
                break
        position += 1
        found[number] = message[position : position + size]
        position += size
    return found


def _has_data(message: bytes) -> bool:
    return message[-_SIZE - 2 : -_SIZE] == _DATA_PREFIX


def _check(message: bytes) -> None:
    error = _fields(message).get(1)
    if error:
        raise StreamError(error.decode())


def _listen(connections: list[Connection], received_at: Callable[[Connection, list[bytes]], bool]) -> None:
    """Pass on what arrives, until the end is signalled.

    Raises:
        StreamError: Nothing arrived for a minute.
    """
    with selectors.DefaultSelector() as selector:
        for connection in connections:
            selector.register(connection.socket, selectors.EVENT_READ, connection)
        while True:
            ready = selector.select(_TIMEOUT_S)
            if not ready:
                raise StreamError(f"no response arrived on any stream for {_TIMEOUT_S:.0f} s")
            for key, _ in ready:
                if not received_at(key.data, key.data.receive()):
                    return


def throughput(connections: list[Connection], streams: int, responses: int, seconds: float) -> dict[str, float]:
    """Keep a number of streams running; count the responses that arrive within some seconds, after a warm-up."""
    for index, connection in enumerate(connections):
        connection.send(*[responses] * len(range(index, streams, len(connections))))
    start = time.perf_counter() + _WARM_UP_S
    counted = 0
    cpu: float | None = None

    def received_at(connection: Connection, messages: list[bytes]) -> bool:
        nonlocal counted, cpu
        ended = sum(_FINAL in message for message in messages)
        data = sum(map(_has_data, messages))
        if data < len(messages) - ended:
            for message in messages:
                _check(message)
        connection.send(*[responses] * ended)
        now = time.perf_counter()
        if now >= start:
            if cpu is None:
                cpu = time.process_time()
            counted += data
        return now < start + seconds

    _listen(connections, received_at)
    took = time.perf_counter() - start
    assert cpu is not None
    return {"responses_per_s": counted / took, "client_cpu": (time.process_time() - cpu) / took}


def first_response(connections: list[Connection], samples: int) -> dict[str, float]:
    """Request one stream at a time, after a pause; measure the time from the request to its first response."""
    connection = connections[0]
    latencies = []
    for _ in range(samples):
        time.sleep(_PAUSE_S)
        sent = time.perf_counter()
        connection.send(3)
        messages = connection.receive()
        while not any(map(_has_data, messages)):
            messages = connection.receive()
        latencies.append((time.perf_counter() - sent) * 1000)
        while not any(_FINAL in message for message in messages):
            messages = connection.receive()
    percentiles = statistics.quantiles(latencies, n=100)
    return {"first_p50_ms": percentiles[49], "first_p99_ms": percentiles[98]}


def burst(connections: list[Connection], streams: int, responses: int) -> dict[str, float]:
    """Start many streams at once; check that each gets all its responses in order.

    Raises:
        StreamError: One did not.
    """
    received: dict[Connection, list[tuple[float, list[bytes]]]] = {connection: [] for connection in connections}
    open_streams = streams
    start = time.perf_counter()
    for index, connection in enumerate(connections):
        connection.send(*[responses] * len(range(index, streams, len(connections))))

    def received_at(connection: Connection, messages: list[bytes]) -> bool:
        nonlocal open_streams
        received[connection].append((time.perf_counter(), messages))
        open_streams -= sum(_FINAL in message for message in messages)
        return open_streams > 0

    _listen(connections, received_at)
    took = time.perf_counter() - start
    for parts in received.values():
        _check_order([message for _, messages in parts for message in messages], responses)
    began = max(map(_when_all_had_begun, received.values()))
    return {"burst_responses_per_s": streams * responses / took, "last_stream_began_ms": (began - start) * 1000}


def _when_all_had_begun(parts: list[tuple[float, list[bytes]]]) -> float:
    """Return when the last stream of a connection got its first response."""
    begun: dict[bytes, float] = {}
    for when, messages in parts:
        for message in filter(_has_data, messages):
            begun.setdefault(_fields(_fields(message)[2])[3], when)
    return max(begun.values())


def _check_order(messages: list[bytes], responses: int) -> None:
    values: dict[bytes, list[float]] = {}
    for message in messages:
        _check(message)
        response = _fields(message)[2]
        request_id = _fields(response)[3]
        if _has_data(message):
            values.setdefault(request_id, []).append(struct.unpack_from("<f", message, len(message) - _SIZE)[0])
    if any(each != list(range(responses)) for each in values.values()):
        raise StreamError("a stream's responses were incomplete, or not in order")


def main() -> int:
    """Measure once, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("measure", choices=["throughput", "first", "burst"])
    parser.add_argument("--port", type=int, required=True, help="of gRPC, on 127.0.0.1")
    parser.add_argument("--model", required=True)
    parser.add_argument("--streams", type=int, default=32)
    parser.add_argument("--responses", type=int, default=200, help="of each stream")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("--connections", type=int, default=8)
    options = parser.parse_args()
    connections = [Connection(options.port, options.model) for _ in range(min(options.connections, options.streams))]
    try:
        if options.measure == "throughput":
            found = throughput(connections, options.streams, options.responses, options.seconds)
        elif options.measure == "first":
            found = first_response(connections, options.samples)
        else:
            found = burst(connections, options.streams, options.responses)
    except (StreamError, OSError) as error:
        print(f"stream_client.py: {error}", file=sys.stderr)
        return 1
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
