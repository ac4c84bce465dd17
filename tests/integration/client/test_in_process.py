"""Clients in the process that runs the server."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import threading
import time

import numpy as np
import processes
import pytest
import serving
from serving import server_of

from pytriton.client import (
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientInputError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.client.exceptions import Failure
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.process import ProcessInstance

LIMIT_S = 20
NUMBERS = [Tensor(name="x", dtype=np.float32, shape=(-1,))]
DOUBLED = [Tensor(name="y", dtype=np.float32, shape=(-1,))]


@batch
def double(x):
    return {"y": x * 2}


@batch
def triple(x):
    return {"y": x * 3}


def bind_double(triton, name, function=double, **settings):
    triton.bind(name, function, NUMBERS, DOUBLED, config=ModelConfig(max_batch_size=16, **settings))


def waiting_function():
    """A function that waits, and the events that it has been called and that it may return."""
    entered, release = threading.Event(), threading.Event()

    @batch
    def wait(x):
        entered.set()
        release.wait(LIMIT_S)
        return {"y": x}

    return wait, entered, release


def bind_counter(triton, name):
    @batch
    def counter(n):
        for i in range(int(n[0, 0])):
            yield {"i": np.full((n.shape[0], 1), i, np.int32)}

    tensors = [Tensor(name="n", dtype=np.int32, shape=(1,))], [Tensor(name="i", dtype=np.int32, shape=(1,))]
    triton.bind(name, counter, *tensors, config=ModelConfig(max_batch_size=4, decoupled=True))


def test_a_model_whose_inputs_are_all_optional_is_called_without_any(triton, name):
    @triton.model(name=name)
    def hello(who: str = "world") -> str:
        return f"hello {who}"

    assert triton.client(name).infer_sample()["output"].tolist() == [b"hello world"]
    assert asyncio.run(_sample_of(triton, name))["output"].tolist() == [b"hello world"]


async def _sample_of(triton, name):
    async with await triton.aclient(name) as client:
        return await client.infer_sample()


def test_sample_and_batch(triton, name):
    bind_double(triton, name)
    client = triton.client(name)
    sample = client.infer_sample(np.array([1, 2], np.float32))
    assert sample["y"].tolist() == [2, 4]
    rows = client.infer_batch(x=np.array([[1], [2]], np.float32))
    assert rows["y"].tolist() == [[2], [4]]
    assert client.model_config.max_batch_size == 16


def test_asyncio(triton, name):
    bind_double(triton, name)

    async def main():
        client = await triton.aclient(name)
        samples = await asyncio.gather(*(client.infer_sample(np.full(4, i, np.float32)) for i in range(100)))
        rows = await client.infer_batch(x=np.ones((3, 2), np.float32))
        return samples, rows

    samples, rows = asyncio.run(main())
    assert [sample["y"].tolist() for sample in samples] == [[2.0 * i] * 4 for i in range(100)]
    assert rows["y"].tolist() == [[2, 2]] * 3


def test_leaving_the_context_closes_the_client(triton, name):
    bind_double(triton, name)
    with triton.client(name) as client:
        assert client.infer_sample(np.array([1], np.float32))["y"].tolist() == [2]
    for use in (lambda: client.infer_sample([1]), lambda: client.stream_sample([1]), lambda: client.model_config):
        with pytest.raises(PyTritonClientClosedError, match=f"The client of model '{name}' is closed; create another"):
            use()


def test_leaving_the_asyncio_context_closes_the_client(triton, name):
    bind_double(triton, name)

    async def use():
        async with await triton.aclient(name) as client:
            assert (await client.infer_sample(np.array([1], np.float32)))["y"].tolist() == [2]
        with pytest.raises(PyTritonClientClosedError, match="is closed"):
            await client.infer_sample([1])

    asyncio.run(use())


def test_text(triton, name):
    @batch
    def greet(who):
        return {"greeting": np.char.add(b"hello ", who.astype("S"))}

    tensors = [Tensor(name="who", dtype=bytes, shape=(1,))], [Tensor(name="greeting", dtype=bytes, shape=(1,))]
    triton.bind(name, greet, *tensors, config=ModelConfig(max_batch_size=4))
    assert triton.client(name).infer_sample(["wörld"])["greeting"].tolist() == ["hello wörld".encode()]


def test_threads_share_a_client(triton, name):
    bind_double(triton, name)
    client = triton.client(name)
    wrong = []

    def send(number):
        for i in range(50):
            x = np.array([number, i], np.float32)
            if client.infer_sample(x)["y"].tolist() != [2 * number, 2 * i]:
                wrong.append((number, i))

    threads = [threading.Thread(target=send, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert wrong == []


def test_large_arrays(triton, name):
    bind_double(triton, name)
    x = np.arange(4_000_000, dtype=np.float32)
    np.testing.assert_array_equal(triton.client(name).infer_sample(x)["y"], x * 2)


def test_stream(triton, name):
    bind_counter(triton, name)
    client = triton.client(name)
    assert [response["i"].tolist() for response in client.stream_sample(np.array([3], np.int32))] == [[0], [1], [2]]
    rows = list(client.stream_batch(np.array([[2], [2]], np.int32)))
    assert [response["i"].tolist() for response in rows] == [[[0], [0]], [[1], [1]]]


def test_asyncio_stream(triton, name):
    bind_counter(triton, name)

    async def main():
        client = await triton.aclient(name)
        streams = [client.stream_sample(np.array([20], np.int32)) for _ in range(20)]
        return await asyncio.gather(*map(collect, streams))

    async def collect(stream):
        return [int(response["i"][0]) async for response in stream]

    assert asyncio.run(main()) == [list(range(20))] * 20


def test_error_of_a_model(triton, name):
    @batch
    def fail(x):
        raise ValueError("no such luck")

    bind_double(triton, name, fail)
    with pytest.raises(PyTritonClientInferenceServerError, match="no such luck"):
        triton.client(name).infer_sample(np.ones(1, np.float32))

    async def main():
        client = await triton.aclient(name)
        await client.infer_sample(np.ones(1, np.float32))

    with pytest.raises(PyTritonClientInferenceServerError, match="no such luck"):
        asyncio.run(main())


def test_inputs_are_checked_before_they_are_sent(triton, name):
    bind_double(triton, name)
    client = triton.client(name)
    with pytest.raises(PyTritonClientValueError, match="dtype"):
        client.infer_sample(np.ones(1))
    with pytest.raises(PyTritonClientValueError, match="z"):
        client.infer_sample(z=np.ones(1, np.float32))
    assert triton.client(name, convert_dtypes=True).infer_sample(np.ones(1, np.int16))["y"].tolist() == [2]


def test_model_without_batching(triton, name):
    triton.bind(
        name, lambda requests: [{"y": r["x"] * 2} for r in requests], NUMBERS, DOUBLED, config=serving.NO_BATCHING
    )
    client = triton.client(name)
    assert client.infer_sample(np.ones(2, np.float32))["y"].tolist() == [2, 2]
    with pytest.raises(PyTritonClientModelDoesntSupportBatchingError):
        client.infer_batch(np.ones((1, 2), np.float32))


def test_an_unknown_model_is_one_error_with_a_similar_name(triton, name):
    bind_double(triton, name)
    with pytest.raises(PyTritonClientModelUnavailableError, match=rf"is not found; did you mean '{name}'\?") as caught:
        triton.client(name.upper())
    assert caught.value.__cause__ is None and caught.value.__suppress_context__


def test_unknown_model(triton):
    with pytest.raises(PyTritonClientModelUnavailableError, match="'Nobody' is not ready"):
        triton.client("Nobody")


def test_without_a_server():
    triton = serving.running_triton()
    triton.stop()
    with pytest.raises(PyTritonClientInferenceServerError, match=r"call run\(\) or serve\(\) first"):
        triton.client("Nobody")


@pytest.mark.parametrize("is_async", [False, True])
def test_timeout_cancels_the_request(triton, name, is_async):
    wait, _, release = waiting_function()
    bind_double(triton, name, wait)

    async def main():
        client = await triton.aclient(name, inference_timeout_s=0.2)
        await client.infer_sample(np.ones(1, np.float32))

    try:
        with pytest.raises(PyTritonClientTimeoutError, match=r"within 0\.2 s"):
            asyncio.run(main()) if is_async else triton.client(name).infer_sample(np.ones(1, np.float32), timeout_s=0.2)
    finally:
        release.set()


def test_cancelled_task_cancels_the_request(triton, name):
    entered, cancelled = threading.Event(), threading.Event()

    async def wait(requests):
        entered.set()
        try:
            await asyncio.sleep(LIMIT_S)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    bind_double(triton, name, wait)

    async def main():
        client = await triton.aclient(name)
        task = asyncio.create_task(client.infer_sample(np.ones(1, np.float32)))
        await asyncio.to_thread(entered.wait, LIMIT_S)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    asyncio.run(main())
    assert cancelled.wait(LIMIT_S)


def test_rebinding_keeps_clients(triton, name):
    bind_double(triton, name)
    client, other = triton.client(name), triton.client(name)
    assert client.infer_sample(np.ones(1, np.float32))["y"].tolist() == [2]
    bind_double(triton, name, triple)
    assert client.infer_sample(np.ones(1, np.float32))["y"].tolist() == [3]
    triton.bind(name, double, [Tensor(name="x", dtype=np.float32, shape=(3,))], DOUBLED, config=ModelConfig())
    with pytest.raises(PyTritonClientValueError, match="shape"):
        other.infer_sample(np.ones(1, np.float32))


def test_rebinding_one_model_loses_no_request_to_another(triton, name):
    wait, entered, release = waiting_function()
    bind_double(triton, name, wait)
    bind_double(triton, f"{name}_other")
    results = []
    client = triton.client(name)
    thread = threading.Thread(target=lambda: results.append(client.infer_sample(np.ones(1, np.float32))))
    thread.start()
    assert entered.wait(LIMIT_S)
    bind_double(triton, f"{name}_other", triple)
    release.set()
    thread.join(LIMIT_S)
    assert results[0]["y"].tolist() == [1]


def test_model_in_a_process_of_its_own(triton, name):
    triton.bind(name, ProcessInstance(processes.function), NUMBERS, DOUBLED, config=ModelConfig(max_batch_size=4))
    assert triton.client(name).infer_sample(np.ones(1, np.float32))["y"].tolist() == [2]


def test_requests_wait_for_a_restart_of_the_server():
    with serving.running_triton() as triton:
        bind_double(triton, "Double")
        triton.run()
        client = triton.client("Double")
        client.infer_sample(np.ones(1, np.float32))
        for _ in range(2):
            server_of(triton).kill()
            deadline = time.monotonic() + LIMIT_S
            while True:  # the request that finds the channel closed may have been in flight
                try:
                    assert client.infer_sample(np.ones(1, np.float32))["y"].tolist() == [2]
                    break
                except PyTritonClientInferenceServerError:
                    assert time.monotonic() < deadline


def test_server_that_still_loads_other_models_after_a_restart_is_busy():
    gate, calls = threading.Event(), []

    @batch
    def slow(x):
        calls.append(len(x))
        assert len(calls) == 1 or gate.wait(LIMIT_S)
        return {"y": x}

    zeros = WarmupInput(np.float32, (1,), zero_data=True)
    with serving.running_triton() as triton:
        bind_double(triton, "Double")
        bind_double(triton, "Slow", slow, model_warmup=[ModelWarmup("zeros", 1, {"x": zeros}, 1)])
        triton.run()
        client = triton.client("Double")
        client.infer_sample(np.ones(1, np.float32))
        server_of(triton).kill()
        serving.wait_until(lambda: len(calls) == 2, LIMIT_S)

        with pytest.raises(PyTritonClientInferenceServerError, match="Server not ready") as caught:
            client.infer_sample(np.ones(1, np.float32))
        assert caught.value.failure is Failure.BUSY

        gate.set()
        serving.wait_until(lambda: serving.is_ready(triton), LIMIT_S)
        assert client.infer_sample(np.ones(1, np.float32))["y"].tolist() == [2]


def test_stop_fails_pending_requests():
    wait, entered, release = waiting_function()
    errors = []
    with serving.running_triton() as triton:
        bind_double(triton, "Wait", wait)
        triton.run()
        client = triton.client("Wait")

        def send():
            try:
                client.infer_sample(np.ones(1, np.float32))
            except PyTritonClientInferenceServerError as error:
                errors.append(error)

        thread = threading.Thread(target=send)
        thread.start()
        assert entered.wait(LIMIT_S)
        stopping = threading.Thread(target=triton.stop)
        stopping.start()
        release.set()
        stopping.join(LIMIT_S)
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        assert errors == []  # a request in flight is finished
        with pytest.raises(PyTritonClientInferenceServerError, match="is not running"):
            client.infer_sample(np.ones(1, np.float32))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([None], "model_name is None; give the model's name"),
        ([5], "model_name is 5"),
        ([""], "model_name is ''"),
        (["any", "latest"], "model_version is 'latest'; give a number"),
        (["any", 1.5], r"model_version is 1\.5"),
    ],
    ids=repr,
)
def test_invalid_names_and_versions(triton, arguments, message):
    with pytest.raises(PyTritonClientValueError, match=message):
        triton.client(*arguments)


def test_a_version_is_a_number_or_its_text(triton, name):
    bind_double(triton, name)
    for version in (1, "1", None):
        assert triton.client(name, version).infer_sample([1])["y"] == [2]


def test_mistakes_are_described_as_by_other_clients(triton, name):
    bind_double(triton, name)
    client = triton.client(name)
    mistakes = [
        (
            client.infer_sample,
            [[1]],
            {"timeout": 3},
            r"There is no input 'timeout' \(did you mean the option timeout_s\?\)",
        ),
        (client.infer_sample, [[1]], {"headers": {}}, "There is no input 'headers': model"),
        (client.infer_sample, [{"x": [1]}], {}, "A dictionary was given by position"),
        (client.infer_batch, [[[1], [1, 2]]], {}, "its rows have different lengths, such as 1 and 2"),
        (
            client.infer_batch,
            [np.zeros((17, 2), np.float32)],
            {},
            "The batch has 17 rows, and model .* takes 16 at once",
        ),
        (client.infer_sample, [[1]], {"parameters": {"priority": 1}}, "is a reserved parameter"),
    ]
    for infer, inputs, named, message in mistakes:
        with pytest.raises(PyTritonClientInputError, match=message) as caught:
            infer(*inputs, **named)
        assert caught.value.__cause__ is None


def test_a_stream_requested_as_one_response(triton, name):
    bind_counter(triton, name)
    with pytest.raises(PyTritonClientInferenceServerError, match="use stream_sample or stream_batch") as caught:
        triton.client(name).infer_sample([3])
    assert caught.value.__cause__ is None


def test_a_client_cannot_be_copied_or_pickled(triton, name):
    bind_double(triton, name)
    with pytest.raises(TypeError, match="InProcessClient cannot be copied, or sent to another process"):
        pickle.dumps(triton.client(name))
