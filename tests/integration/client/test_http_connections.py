"""HTTP connections: those that break while idle, large bodies, host names, and programs with gevent."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import re
import socket
import subprocess
import sys
import threading
import tracemalloc

import numpy as np
import pytest
import uvloop
from client_kinds import known, open_client, url_of
from peers import HOST, listening
from serving import Background, bind_floats

from pytriton.client import (
    AsyncioModelClient,
    Failure,
    ModelClient,
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
)

LARGE = 20_000_000


def result_of(array):
    """The JSON of a response with one output, whose content follows."""
    parameters = {"binary_data_size": array.nbytes}
    output = {"name": "y", "datatype": "FP32", "shape": list(array.shape), "parameters": parameters}
    return json.dumps({"outputs": [output]}).encode()


def response_of(array, head=b"HTTP/1.1 200 OK\r\n"):
    message = result_of(array)
    size = len(message) + array.nbytes
    head += b"Inference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(message), size)
    return head + message + array.tobytes()


def size_of(head):
    """The length of the body behind the head of a request."""
    found = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
    return int(found[1]) if found else 0


class Peer:
    """Counts requests, and responds to each with a function of a list; the last one serves all that follow."""

    def __init__(self, *behaviors):
        self.behaviors = list(behaviors)
        self.requests = []
        self.connections = 0
        self.closed = threading.Semaphore(0)  # counts the connections that it has closed

    def __call__(self, connection):
        self.connections += 1
        while head := self.head_from(connection):
            self.requests.append(head)
            self.read_body(connection, size_of(head))
            behave = self.behaviors.pop(0) if len(self.behaviors) > 1 else self.behaviors[0]
            if not behave(connection):
                self.closed.release()
                return

    def head_from(self, connection):
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            byte = connection.recv(1)
            if not byte:
                return b""
            head += byte
        return head

    def read_body(self, connection, size):
        buffer = bytearray(65536)
        while size:
            size -= connection.recv_into(buffer, min(size, len(buffer)))


def responding(data):
    def behave(connection):
        connection.sendall(data)
        return True

    return behave


def responding_last(data):
    """Responds, and closes the connection, as proxies do with idle ones."""

    def behave(connection):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_RDWR)
        return False

    return behave


def hanging_up(connection):
    return False


@pytest.fixture(params=["blocking", "asyncio"])
def kind(request):
    """Futures are those of asyncio."""
    return request.param


@contextlib.contextmanager
def client_of(kind, peer, **arguments):
    with (
        listening(peer) as port,
        open_client(kind, f"http://{HOST}:{port}", "floats", restart_timeout_s=0, **known(kind), **arguments) as client,
    ):
        yield client


ONE = np.float32([[1]])


def test_connections_are_reused(kind):
    peer = Peer(responding(response_of(ONE)))
    with client_of(kind, peer) as client:
        for _ in range(3):
            assert client.infer_sample([1])["y"] == [1]
    assert (len(peer.requests), peer.connections) == (3, 1)


def test_a_connection_that_was_closed_while_idle_is_replaced(kind):
    peer = Peer(responding_last(response_of(ONE)))
    with client_of(kind, peer) as client:
        for _ in range(5):
            assert client.infer_sample([1])["y"] == [1]
            assert peer.closed.acquire(timeout=30)
    assert (len(peer.requests), peer.connections) == (5, 5)


def test_a_connection_that_ends_right_after_a_large_response(kind, caplog):
    array = np.arange(LARGE // 4, dtype=np.float32)[np.newaxis]
    peer = Peer(responding_last(response_of(array)))
    with client_of(kind, peer) as client:
        for _ in range(3):
            assert np.array_equal(client.infer_sample([1])["y"], array[0])
            assert peer.closed.acquire(timeout=30)
    assert not caplog.records


def test_a_connection_that_the_server_closes_is_not_reused(kind):
    peer = Peer(responding(response_of(ONE, b"HTTP/1.1 200 OK\r\nConnection: close\r\n")))
    with client_of(kind, peer) as client:
        for _ in range(3):
            assert client.infer_sample([1])["y"] == [1]
    assert (len(peer.requests), peer.connections) == (3, 3)


def test_an_inference_that_may_have_been_executed_is_not_retried(kind):
    peer = Peer(responding(response_of(ONE)), hanging_up)
    with client_of(kind, peer) as client:
        client.infer_sample([1])
        with pytest.raises(PyTritonClientInferenceServerError, match="broke before") as caught:
            client.infer_sample([2])
    assert caught.value.failure is Failure.LOST
    assert len(peer.requests) == 2


def test_read_only_requests_are_retried(kind):
    ready = responding(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    metadata = responding(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}")
    peer = Peer(ready, metadata, hanging_up, ready, metadata)
    with client_of(kind, peer) as client:
        client.wait_for_model(5)
        client.wait_for_model(5)
    assert len(peer.requests) == 5


def test_an_early_response_to_a_large_request(kind):
    body = b'{"error": "no more than a megabyte"}'

    class Refusing(Peer):
        def read_body(self, connection, size):
            super().read_body(connection, 100_000)

    head = b"HTTP/1.1 413 Too Large\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body)
    peer = Refusing(responding_last(head + body))
    with client_of(kind, peer) as client, pytest.raises(PyTritonClientInferenceServerError) as caught:
        client.infer_sample(np.zeros(LARGE // 4, np.float32))
    # What the kernel discards with the connection is lost.
    assert "no more than a megabyte" in caught.value.message or caught.value.failure is Failure.LOST


def test_a_response_in_chunks(kind):
    content = result_of(ONE) + ONE.tobytes()
    chunks = b"".join(b"1\r\n%c\r\n" % byte for byte in content) + b"0\r\n\r\n"
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nInference-Header-Content-Length: %d\r\n\r\n"
    peer = Peer(responding(head % len(result_of(ONE)) + chunks))
    with client_of(kind, peer) as client:
        for _ in range(2):
            assert client.infer_sample([1])["y"] == [1]
    assert peer.connections == 1


def test_an_interim_response(kind):
    peer = Peer(responding(b"HTTP/1.1 100 Continue\r\n\r\n" + response_of(ONE)))
    with client_of(kind, peer) as client:
        assert client.infer_sample([1], headers={"Expect": "100-continue"})["y"] == [1]


@pytest.mark.parametrize("size", [1 << 62, 1 << 80, -1])
def test_a_response_of_an_impossible_size(kind, size):
    peer = Peer(responding(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n{" % size))
    with client_of(kind, peer) as client:
        for _ in range(2):
            with pytest.raises(PyTritonClientInferenceServerError, match="does not respond like Triton") as caught:
                client.infer_sample([1])
            assert caught.value.failure is Failure.MALFORMED


def compressed(body, status=b"200 OK"):
    """A response whose body is compressed as a whole; its JSON has a size of its own."""
    packed = gzip.compress(body)
    head = b"HTTP/1.1 " + status + b"\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n" % len(packed)
    return head + b"Inference-Header-Content-Length: %d\r\n\r\n" % len(result_of(ONE)) + packed


def test_a_compressed_response(kind):
    peer = Peer(responding(compressed(result_of(ONE) + ONE.tobytes())))
    with client_of(kind, peer) as client:
        assert client.infer_sample([1], headers={"Accept-Encoding": "gzip"})["y"] == [1]
        with pytest.raises(PyTritonClientInferenceServerError, match=r"compressed \(gzip\), which was not requested"):
            client.infer_sample([1])


@pytest.mark.parametrize("status", [b"200 OK", b"500 Internal Server Error"])
def test_an_unrequested_compressed_response_takes_no_memory(kind, status):
    peer = Peer(responding(compressed(bytes(100_000_000), status)))
    with client_of(kind, peer) as client:
        tracemalloc.start()
        try:
            with pytest.raises(PyTritonClientInferenceServerError, match="does not respond like Triton"):
                client.infer_sample([1])
            assert tracemalloc.get_traced_memory()[1] < 20_000_000
        finally:
            tracemalloc.stop()


def test_large_arrays_are_not_copied(kind):
    """Sent data is not copied, and received data stays in its buffer."""
    array = np.arange(LARGE // 4, dtype=np.float32)[np.newaxis]
    data = response_of(array)
    peer = Peer(responding(data))
    with client_of(kind, peer) as client:
        client.infer_sample([1])
        tracemalloc.start()
        try:
            before = tracemalloc.get_traced_memory()[0]
            output = client.infer_batch(array)["y"]
            peak = tracemalloc.get_traced_memory()[1] - before
        finally:
            tracemalloc.stop()
    assert np.array_equal(output, array)
    assert output.flags.aligned
    assert peak < 1.1 * LARGE


def test_another_address_of_a_name(kind, monkeypatch):
    look_up = socket.getaddrinfo
    peer = Peer(responding(response_of(ONE)))
    with listening(peer) as port, socket.socket() as unused:
        unused.bind((HOST, 0))

        def two_addresses(host, *args, **kwargs):
            if host != "two.invalid":
                return look_up(host, *args, **kwargs)
            if kwargs.get("flags", 0) & socket.AI_NUMERICHOST:
                raise socket.gaierror(socket.EAI_NONAME, "it is a name")
            kind_of = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "")
            return [(*kind_of, unused.getsockname()), (*kind_of, (HOST, port))]

        monkeypatch.setattr(socket, "getaddrinfo", two_addresses)
        with open_client(kind, f"http://two.invalid:{port}", "floats", **known(kind)) as client:
            assert client.infer_sample([1])["y"] == [1]


def test_a_name_that_takes_long_to_look_up(monkeypatch):
    look_up, looking, over = socket.getaddrinfo, threading.Event(), threading.Event()

    def hanging(host, *args, **kwargs):
        if not kwargs.get("flags", 0) & socket.AI_NUMERICHOST:
            looking.set()
            over.wait(60)
        return look_up(host, *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    with ModelClient("http://localhost:1", "floats", **known("blocking")) as client:
        with pytest.raises(PyTritonClientTimeoutError):
            client.infer_sample([1], timeout_s=0.1)
        looking.clear()
        requested = Background(lambda: client.infer_sample([1]))
        assert looking.wait(30)
        client.close()
        assert isinstance(requested.finish().error, PyTritonClientClosedError)
    over.set()


def test_another_event_loop(caplog):
    array = np.arange(LARGE // 4, dtype=np.float32)[np.newaxis]
    peer = Peer(responding(response_of(array)))

    async def send():
        with listening(peer) as port:
            async with AsyncioModelClient(f"http://localhost:{port}", "floats", **known("asyncio")) as client:
                for _ in range(2):
                    assert np.array_equal((await client.infer_batch(array))["y"], array)

    loop = uvloop.new_event_loop()
    try:
        loop.run_until_complete(send())
    finally:
        loop.close()
    assert not caplog.records


GEVENT = """
import sys
if sys.argv[3] == "patched":
    from gevent import monkey
    monkey.patch_all()
