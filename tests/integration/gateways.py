"""Models of every kind, gateways in front of them, and a client."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import http.client
import json
import socket
import threading
import time

import numpy as np
import serving
import uvicorn

from pytriton.decorators import batch
from pytriton.gateway import Gateway, GatewayConfig
from pytriton.gateway.server import GatewayServer
from pytriton.model_config import ModelConfig, Tensor

LIMIT_S = 20
EVENTS = "text/event-stream"
NUMBERS = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
DOUBLED = [Tensor(name="y", dtype=np.float32, shape=(-1,))]
sizes: list[int] = []  # of the batches that Double has had


@batch
def double(x):
    """Doubles numbers.

    They are sent as floats.
    """
    sizes.append(len(x))
    return {"y": x * 2}


@batch
def greet(who, greeting=None):
    words = [b"hello"] * len(who) if greeting is None else greeting[:, 0]
    return {"text": np.array([[word + b" " + name] for word, name in zip(words, who[:, 0], strict=True)], object)}


@batch
def fail(x):
    raise ValueError("no such luck")


@batch
def count(n):
    for i in range(int(n[0, 0])):
        if i == 100:
            raise ValueError("that is a hundred")
        yield {"i": np.full((len(n), 1), i, np.int32)}


@batch
def sleep(x):
    time.sleep(0.5)
    return {"y": x}


@batch
def mirror(image, times=None):
    """Returns an image as it came, and its size."""
    factor = np.ones((len(image), 1), np.int32) if times is None else times
    return {"same": image, "size": np.vectorize(len, otypes=[np.int32])(image) * factor}


waiting, lingering, release, cancelled = (threading.Event() for _ in range(4))


async def wait(requests):
    waiting.set()
    try:
        while not release.is_set():
            await asyncio.sleep(0.01)
            yield [{"y": request["x"]} for request in requests]
    except (asyncio.CancelledError, GeneratorExit):
        cancelled.set()
        raise


async def linger(requests):
    """Sends no response, until it is cancelled."""
    lingering.set()
    try:
        await asyncio.sleep(LIMIT_S)
    except asyncio.CancelledError:
        cancelled.set()
        raise
    return [{"y": request["x"]} for request in requests]


def bind_all(triton):
    batching = ModelConfig(max_batch_size=8)
    decoupled = ModelConfig(max_batch_size=8, decoupled=True)
    text = Tensor(name="text", dtype=bytes, shape=(1,))
    triton.bind("Double", double, NUMBERS, DOUBLED, config=batching)
    triton.bind("Sleep", sleep, NUMBERS, DOUBLED, config=batching)
    triton.bind("Fail", fail, NUMBERS, DOUBLED, config=batching)
    who = [
        Tensor(name="who", dtype=bytes, shape=(1,)),
        Tensor(name="greeting", dtype=bytes, shape=(1,), optional=True),
    ]
    triton.bind("Greet", greet, who, [text], config=batching)
    image = Tensor(name="image", dtype=bytes, shape=(1,), media_type="image/*")
    times = Tensor(name="times", dtype=np.int32, shape=(1,), optional=True)
    same = Tensor(name="same", dtype=bytes, shape=(1,), media_type="image/png")
    size = Tensor(name="size", dtype=np.int32, shape=(1,))
    triton.bind("Mirror", mirror, [image, times], [same, size], config=batching)
    numbers = [Tensor(name="n", dtype=np.int32, shape=(1,))], [Tensor(name="i", dtype=np.int32, shape=(1,))]
    triton.bind("Count", count, *numbers, config=decoupled)
    triton.bind("Wait", wait, NUMBERS, DOUBLED, config=ModelConfig(batching=False, decoupled=True))
    triton.bind("Linger", linger, NUMBERS, DOUBLED, config=ModelConfig(batching=False))
    triton.bind(
        "Single",
        lambda requests: [{"y": request["x"] * 2} for request in requests],
        NUMBERS,
        DOUBLED,
        config=ModelConfig(batching=False),
    )


@contextlib.contextmanager
def gateway_of(triton, **settings):
    config = GatewayConfig(port=0, **settings)
    server = GatewayServer(Gateway(triton, config), config)
    server.start()
    try:
        yield Client(server.url)
    finally:
        server.stop(5)


@contextlib.contextmanager
def running(app):
    """Runs an ASGI application as `uvicorn` would from its command line."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        serving.wait_until(lambda: server.started)
        try:
            yield Client(f"http://127.0.0.1:{listening.getsockname()[1]}")
        finally:
            server.should_exit = True
            thread.join(LIMIT_S)


PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


class Response:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    def json(self):
        return json.loads(self.body)


class Client:
    """Sends one request per connection."""

    def __init__(self, url):
        self.url = url

    def connection(self):
        return http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=LIMIT_S)

    def send(self, method, path, body=None, **headers):
        with contextlib.closing(self.connection()) as connection:
            fields = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, fields)
            return Response(connection.getresponse())

    def get(self, path, **headers):
        return self.send("GET", path, **headers)

    def post(self, model, body, **headers):
        if not isinstance(body, bytes):
            headers.setdefault("content_type", "application/json")
            body = json.dumps(body).encode()
        return self.send("POST", f"/v1/models/{model}", body, **headers)


def events_of(body):
    """The kind and the data of each server-sent event of a body."""
    for block in body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if fields:
            yield fields.get("event", "message"), json.loads(fields["data"])


@contextlib.contextmanager
def connected(gateway, data):
    host, port = gateway.url.removeprefix("http://").split(":")
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        connection.settimeout(LIMIT_S)
        connection.connect((host, int(port)))
        connection.sendall(data)
        yield connection


def received(connection):
    """Returns all that comes until the connection is closed."""
    data = b""
    with contextlib.suppress(ConnectionError):
        while part := connection.recv(1 << 16):
            data += part
    return data


def request(path, body=b"", head="", method="POST"):
    return f"{method} {path} HTTP/1.1\r\nhost: a\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body
