"""Large tensors through shared memory."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import threading

import numpy as np
import pytest
from client_kinds import PROTOCOLS, open_client, open_triton, url_of
from serving import (
    Script,
    bind_floats,
    client_of,
    held_model,
    infer_json,
    json_floats,
    shared_memory,
    statistics_of,
    wait_until,
)

from pytriton.client import (
    AsyncioModelClient,
    DecoupledModelClient,
    Failure,
    ModelClient,
    PyTritonClientError,
    PyTritonClientInferenceServerError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
)
from pytriton.model_config import ModelConfig, Tensor

LARGE = np.random.default_rng(0).random(200_000, np.float32)


def echo(requests):
    return [{"y": request["x"]} for request in requests]


def regions(triton):
    """The regions of clients that the server knows."""
    with client_of(triton) as client:
        return {region["name"] for region in client.raw.get_system_shared_memory_status()}


def files_of(pid):
    """What a client's process has in /dev/shm."""
    return [name for name in shared_memory() if name.startswith(f"pytriton-{pid}-")]


def test_large_tensors_are_returned_unchanged(triton, name, kind, url):
    bind_floats(triton, name, echo)
    with open_client(kind, url, name, shared_memory=True) as client:
        for factor in range(4):
            assert (client.infer_sample(factor * LARGE)["y"] == factor * LARGE).all()
            assert (client.infer_batch(factor * LARGE.reshape(4, -1))["y"] == factor * LARGE.reshape(4, -1)).all()
        assert client.infer_sample([1])["y"] == [1]


def test_tensors_of_all_sorts_in_one_request(triton, name, url):
    specs = [
        ("text", bytes, (-1,)),
        ("small", np.int16, (2,)),
        ("large", np.float64, (-1, 3)),
        ("fixed", np.int8, (70_000,)),
    ]
    inputs = [Tensor(shape, dtype, each) for each, dtype, shape in specs]
    outputs = [Tensor(shape, dtype, f"{each}_out") for each, dtype, shape in specs]
    triton.bind(name, lambda requests: [{f"{k}_out": v for k, v in each.items()} for each in requests], inputs, outputs)
    sent = {
        "text": np.array([b"a" * 100_000, b""], object),
        "small": np.int16([1, -2]),
        "large": np.arange(90_000, dtype=np.float64).reshape(-1, 3)[:, ::-1],
        "fixed": np.ones(70_000, np.int8),
    }
    with ModelClient(url, name, shared_memory=True) as client:
        for _ in range(3):
            response = client.infer_sample(**sent)
            for each, array in sent.items():
                assert (response[f"{each}_out"] == array).all()
                assert response[f"{each}_out"].shape == array.shape
        only = client.infer_sample(**sent, outputs=["fixed_out"])
        assert list(only) == ["fixed_out"]


def test_later_responses_do_not_change_an_array(triton, name, url):
    bind_floats(triton, name, echo)
    with ModelClient(url, name, shared_memory=True) as client:
        responses = [client.infer_sample(number * LARGE)["y"] for number in range(6)]
        for number, response in enumerate(responses):
            assert (response == number * LARGE).all()
    for number, response in enumerate(responses):
        assert (response == number * LARGE).all()
        assert not response.flags.writeable


def test_memory_is_reused(triton, name, url):
    bind_floats(triton, name, echo)
    before = regions(triton)
    with ModelClient(url, name, shared_memory=True) as client:
        for _ in range(10):
            client.infer_sample(LARGE)
        assert len(regions(triton) - before) == 2  # inputs and outputs
        kept = [client.infer_sample(LARGE) for _ in range(3)]
        assert len(regions(triton) - before) == 4  # the first one lies where the last one lay
        del kept
        client.infer_sample(LARGE)
        assert len(regions(triton) - before) == 4


def test_memory_has_no_name_and_is_returned(triton, name, url):
    bind_floats(triton, name, echo)
    before = regions(triton)
    client = ModelClient(url, name, shared_memory=True)
    client.infer_sample(LARGE)
    client.infer_sample(LARGE)
    assert not files_of(os.getpid())
    assert regions(triton) > before
    client.close()
    assert regions(triton) == before


def test_a_client_that_is_killed_leaves_no_file(triton, name, url, tmp_path):
    bind_floats(triton, name, echo)
    code = f"""
import numpy as np
from pytriton.client import ModelClient
client = ModelClient({url!r}, {name!r}, shared_memory=True)
for _ in range(2):
    client.infer_sample(np.ones(100_000, np.float32))
print("asked", flush=True)
input()
"""
    with Script(tmp_path, code) as script:
        assert script.line() == "asked"
        script.process.kill()
        script.wait()
        assert not files_of(script.pid)


def test_a_dropped_client_returns_its_memory(triton, name, url):
    bind_floats(triton, name, echo)
    before = regions(triton)
    client = ModelClient(url, name, shared_memory=True)
    client.infer_sample(LARGE)
    assert regions(triton) > before
    del client
    gc.collect()
    assert regions(triton) == before


