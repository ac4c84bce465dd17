"""Helpers of the tests of streams: streams of both protocols, and callables that yield."""

from __future__ import annotations

import asyncio
import collections
import contextlib
import http.client
import json
import queue
import socket
import time

import numpy as np
import tritonclient.grpc
from serving import FLOATS_IN, FLOATS_OUT, HOST, Background
from tritonclient.utils import np_to_triton_dtype

from pytriton.model_config import DynamicBatcher, ModelConfig

DEADLINE_S = 20.0
STREAMING = ModelConfig(decoupled=True)


def together(**settings):
    """A model whose requests have time to come together in a batch."""
    return ModelConfig(max_batch_size=16, batcher=DynamicBatcher(max_queue_delay_microseconds=300_000), **settings)


def one_by_one(**settings):
    """A model whose batches have one request each."""
    return ModelConfig(max_batch_size=1, **settings)


def row(*values):
    return np.array([values], np.float32)


def bind_stream(triton, name, infer_func, config=STREAMING):
    """Binds a decoupled model with one input ``x`` and one output ``y``, float32 vectors."""
    triton.bind(name, infer_func, FLOATS_IN, FLOATS_OUT, config=config)


def number_of(requests):
    """The number that the first of some requests brings."""
    return int(requests[0]["x"].flat[0])


def responses(requests, value):
    """A step that has one response for each request, the same value in all."""
    return [{"y": np.full_like(request["x"], value)} for request in requests]


class Gates:
    """Blocks coroutines, each at the gate of its number, until a test opens it."""

    def __init__(self):
        self.entered = []
        self.loops = set()
        self._opened = collections.defaultdict(asyncio.Event)

    async def wait(self, number):
        self.loops.add(asyncio.get_running_loop())
        self.entered.append(number)
        await self._opened[number].wait()

    def open(self, *numbers):
        """Opens gates, also for coroutines that come later; from any thread, once one waits."""
        (loop,) = self.loops
        loop.call_soon_threadsafe(lambda: [self._opened[number].set() for number in numbers])


class Reply:
    """A response, an error, or an end without either, as it came over a stream.

    Attributes:
        id: The request's, except of errors, with which the client library drops it.
        outputs: Arrays by name; None of an end alone and of an error.
        error: Its message, or None.
        final: Whether it is the request's last.
        at: ``time.monotonic()`` of its arrival.
    """

    def __init__(self, result, error):
        self.at = time.monotonic()
        self.id = self.outputs = self.error = None
        self.final = True
        if error is not None:
            self.error = error.message()
            return
        response = result.get_response()
        self.id = response.id
        self.final = "triton_final_response" in response.parameters and (
            response.parameters["triton_final_response"].bool_param
        )
        if response.outputs:
            self.outputs = {output.name: result.as_numpy(output.name) for output in response.outputs}

    @property
    def y(self):
        """The output ``y`` as a list without dimensions around it; the error where there is one; None of the rest."""
        if self.outputs is None:
            return self.error
        return self.outputs["y"].squeeze().tolist()

    def __repr__(self):
        return f"Reply({self.y!r}, final={self.final}, id={self.id!r})"


class Stream:
    """A gRPC stream: any number of requests go in, their responses come out as they arrive."""

    def __init__(self, triton):
        self.raw = tritonclient.grpc.InferenceServerClient(f"{HOST}:{triton.config.grpc_port}")
        self._responses = queue.SimpleQueue()
        self.raw.start_stream(lambda result, error: self._responses.put(Reply(result, error)))

    def send(self, model, *values, inputs=None, **options):
        """Sends a request: a row of float32 as ``x``, or inputs by name."""
        tensors = []
        for name, array in (inputs or {"x": row(*values)}).items():
            tensor = tritonclient.grpc.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
            tensor.set_data_from_numpy(array)
            tensors.append(tensor)
        self.raw.async_stream_infer(model, tensors, **{"enable_empty_final_response": True, **options})
        return self

    def reply(self, timeout_s=DEADLINE_S):
        """The next reply."""
        return self._responses.get(timeout=timeout_s)

    def replies(self, ends=1, timeout_s=DEADLINE_S):
        """All replies until so many requests have ended."""
        replies = []
        while ends:
            replies.append(self.reply(timeout_s))
            ends -= replies[-1].final
        return replies

    def has_reply(self):
        """Whether one has come already."""
        return not self._responses.empty()

    def finish(self):
        """Closes the stream after the requests in flight."""
        self.raw.stop_stream()

    def cancel(self):
        """Closes the stream and cancels its requests in flight.

        Triton 2.51 may keep a model loaded for ever whose last response was sent in that moment, see
        https://github.com/triton-inference-server/server/issues/7626.
        """
        self.raw.stop_stream(cancel_requests=True)

    def close(self):
        """Closes the stream without waiting for requests in flight."""
        self.cancel()
        self.raw.close()


@contextlib.contextmanager
def stream_to(triton):
    stream = Stream(triton)
    try:
        yield stream
    finally:
        stream.close()


def streamed(triton, model, *values, **options):
    """Sends one request over its own stream: returns ``y`` of each reply, and the final flags."""
    with stream_to(triton) as stream:
        replies = stream.send(model, *values, **options).replies()
        stream.finish()
        return [reply.y for reply in replies], [reply.final for reply in replies]


class EventStream:
    """A request to Triton's ``generate_stream``: server-sent events, read as they arrive.

    Args:
        triton: The server.
        model: The model's name.
        body: What is sent as JSON.
        endpoint: ``generate_stream``, or ``generate`` for one response as JSON.
    """

    def __init__(self, triton, model, body, endpoint="generate_stream"):
        self._connection = http.client.HTTPConnection(HOST, triton.config.http_port, timeout=DEADLINE_S)
        self._connection.request("POST", f"/v2/models/{model}/{endpoint}", json.dumps(body))
        self._socket = self._connection.sock
        self._response = None

    @property
    def response(self):
        """Status and headers; waits for them."""
        if self._response is None:
            self._response = self._connection.getresponse()
        return self._response

    def event(self):
        """The next event, decoded; None at the end."""
        while line := self.response.readline():
            if line.strip():
                assert line.startswith(b"data: "), line
                return json.loads(line[len(b"data: ") :])
        return None

    def __iter__(self):
        return iter(self.event, None)

    def json(self):
        """The whole response, which is JSON and no events."""
        return json.loads(self.response.read())

    def drop(self):
        """Goes away without a word."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        if self._response is not None:
            self._response.close()
        self._connection.close()


@contextlib.contextmanager
def events_of(triton, model, body, endpoint="generate_stream"):
    events = EventStream(triton, model, body, endpoint)
    try:
        yield events
    finally:
        events.drop()


def count(requests):
    """Counts to the number that the request brings."""
    for value in range(number_of(requests)):
        yield responses(requests, value)


async def count_async(requests):
    for value in range(number_of(requests)):
        await asyncio.sleep(0)
        yield responses(requests, value)


COUNTERS = {"generator": count, "async_generator": count_async}


def values_of(replies):
    return [reply.y for reply in replies]


def by_id(replies):
    """The responses to each request, the end without data as None."""
    return {
        each: [reply.y for reply in replies if reply.id == each] for each in sorted({reply.id for reply in replies})
    }


def behind(gates):
    """A coroutine function that returns its input once the gate of the request's number is open."""

    async def wait(requests):
        await gates.wait(number_of(requests))
        return requests

    return wait


def send_number(client, name, number):
    """Sends a request in the background."""
    return Background(lambda: client.infer(name, {"x": row(number)})["y"].item())
