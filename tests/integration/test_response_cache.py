"""Triton's response cache, if both server and model enable it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from datatypes import NUMBERS, assert_same_bits, identity_of, samples_of
from serving import (
    FLOATS_IN,
    Background,
    at_once,
    bind_floats,
    counted_statistics_of,
    infer_json,
    json_floats,
    metrics_of,
    running_triton,
    send_floats,
    statistics_of,
    wait_until,
)

from pytriton.decorators import batch
from pytriton.exceptions import PyTritonInvalidOperationError
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.triton import RemoteTriton

CACHE = ["local,size=16777216"]
CACHED = ModelConfig(max_batch_size=8, response_cache=True)


@pytest.fixture(scope="module")
def triton():
    """A server with a response cache."""
    with running_triton(cache_config=CACHE) as triton:
        triton.run()
        yield triton


class Times:
    """An inference callable that multiplies, and keeps what it was called with."""

    def __init__(self, factor):
        self.factor = factor
        self.calls = []

    def __call__(self, requests):
        self.calls.append([request["x"].tolist() for request in requests])
        return [[request["x"] * self.factor] for request in requests]


def bind_cached(triton, name, infer, **arguments):
    bind_floats(triton, name, infer, **{"config": CACHED, **arguments})


def counts(triton, name):
    """The number of requests of a model that were served from the cache, and of those that were not."""
    statistics = statistics_of(triton, name)["inference_stats"]
    return statistics["cache_hit"]["count"], statistics["cache_miss"]["count"]


def test_a_repeated_request_does_not_reach_the_callable(triton, client, name):
    infer = Times(2)
    bind_cached(triton, name, infer)
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)

    for _ in range(3):
        assert client.infer(name, {"x": x})["y"].tolist() == (x * 2).tolist()
    assert infer.calls == [[x.tolist()]]


def test_another_value_reaches_the_callable(triton, client, name):
    infer = Times(2)
    bind_cached(triton, name, infer)

    for value in (1, 2, 1, 2, -1):
        assert client.infer(name, {"x": np.full((1, 2), value, np.float32)})["y"].tolist() == [[value * 2] * 2]
    assert infer.calls == [[[[value, value]]] for value in (1, 2, -1)]


def test_both_protocols_share_the_cache(triton, http_client, grpc_client, name):
    infer = Times(2)
    bind_cached(triton, name, infer)
    x = np.ones((1, 1), np.float32)

    responses = [each.infer(name, {"x": x})["y"].item() for each in (grpc_client, http_client)]

    assert [*responses, *send_floats(triton, name, [1])] == [2, 2, 2]
    assert len(infer.calls) == 1


def test_a_cached_response_has_the_id_of_its_own_request(triton, name):
    bind_cached(triton, name, Times(2))

    for each in ("first", "second"):
        assert infer_json(triton, name, [json_floats([1])], id=each)[1]["id"] == each


@pytest.mark.parametrize("response_cache", [True, False])
def test_statistics_and_metrics_count_hits(triton, name, response_cache):
    infer = Times(2)
    bind_cached(triton, name, infer, config=ModelConfig(response_cache=response_cache))
    for value in (1, 1, 1, 2):
        assert send_floats(triton, name, [value]) == [value * 2]

    hits, misses = (2, 2) if response_cache else (0, 0)
    assert len(infer.calls) == 4 - hits, "a model is cached where it says so"
    wait_until(lambda: counts(triton, name) == (hits, misses))
    statistics = counted_statistics_of(triton, name, 4)
    assert (statistics["inference_count"], statistics["execution_count"]) == (4 - hits, 4 - hits)
    metrics = metrics_of(triton, name)
    assert metrics["nv_cache_num_hits_per_model"] == hits
    assert metrics["nv_cache_num_misses_per_model"] == misses
    assert metrics["nv_inference_request_success"] == 4


def test_without_a_cache_of_the_server_no_model_is_cached():
    with running_triton() as triton:
        infer = Times(2)
        bind_cached(triton, "plain", infer)
        triton.run()

        assert [send_floats(triton, "plain", [1]) for _ in range(3)] == [[2]] * 3
        assert len(infer.calls) == 3


@pytest.mark.parametrize("dtype", NUMBERS)
def test_cached_numbers_equal_those_of_the_callable_bit_by_bit(triton, client, name, dtype):
    seen = identity_of(triton, name, dtype, config=CACHED)
    sent = samples_of(dtype)

    for _ in range(2):
        assert_same_bits(client.infer(name, {"x": sent})["y"], sent)
    assert len(seen) == 1


def test_cached_bytes_equal_those_of_the_callable(triton, client, name):
    seen = identity_of(triton, name, bytes, config=CACHED)
    sent = np.array([[b"", "grüße".encode(), b"\0"], [b"\0\xff" * 5_000, b"x", b""]], object)

    for _ in range(2):
        assert client.infer(name, {"x": sent})["y"].tolist() == sent.tolist()
    assert len(seen) == 1


def test_all_outputs_are_cached_with_their_shapes(triton, client, name):
    calls = []

    @batch
    def infer(x):
        calls.append(len(x))
        return {"sums": x.sum(axis=1), "texts": x.astype(str).astype(object), "images": x[:, :, None, None] > 1}

    outputs = [
        Tensor(name="sums", shape=(), dtype=np.float32),
        Tensor(name="texts", shape=(-1,), dtype=str),
        Tensor(name="images", shape=(-1, 1, 1), dtype=bool),
    ]
    triton.bind(name, infer, FLOATS_IN, outputs, config=CACHED)
    x = np.array([[1, 2, 3], [4, 5, 6]], np.float32)

    fresh, cached = (client.infer(name, {"x": x}) for _ in range(2))

    assert calls == [2]
    assert list(cached) == list(fresh) == ["sums", "texts", "images"]
    for output, array in fresh.items():
        assert (cached[output].dtype, cached[output].tolist()) == (array.dtype, array.tolist())


def test_different_bytes_are_distinguished(triton, client, name):
    calls = []

    @batch
    def upper(x):
        calls.append(x.tolist())
        return [np.char.upper(x.astype(bytes)).astype(object)]

    tensors = {each: [Tensor(name=each, shape=(2,), dtype=bytes)] for each in "xy"}
    triton.bind(name, upper, tensors["x"], tensors["y"], config=CACHED)

    for texts in ([b"ab", b"c"], [b"a", b"bc"], [b"abc", b""], [b"ab", b"c"]):
        received = client.infer(name, {"x": np.array([texts], object)})["y"]
        assert received.tolist() == [[text.upper() for text in texts]]
    assert len(calls) == 3


def test_a_model_without_batching_is_cached(triton, client, name):
    infer = Times(2)
    bind_cached(triton, name, infer, config=ModelConfig(batching=False, response_cache=True))

    for _ in range(2):
        assert client.infer(name, {"x": np.array([1, 2], np.float32)})["y"].tolist() == [2, 4]
    assert len(infer.calls) == 1


def test_models_and_versions_have_their_own_cached_responses(triton, name):
    bind_cached(triton, f"{name}_a", Times(2))
    bind_cached(triton, f"{name}_b", Times(3))
    bind_cached(triton, f"{name}_b", Times(5), model_version=2)

    for _ in range(2):
        assert send_floats(triton, f"{name}_a", [1]) == [2]
        assert [send_floats(triton, f"{name}_b", [1], version=version) for version in (1, 2)] == [[3], [5]]


def test_requests_of_a_batch_are_cached_one_by_one(triton, grpc_client, name):
    infer = Times(2)
    batcher = DynamicBatcher(max_queue_delay_microseconds=100_000)
    bind_cached(triton, name, infer, config=ModelConfig(max_batch_size=8, batcher=batcher, response_cache=True))

    def send(number):
        return grpc_client.infer(name, {"x": np.full((1, 1), number, np.float32)})["y"].item()

    assert at_once(8, send) == [2 * number for number in range(8)]
    calls = len(infer.calls)
    assert at_once(8, send) == [2 * number for number in range(8)]
    assert len(infer.calls) == calls


def test_a_full_cache_drops_the_least_recently_used_response():
    with running_triton(cache_config=["local,size=65536"]) as triton:
        infer = Times(1)
        bind_cached(triton, "big", infer)
        triton.run()
        for value in range(20):
            assert send_floats(triton, "big", [value] * 4_000) == [value] * 4_000  # 16 kB
        assert len(infer.calls) == 20

        send_floats(triton, "big", [19] * 4_000)
        assert len(infer.calls) == 20
        assert send_floats(triton, "big", [0] * 4_000) == [0] * 4_000
        assert len(infer.calls) == 21


def test_a_response_larger_than_the_cache_is_not_cached():
    with running_triton(cache_config=["local,size=4096"]) as triton:
        infer = Times(1)
        bind_cached(triton, "big", infer)
        triton.run()
        for _ in range(2):
            assert send_floats(triton, "big", [1] * 4_000) == [1] * 4_000
        assert len(infer.calls) == 2


def test_a_warm_up_does_not_fill_the_cache(triton, name):
    infer = Times(2)
    warmup = ModelWarmup("zeros", 1, {"x": WarmupInput(np.float32, (2,), zero_data=True)}, 2)
    bind_cached(triton, name, infer, config=ModelConfig(response_cache=True, model_warmup=[warmup]))

    assert send_floats(triton, name, [0, 0]) == [0, 0]
    assert len(infer.calls) == 3
    wait_until(lambda: counts(triton, name) == (0, 1))


class FailsAtFirst:
    """Fails in its first call, and responds from then on."""

    def __init__(self):
        self.calls = 0

    def __call__(self, requests):
        self.calls += 1
        if self.calls == 1:
            raise ValueError("not yet")
        return requests


def test_an_error_is_not_cached(triton, client, name):
    infer = FailsAtFirst()
    bind_cached(triton, name, infer)
    x = np.ones((1, 1), np.float32)

    with pytest.raises(Exception, match="not yet"):
        client.infer(name, {"x": x})
    assert client.infer(name, {"x": x})["y"].item() == 1
    assert client.infer(name, {"x": x})["y"].item() == 1
    assert infer.calls == 2


def test_a_failed_request_of_a_batch_is_not_cached(triton, grpc_client, name):
    failing = {3.0}

    def infer(requests):
        return [ValueError("not yet") if request["x"].item() in failing else [request["x"] + 1] for request in requests]

    bind_cached(triton, name, infer)

    def send(number):
        try:
            return grpc_client.infer(name, {"x": np.full((1, 1), number, np.float32)})["y"].item()
        except Exception as error:
            return str(error)

    responses = at_once(6, send)
    assert "not yet" in responses.pop(3)
    assert responses == [1, 2, 3, 5, 6]
    failing.clear()
    assert [send(number) for number in range(6)] == [1, 2, 3, 4, 5, 6]


# A rebound model, and the requests that its predecessor has served.


def test_a_rebound_model_does_not_return_responses_of_the_old_callable(triton, client, name):
    x = np.ones((1, 1), np.float32)
    for factor in (2, 3, 5):
        bind_cached(triton, name, Times(factor))
        for _ in range(2):
            assert client.infer(name, {"x": x})["y"].item() == factor


def test_a_late_response_of_an_old_callable_is_not_cached_for_the_new_one(triton, grpc_client, name):
    entered, gate = threading.Event(), threading.Event()

    def slow(requests):
        entered.set()
        assert gate.wait(30)
        return [[request["x"] * 2] for request in requests]

    bind_cached(triton, name, slow)
    late = Background(lambda: send_floats(triton, name, [1]))
    try:
        assert entered.wait(30)
        bind_cached(triton, name, Times(3))
    finally:
        gate.set()
    assert late.finish().result == [2]

    assert [send_floats(triton, name, [1]) for _ in range(3)] == [[3]] * 3


def test_a_model_rebound_with_other_outputs_returns_these(triton, name):
    bind_cached(triton, name, Times(2))
    assert send_floats(triton, name, [1]) == [2]

    outputs = [Tensor(name="z", shape=(-1,), dtype=np.int64)]
    triton.bind(name, batch(lambda x: {"z": x.astype(np.int64) + 4}), FLOATS_IN, outputs, config=CACHED)

    for _ in range(2):
        _, response = infer_json(triton, name, [json_floats([1])])
        assert [(output["name"], output["data"]) for output in response["outputs"]] == [("z", [5])]


def test_a_failed_binding_keeps_the_cached_responses_of_the_earlier_one(triton, name, monkeypatch):
    infer = Times(2)
    bind_cached(triton, name, infer)
    assert send_floats(triton, name, [1]) == [2]

    with monkeypatch.context() as patch:
        patch.setattr("pytriton.models.store.model_config_pbtxt", lambda *_, **__: "nonsense {")
        with pytest.raises(PyTritonInvalidOperationError):
            bind_cached(triton, name, Times(3))

    assert send_floats(triton, name, [1]) == [2]
    assert len(infer.calls) == 1


def test_a_process_does_not_return_cached_responses_of_another_process(triton, name):
    for factor in (2, 3):
        url, token = f"localhost:{triton.config.http_port}", triton.get_access_token()
        with RemoteTriton(url=url, access_token=token) as remote:
            bind_cached(remote, name, Times(factor))
            assert [send_floats(triton, name, [1]) for _ in range(2)] == [[factor]] * 2
        wait_until(lambda: infer_json(triton, name, [json_floats([1])])[0] != 200)


def test_a_restarted_server_has_an_empty_cache():
    triton = running_triton(cache_config=CACHE)
    infer = Times(2)
    bind_cached(triton, "again", infer)
    for calls in (1, 2):
        with triton:
            triton.run()
            assert [send_floats(triton, "again", [1]) for _ in range(3)] == [[2]] * 3
            assert len(infer.calls) == calls
