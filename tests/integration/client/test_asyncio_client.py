"""The asyncio client: many requests in flight, and cancellation."""

from __future__ import annotations

import asyncio
import gc
import threading
import time

import numpy as np
import pytest
from client_kinds import url_of
from peers import HOST, listening, silent
from serving import bind_floats, held_model, metrics_of

from pytriton.client import (
    AsyncioModelClient,
    PyTritonClientClosedError,
    PyTritonClientError,
    PyTritonClientModelNotReadyError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
)
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy


def echo(requests):
    return [{"y": request["x"]} for request in requests]


def pending(triton, name):
    return metrics_of(triton, name)["nv_inference_pending_request_count"]


async def until(condition, timeout_s=10.0):
    deadline = time.monotonic() + timeout_s
    while not await asyncio.to_thread(condition):
        assert time.monotonic() < deadline
        await asyncio.sleep(0.01)


def test_hundreds_of_requests_in_flight(triton, name, url):
    waiting, gate = [], threading.Event()

    def wait(requests):
        waiting.extend(requests)
        assert gate.wait(60)
        return echo(requests)

    bind_floats(triton, name, wait, config=ModelConfig(max_batch_size=500))

    async def send_request():
        async with AsyncioModelClient(url, name, max_connections=300) as client:
            tasks = [asyncio.ensure_future(client.infer_sample([number])) for number in range(300)]
            await until(lambda: len(waiting) + pending(triton, name) >= 300, 60)
            gate.set()
            return [response["y"][0] for response in await asyncio.gather(*tasks)]

    assert asyncio.run(send_request()) == list(range(300))


def test_requests_beyond_the_pool_wait_for_a_connection(triton, name):
    bind_floats(triton, name, echo)

    async def send_request():
        async with AsyncioModelClient(url_of(triton, "http"), name, max_connections=2) as client:
            responses = await asyncio.gather(*[client.infer_sample([number]) for number in range(50)])
            return [response["y"][0] for response in responses]

    assert asyncio.run(send_request()) == list(range(50))


def test_cancelling_a_task_abandons_its_request_over_grpc(triton, name):
    seen, entered, gate = [], threading.Event(), threading.Event()

    def note(requests):
        seen.extend(float(request["x"][0, 0]) for request in requests)
        entered.set()
        assert gate.wait(30)
        return echo(requests)

    # Triton drops cancelled requests from queues that have a policy.
    batcher = DynamicBatcher(default_queue_policy=QueuePolicy(default_timeout_microseconds=60_000_000))
    bind_floats(triton, name, note, config=ModelConfig(max_batch_size=1, batcher=batcher))

    async def send_request():
        async with AsyncioModelClient(url_of(triton, "grpc"), name) as client:
            first = asyncio.ensure_future(client.infer_sample([1]))
            await asyncio.to_thread(entered.wait, 30)
            second = asyncio.ensure_future(client.infer_sample([2]))  # the server may have given it to the model
            await until(lambda: pending(triton, name) >= 1)
            third = asyncio.ensure_future(client.infer_sample([3]))
            await until(lambda: pending(triton, name) >= 2)
            third.cancel()
            with pytest.raises(asyncio.CancelledError):
                await third
            for _ in range(10):  # on the same connection, so that the server has noticed it
                await client.wait_for_server(10)
            gate.set()
            await asyncio.gather(first, second)
            await client.infer_sample([4])

    asyncio.run(send_request())
    assert seen == [1, 2, 3, 4]


def test_cancelling_a_task_closes_its_connection_over_http():
    requested, ended = threading.Event(), threading.Event()

    def behave(connection):
        connection.recv(65536)
        requested.set()
        silent(connection)
        ended.set()

    async def send_request(port):
        async with AsyncioModelClient(f"{HOST}:{port}", "any", ensure_model_is_ready=False) as client:
            task = asyncio.ensure_future(client.infer_sample([1]))
            assert await asyncio.to_thread(requested.wait, 10)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    with listening(behave) as port:
        asyncio.run(send_request(port))
        assert ended.wait(10)


def test_tasks_that_start_together_request_the_configuration_once(triton, name):
    bind_floats(triton, name, echo)
    requested = []

    async def send_request():
        async with AsyncioModelClient(url_of(triton, "http"), name) as client:
            (server,) = client._session.servers
            call = server.transport.call

            def recording(method, *args, **kwargs):
                requested.append(method)
                return call(method, *args, **kwargs)

            server.transport.call = recording
            await asyncio.gather(*[client.infer_sample([1]) for _ in range(20)])

    asyncio.run(send_request())
    assert requested.count("get_model_config") == 1
    assert requested.count("infer") == 20