import gevent
import numpy as np
from pytriton.client import ModelClient, PyTritonClientClosedError, PyTritonClientTimeoutError

url, name = sys.argv[1:3]
client = ModelClient(url, name)
print(client.model_config.model_name)
greenlets = [gevent.spawn(client.infer_sample, [number]) for number in range(8)]
gevent.joinall(greenlets, raise_error=True)
assert [greenlet.value["y"].tolist() for greenlet in greenlets] == [[number] for number in range(8)]

def times_out():
    try:
        client.infer_sample([-1], timeout_s=0.2)
    except PyTritonClientTimeoutError:
        pass
    else:
        raise AssertionError
    with gevent.Timeout(0.2, False):
        client.infer_sample([-1])
        raise AssertionError
    assert client.infer_sample([5])["y"] == [5]

gevent.spawn(times_out).get()

def is_closed():
    try:
        client.infer_sample([-1])
    except PyTritonClientClosedError:
        return True

waiting = gevent.spawn(is_closed)
gevent.sleep(0.3)
client.close()
assert waiting.get(timeout=10)
print("done")
"""
GREENLETS = 8


@pytest.mark.parametrize("is_patched", ["patched", "unpatched"])
def test_programs_with_gevent(triton, name, is_patched):
    """Requests of greenlets are in flight together: the model responds to none before it has all."""
    values, gate = [], threading.Event()

    async def infer(requests):
        mine = [request["x"].item() for request in requests]
        values.extend(mine)
        while not gate.is_set() and (min(mine) < 0 or len(values) < GREENLETS):
            await asyncio.sleep(0.01)
        return [{"y": request["x"]} for request in requests]

    bind_floats(triton, name, infer)
    try:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", GEVENT, url_of(triton, "http"), name, is_patched],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        gate.set()
    assert (done.returncode, done.stdout) == (0, f"{name}\ndone\n"), done.stderr


def test_serving_with_threads_patched_by_gevent_is_refused():
    program = "from gevent import monkey; monkey.patch_all(); from pytriton.triton import Triton; Triton().run()"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "PyTritonRuntimeError: gevent has replaced the threads of this program" in done.stderr