def test_tasks_do_not_share_memory_that_is_in_use(triton, name, url):
    bind_floats(triton, name, echo)

    async def send_request():
        async with AsyncioModelClient(url, name, shared_memory=True) as client:
            for _ in range(3):
                responses = await asyncio.gather(*[client.infer_sample(number * LARGE) for number in range(8)])
                for number, response in enumerate(responses):
                    assert (response["y"] == number * LARGE).all()

    asyncio.run(send_request())


def test_an_output_of_unknown_size(triton, name, url):
    """The first one that is larger than those before is requested again, over the socket, like all later ones."""

    def repeat(requests):
        return [{"y": np.tile(request["x"], (1, int(request["x"][0, 0])))} for request in requests]

    bind_floats(triton, name, repeat)
    values = np.ones(50_000, np.float32)
    with ModelClient(url, name, shared_memory=True) as client:
        for factor in (1, 1, 3, 2, 5):
            values[0] = factor
            assert (client.infer_sample(values)["y"] == np.tile(values, factor)).all()
    wait_until(lambda: statistics_of(triton, name)["inference_count"] >= 5)
    assert statistics_of(triton, name)["inference_count"] == 5
    assert statistics_of(triton, name)["inference_stats"]["fail"]["count"] == 1


def test_memory_of_a_request_that_timed_out_is_not_used_by_another(triton, name, url):
    bind_floats(triton, name, echo)
    slow = f"{name}_slow"
    entered, gate = held_model(triton, slow)
    before = regions(triton)
    with ModelClient(url, slow, shared_memory=True) as client:
        with pytest.raises(PyTritonClientTimeoutError):
            client.infer_sample(LARGE, timeout_s=0.6)
        assert entered.wait(10)
        known = regions(triton) - before
        assert (len(known), client._session.servers[0].regions._free) == (1, [])
        gate.set()
        assert (client.infer_sample(2 * LARGE)["y"] == 2 * LARGE).all()
        assert len(regions(triton) - before) > 1


def test_after_an_error_of_the_model_the_memory_is_reused(triton, name, url):
    def fail(requests):
        if requests[0]["x"][0, 0] < 0:
            raise ValueError("negative")
        return echo(requests)

    bind_floats(triton, name, fail)
    before = regions(triton)
    with ModelClient(url, name, shared_memory=True) as client:
        for _ in range(3):
            client.infer_sample(abs(LARGE) + 1)
            with pytest.raises(PyTritonClientInferenceServerError, match="negative"):
                client.infer_sample(-abs(LARGE) - 1)
        assert len(regions(triton) - before) == 2


def test_memory_is_registered_again_after_a_restart():
    """Clients of both protocols at once, for it takes a while."""
    ports, clients = {}, []
    for round_number in range(2):
        with open_triton(**ports) as triton:
            bind_floats(triton, "floats", echo)
            triton.run()
            if round_number == 0:
                ports = {"http_port": triton.config.http_port, "grpc_port": triton.config.grpc_port}
                clients = [ModelClient(url_of(triton, each), "floats", shared_memory=True) for each in PROTOCOLS]
            for client in clients * 2:
                assert (client.infer_sample(LARGE)["y"] == LARGE).all()
    for client in clients:
        client.close()


def test_a_server_that_does_not_share_the_memory(triton, name, kind, url, tmp_path, monkeypatch):
    bind_floats(triton, name, echo)
    monkeypatch.setattr("pytriton.client.core.shared_memory._FOLDER", tmp_path)  # as in another container
    with open_client(kind, url, name, shared_memory=True) as client:
        with pytest.raises(
            PyTritonClientInferenceServerError, match="cannot open the client's shared memory; is it on this host"
        ) as caught:
            client.infer_sample(LARGE)
        assert caught.value.failure is Failure.REFUSED
        assert client.infer_sample([1])["y"] == [1]
    assert not list(tmp_path.iterdir())


def test_exhausted_shared_memory(triton, name, url):
    bind_floats(triton, name, echo)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with ModelClient(url, name, shared_memory=True) as client:
        client.infer_sample([1])
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
        try:
            with pytest.raises(PyTritonClientError, match=r"no room for .* bytes of shared memory in /dev/shm"):
                client.infer_sample(LARGE)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (client.infer_sample(LARGE)["y"] == LARGE).all()


def test_streams_do_not_go_through_shared_memory():
    with pytest.raises(PyTritonClientValueError, match="omit shared_memory"):
        DecoupledModelClient("grpc://localhost", "any", shared_memory=True)


def test_many_threads_share_the_memory(triton, name, url):
    bind_floats(triton, name, echo, config=ModelConfig(max_batch_size=8))
    errors = []

    def send_request(number):
        for _ in range(5):
            if not (client.infer_sample(number * LARGE)["y"] == number * LARGE).all():
                errors.append(number)

    with ModelClient(url, name, shared_memory=True) as client:
        threads = [threading.Thread(target=send_request, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert not errors


def test_the_server_still_works_afterwards(triton, name):
    bind_floats(triton, name, echo)
    assert infer_json(triton, name, [json_floats([1, 2])])[0] == 200