def test_cancelling_the_connecting_task_does_not_affect_the_others(triton, name, url):
    async def send_request():
        async with AsyncioModelClient(url, name, init_timeout_s=30) as client:
            first = asyncio.ensure_future(client.infer_sample([1]))
            await until(lambda: client._waiting_for_preparing == 1)
            second = asyncio.ensure_future(client.infer_sample([2]))
            await until(lambda: client._waiting_for_preparing == 2)
            first.cancel()
            await asyncio.to_thread(bind_floats, triton, name, echo)
            return (await second)["y"]

    assert asyncio.run(send_request()) == [2]


def test_all_tasks_that_wait_for_a_missing_model_get_an_error(url):
    async def send_request():
        async with AsyncioModelClient(url, "no-such-model", init_timeout_s=0.4) as client:
            return await asyncio.gather(*[client.infer_sample([1]) for _ in range(3)], return_exceptions=True)

    started = time.monotonic()
    assert [type(error) for error in asyncio.run(send_request())] == [PyTritonClientModelNotReadyError] * 3
    assert time.monotonic() - started < 10


def test_closing_while_tasks_wait(triton, name, url):
    entered, gate = held_model(triton, name)

    async def send_request():
        client = AsyncioModelClient(url, name)
        task = asyncio.ensure_future(client.infer_sample([1]))
        await asyncio.to_thread(entered.wait, 30)
        await client.close()
        try:
            return await asyncio.wait_for(task, 10)
        finally:
            gate.set()

    with pytest.raises(PyTritonClientError):
        asyncio.run(send_request())


def test_a_client_outlives_its_event_loop(triton, name, url):
    bind_floats(triton, name, echo)
    client = AsyncioModelClient(url, name)

    async def send_request():
        return (await client.infer_sample([1]))["y"]

    for _ in range(2):
        assert asyncio.run(send_request()) == [1]

    async def close():
        await client.infer_sample([1])
        await client.close()

    asyncio.run(close())
    gc.collect()


def test_waiting_for_the_server(url):
    async def send_request():
        async with AsyncioModelClient(url, "any") as client:
            await client.wait_for_server(10)

    asyncio.run(send_request())

    async def wait_without_server():
        async with AsyncioModelClient(f"{HOST}:1", "any") as client:
            await client.wait_for_server(0.2)

    with pytest.raises(PyTritonClientTimeoutError, match="Waiting for http"):
        asyncio.run(wait_without_server())


def test_loading_and_unloading(triton, name, url):
    bind_floats(triton, name, echo)

    async def send_request():
        async with AsyncioModelClient(url, name, init_timeout_s=10) as client:
            await client.unload_model()
            with pytest.raises(PyTritonClientModelUnavailableError):
                while True:  # unloading takes a moment
                    await client.wait_for_model(0.4)
            await client.load_model()
            return (await client.infer_sample([1]))["y"]

    assert asyncio.run(send_request()) == [1]


def test_compression_is_not_requested(triton):
    """The server would spend more time on it than the way takes."""
    heads = []

    def behave(connection):
        heads.append(connection.recv(65536))

    async def send_request(port):
        async with AsyncioModelClient(f"{HOST}:{port}", "any") as client:
            await client.wait_for_model(0.2)

    with listening(behave) as port, pytest.raises(PyTritonClientTimeoutError):
        asyncio.run(send_request(port))
    assert b"accept-encoding: identity" in heads[0].lower()


def test_arrays_are_sent_while_others_are_being_received(triton, name, url):
    bind_floats(triton, name, echo)
    values = np.random.default_rng(0).random((8, 300_000), np.float32)

    async def send_request():
        async with AsyncioModelClient(url, name) as client:
            return await asyncio.gather(*[client.infer_sample(row) for row in values])

    for row, response in zip(values, asyncio.run(send_request()), strict=True):
        assert (response["y"] == row).all()


def test_a_closed_client_cannot_be_entered(url):
    async def enter():
        client = AsyncioModelClient(url, "any")
        await client.close()
        async with client:
            pass

    with pytest.raises(PyTritonClientClosedError):
        asyncio.run(enter())
