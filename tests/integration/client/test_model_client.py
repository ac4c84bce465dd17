"""What a client does with a server in good health; where it is the same of all of them, of each kind."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
import time

import ml_dtypes
import numpy as np
import pytest
from asking import (
    CLASSES,
    STREAM_KINDS,
    asking,
    asking_with,
    config_for,
    every_kind,
    every_kind_that_loads,
    open_triton,
    url_of,
)
from serving import (
    HOST,
    NO_BATCHING,
    Background,
    at_once,
    bind_floats,
    held_model,
    metrics_of,
    request_json,
    statistics_of,
    wait_until,
)

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    Failure,
    FuturesModelClient,
    ModelClient,
    PyTritonClientClosedError,
    PyTritonClientInferenceServerError,
    PyTritonClientInvalidUrlError,
    PyTritonClientModelDoesntSupportBatchingError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
    PyTritonClientValueError,
    TLSConfig,
)
from pytriton.decorators import batch, sample
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy, Tensor

ALL_DTYPES = [
    np.bool_,
    np.uint8,
    np.uint16,
    np.uint32,
    np.uint64,
    np.int8,
    np.int16,
    np.int32,
    np.int64,
    np.float16,
    np.float32,
    np.float64,
    ml_dtypes.bfloat16,
]


@batch
def add_sub(a, b):
    return {"add": a + b, "sub": a - b}


def bind_add_sub(triton, name, **arguments):
    triton.bind(
        name,
        add_sub,
        [Tensor(name="a", dtype=np.float32, shape=(-1,)), Tensor(name="b", dtype=np.float32, shape=(-1,))],
        [Tensor(name="add", dtype=np.float32, shape=(-1,)), Tensor(name="sub", dtype=np.float32, shape=(-1,))],
        **arguments,
    )


def echo(requests):
    return [{"y": request["x"]} for request in requests]


@pytest.fixture
def client(triton, name, kind, url):
    """A client of a model that adds and subtracts; of each kind and each protocol in turn, or as `every_kind` says."""
    bind_add_sub(triton, name, config=config_for(kind))
    with asking(kind, url, name) as client:
        yield client


@every_kind
def test_a_sample_by_name_and_by_position(client):
    for answer in (client.infer_sample(a=[1, 2], b=[3, 4]), client.infer_sample([1, 2], [3, 4])):
        assert {key: array.tolist() for key, array in answer.items()} == {"add": [4, 6], "sub": [-2, -2]}
        assert answer["add"].dtype == np.float32


@every_kind
def test_a_batch_by_name_and_by_position(client):
    a, b = np.float32([[1, 2], [3, 4]]), np.float32([[1, 1], [1, 1]])
    for answer in (client.infer_batch(b=b, a=a), client.infer_batch(a, b)):
        assert answer["sub"].tolist() == [[0, 1], [2, 3]]


@every_kind
def test_only_the_outputs_that_are_wanted(client):
    assert list(client.infer_sample([1], [2], outputs=["sub"])) == ["sub"]
    with pytest.raises(PyTritonClientValueError, match=r"There is no output 'mul': model .* has 'add': FP32"):
        client.infer_sample([1], [2], outputs=["mul"])


@every_kind
def test_a_model_without_batching(triton, name, kind, url):
    bind_floats(triton, name, echo, config=config_for(kind, batching=False))
    with asking(kind, url, name) as client:
        assert client.infer_sample(x=[1, 2])["y"].tolist() == [1, 2]
        with pytest.raises(PyTritonClientModelDoesntSupportBatchingError, match="use infer_sample"):
            client.infer_batch(x=[[1, 2]])


@every_kind
def test_what_does_not_fit_is_refused_before_it_is_sent(client, triton, name):
    client.infer_sample([1], [2])
    for inputs, named, message in [
        ([], {}, r"No input was given: model '\w+' takes 'a': FP32 \(-1,\), 'b': FP32 \(-1,\)"),
        ([[1], [2]], {"a": [1]}, "either by position or by name"),
        ([[1], [2], [3]], {}, "3 inputs were given"),
        ([[1]], {}, "The input 'b' is missing"),
        ([], {"a": [1], "c": [2]}, "There is no input 'c'"),
        ([], {"a": [1], "b": np.float64([1])}, r"Input 'b' .* is FP32 \(-1,\).* has dtype float64"),
        ([[[1]], [1]], {}, r"is FP32 \(-1,\) without the batch dimension, and the value has shape \(1, 1\)"),
    ]:
        with pytest.raises(PyTritonClientValueError, match=message):
            client.infer_sample(*inputs, **named)
    with pytest.raises(PyTritonClientValueError, match="batches of different sizes: 1 of 'a', 2 of 'b'"):
        client.infer_batch([[1]], [[1], [2]])
    wait_until(lambda: statistics_of(triton, name)["inference_count"] == 1)


@pytest.mark.parametrize("dtype", ALL_DTYPES, ids=lambda dtype: np.dtype(dtype).name)
def test_every_dtype_comes_back_as_it_was_sent(triton, name, url, dtype):
    triton.bind(name, echo, [Tensor((-1, 2), dtype, "x")], [Tensor((-1, 2), dtype, "y")])
    values = np.arange(8).reshape(2, 2, 2).astype(dtype)
    with ModelClient(url, name) as client:
        (received,) = client.infer_batch(values).values()
    assert received.dtype == values.dtype
    assert (received == values).all()


@every_kind
def test_strings_are_encoded_as_utf8(triton, name, kind, url):
    triton.bind(name, echo, [Tensor((-1,), bytes, "x")], [Tensor((-1,), bytes, "y")], config=config_for(kind))
    texts = ["", "Grüße", "\0", "日本"]
    encoded = [text.encode() for text in texts]
    with asking(kind, url, name) as client:
        for values in (texts, np.array(texts, dtype=object), np.array(texts[1:2]), np.array([encoded[1]]), encoded):
            expected = encoded if len(values) > 1 else encoded[1:2]
            assert client.infer_sample(values)["y"].tolist() == expected
        assert client.infer_sample("Grüße")["y"].tolist() == ["Grüße".encode()]
        with pytest.raises(PyTritonClientValueError, match="holds 1, which is neither str nor bytes"):
            client.infer_sample(["a", 1])
        with pytest.raises(PyTritonClientValueError, match="cannot be encoded as UTF-8"):
            client.infer_sample("\ud800")


class WithArray:
    """A tensor of a library that knows ``__array__``."""

    def __init__(self, array):
        self._array = array

    def __array__(self, dtype=None, copy=None):
        return self._array


class WithDlpack:
    """A tensor of a library that knows DLPack."""

    def __init__(self, array):
        self._array = array

    def __dlpack__(self, **arguments):
        return self._array.__dlpack__(**arguments)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


@every_kind
def test_tensors_of_other_libraries(client):
    ones = np.ones(3, np.float32)
    answer = client.infer_sample(WithDlpack(ones), WithArray(ones))
    assert answer["add"].tolist() == [2, 2, 2]


@every_kind
def test_dtypes_are_converted_only_on_request(triton, name, kind, url):
    bind_floats(triton, name, echo, config=config_for(kind))
    with asking(kind, url, name) as strict, asking(kind, url, name, convert_dtypes=True) as lenient:
        with pytest.raises(PyTritonClientValueError, match=r"has dtype int16; use .*, or convert_dtypes=True"):
            strict.infer_sample(np.int16([1]))
        assert lenient.infer_sample(np.int16([1]))["y"].tolist() == [1]
        for client in (strict, lenient):
            with pytest.raises(PyTritonClientValueError, match="has dtype float64; if that loses nothing"):
                client.infer_sample(np.float64([1]))


@every_kind
def test_an_optional_input_may_be_left_out(triton, name, kind, url):
    inputs = [Tensor((1,), np.float32, "x"), Tensor((1,), np.float32, "bias", optional=True)]

    @sample
    def add(x, bias=None):
        return {"y": x if bias is None else x + bias}

    triton.bind(name, add, inputs, [Tensor((1,), np.float32, "y")], config=config_for(kind))
    with asking(kind, url, name) as client:
        assert client.infer_sample(1)["y"] == 1
        assert client.infer_sample(x=1, bias=None)["y"] == 1
        assert client.infer_sample(1, 2)["y"] == 3


@pytest.fixture(scope="module")
def forwarding():
    """A server that tells models of headers."""
    pattern = "x-.*"
    with open_triton(http_header_forward_pattern=pattern, grpc_header_forward_pattern=pattern) as triton:
        triton.run()
        yield triton


@every_kind
def test_what_a_request_has_besides_inputs_reaches_the_model(kind, protocol, forwarding, name):
    seen = []

    def keep(requests):
        seen.extend(requests)
        return echo(requests)

    bind_floats(forwarding, name, keep, config=config_for(kind))
    parameters = {"text": "a", "whole": 3, "part": 0.5, "flag": True, "numpy": np.int64(4)}
    headers = {"X-Number": 5, "x-part": 0.5, "x-text": "b"}
    with asking(kind, url_of(forwarding, protocol), name) as client:
        client.infer_sample([1], parameters=parameters, headers=headers, request_id="order-66")
    (request,) = seen
    assert request.request_id == "order-66"
    forwarded = {key: value for key, value in request.parameters.items() if key not in parameters}
    assert {key: request.parameters[key] for key in parameters} == parameters
    assert {key.lower(): value for key, value in forwarded.items()} == {"x-number": "5", "x-part": "0.5", "x-text": "b"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"parameters": {"a": None}}, "Parameter 'a' is None; give a string, a number or a boolean"),
        ({"parameters": {"a": [1]}}, "Parameter 'a'"),
        ({"parameters": {"priority": 1}}, "reserved parameter"),
        ({"headers": {"a": None}}, "Header 'a' is None"),
        ({"headers": {"a": "b\r\nc: d"}}, "Header 'a'"),
        ({"headers": {"a b": "c"}}, "Header 'a b' has a name that cannot be sent"),
        ({"outputs": []}, "No output is wanted"),
        ({"request_id": 7}, "request_id is 7"),
        ({"priority": -1}, "priority is -1"),
        ({"priority": True}, "priority is True"),
        ({"timeout_s": 0}, "timeout_s is 0"),
        ({"timeout_s": float("nan")}, "timeout_s is nan"),
    ],
    ids=repr,
)
def test_options_that_cannot_be_sent(client, options, message):
    with pytest.raises(PyTritonClientValueError, match=message):
        client.infer_sample([1], [2], **options)


def test_an_input_goes_before_an_option_of_the_same_name(triton, name, kind, url):
    names = ("outputs", "priority", "request_id", "timeout_s")

    @batch
    def total(**inputs):
        return {"y": sum(inputs.values())}

    triton.bind(name, total, [Tensor((1,), np.int32, each) for each in names], [Tensor((1,), np.int32, "y")])
    with asking(kind, url, name) as client:
        assert client.infer_sample(**dict.fromkeys(names, 2), parameters={"a": 1})["y"] == [8]
        assert client.infer_batch(**{each: np.int32([[1], [2]]) for each in names})["y"].tolist() == [[4], [8]]


def test_a_request_of_higher_priority_goes_first(triton, name, url):
    order = []
    entered, gate = threading.Event(), threading.Event()

    def note(requests):
        entered.set()
        assert gate.wait(30)
        order.extend(float(request["x"][0, 0]) for request in requests)
        return echo(requests)

    batcher = DynamicBatcher(priority_levels=2, default_priority_level=2)
    bind_floats(triton, name, note, config=ModelConfig(max_batch_size=1, batcher=batcher))
    with FuturesModelClient(url, name) as client:
        first = client.infer_sample([0])
        assert entered.wait(30)
        low = [client.infer_sample([number], priority=2) for number in (1, 2)]
        wait_until(lambda: pending(triton, name) >= 2)
        high = client.infer_sample([3], priority=1)
        wait_until(lambda: pending(triton, name) >= 3)
        gate.set()
        for future in (first, *low, high):
            future.result(30)
    assert order.index(3) < order.index(2)


def pending(triton, name):
    return metrics_of(triton, name)["nv_inference_pending_request_count"]


def test_the_server_drops_what_waits_longer_than_its_timeout(triton, name, kind, url):
    seen, entered, gate = [], threading.Event(), threading.Event()

    def note(requests):
        seen.extend(float(request["x"][0, 0]) for request in requests)
        entered.set()
        assert gate.wait(30)
        return echo(requests)

    policy = QueuePolicy(default_timeout_microseconds=60_000_000, allow_timeout_override=True)
    config = ModelConfig(max_batch_size=1, batcher=DynamicBatcher(default_queue_policy=policy))
    bind_floats(triton, name, note, config=config)
    with asking(kind, url, name) as client, FuturesModelClient(url, name) as other:
        held = other.infer_sample([1])
        assert entered.wait(30)
        with pytest.raises(PyTritonClientTimeoutError):
            client.infer_sample([2], timeout_s=0.2)
        time.sleep(0.2)  # the server's own clock started when the request arrived there
        gate.set()
        held.result(30)
        client.infer_sample([3])
    assert seen == [1, 3]


def test_an_answer_that_takes_too_long(triton, name, kind, url):
    entered, gate = held_model(triton, name)
    with asking(kind, url, name, inference_timeout_s=0.4) as client:
        with pytest.raises(PyTritonClientTimeoutError, match=r"did not answer within 0\.[34]"):
            client.infer_sample([1])
        assert entered.wait(10)
        gate.set()
        assert client.infer_sample([2], timeout_s=30)["y"] == [2]


@every_kind
def test_an_error_of_the_model(triton, name, kind, url):
    def fail(requests):
        raise ValueError("no such luck")

    bind_floats(triton, name, fail, config=config_for(kind))
    with asking(kind, url, name) as client:
        with pytest.raises(PyTritonClientInferenceServerError, match=r"answered: .*ValueError: no such luck") as caught:
            client.infer_sample([1])
        assert caught.value.failure is Failure.REFUSED


@every_kind
def test_the_configuration(client, name, kind):
    config = client.model_config

    decoupled = kind in STREAM_KINDS
    assert (config.model_name, config.max_batch_size, config.batching, config.decoupled) == (name, 4, True, decoupled)
    assert list(map(str, config.inputs)) == ["'a': FP32 (-1,)", "'b': FP32 (-1,)"]
    assert config.outputs[1].dtype == np.float32


def test_whether_batches_are_supported(triton, name, url):
    bind_floats(triton, name, echo, config=NO_BATCHING)
    with ModelClient(url, name) as client:
        assert not client.is_batching_supported


@every_kind
def test_a_version(triton, name, kind, url):
    for version in (1, 2):
        bind_floats(
            triton,
            name,
            lambda requests, by=version: [{"y": by * each["x"]} for each in requests],
            model_version=version,
            config=config_for(kind),
        )
    for wanted, factor in (("1", 1), (2, 2), ("2", 2), (None, 2), ("<latest>", 2)):
        with asking(kind, url, name, model_version=wanted) as client:
            assert client.infer_sample([1])["y"] == [factor]
    with (
        asking(kind, url, name, model_version="3", init_timeout_s=0.4) as client,
        pytest.raises(PyTritonClientModelUnavailableError, match="version 3"),
    ):
        client.infer_sample([1])


def test_waiting_for_the_server_and_for_the_model(triton, name, url):
    with ModelClient(url, name) as client:
        client.wait_for_server(10)
        bound = threading.Timer(0.3, lambda: bind_floats(triton, name, echo))
        bound.start()
        client.wait_for_model(30)
        assert client.infer_sample([1])["y"] == [1]
        bound.join()


def test_what_else_the_server_has_is_told_while_waiting(triton, name, url, caplog):
    bind_floats(triton, name, echo)
    with ModelClient(url, "no-such-model") as client, pytest.raises(PyTritonClientModelUnavailableError):
        client.wait_for_model(0.4)
    (record,) = caplog.records
    assert re.search(r"up to 0\.4 s: the server at .* has no model 'no-such-model'\. It has '", record.message)


def test_a_lazy_client_connects_when_it_is_used(triton, name, url):
    client = ModelClient(url, name)
    bind_floats(triton, name, echo)
    assert client.infer_sample([1])["y"] == [1]
    client.close()


@pytest.mark.parametrize("client_class", [ModelClient, DecoupledModelClient])
def test_an_eager_client_connects_when_it_is_made(triton, client_class):
    with pytest.raises(PyTritonClientModelUnavailableError):
        client_class(url_of(triton, "grpc"), "no-such-model", lazy_init=False, init_timeout_s=0.4)


@pytest.mark.parametrize("client_class", [AsyncioModelClient, AsyncioDecoupledModelClient])
def test_an_eager_asyncio_client_connects_when_it_is_entered(triton, client_class):
    async def enter():
        async with client_class(url_of(triton, "grpc"), "no-such-model", lazy_init=False, init_timeout_s=0.4):
            raise AssertionError("it was entered")

    with pytest.raises(PyTritonClientModelUnavailableError):
        asyncio.run(enter())


@every_kind
def test_a_client_that_knows_the_configuration_does_not_ask_for_it(triton, name, kind, url):
    bind_add_sub(triton, name, config=config_for(kind))
    config = ModelClient(url, name).model_config
    with asking(kind, url, name, model_config=config, ensure_model_is_ready=False) as client:
        assert client.model_config is config
        assert client.infer_sample([1], [2])["add"] == [3]


@pytest.mark.parametrize(
    ("kind", "other_kind"),
    [*itertools.product(("blocking", "asyncio"), repeat=2), *itertools.product(STREAM_KINDS, repeat=2)],
)
def test_a_client_made_of_another_one(triton, name, kind, other_kind):
    bind_floats(triton, name, echo, config=config_for(kind))
    with asking(kind, url_of(triton, "grpc"), name, convert_dtypes=True) as client:
        assert client.infer_sample(np.int8([1]))["y"] == [1]
        made = CLASSES[other_kind].from_existing_client(client.client)
        assert type(made) is CLASSES[other_kind]
        with asking_with(other_kind, made) as other:
            assert other.model_config is client.model_config
            assert other.infer_sample(np.int8([2]))["y"] == [2]
        assert client.infer_sample(np.int8([3]))["y"] == [3]


@every_kind
@pytest.mark.parametrize("host", [HOST, "localhost"])
def test_a_server_is_found_by_its_address_and_by_its_name(triton, name, kind, protocol, host):
    bind_floats(triton, name, echo, config=config_for(kind))
    url = url_of(triton, protocol).replace(HOST, host)
    for form in {url, f"{url}/", url.removeprefix("http://")}:
        with asking(kind, form, name) as client:
            assert client.infer_sample([1])["y"] == [1]


@every_kind
def test_a_closed_client(kind, url):
    with asking(kind, url, "any") as client:
        client.close()
        client.close()
        for use in (
            lambda: client.infer_sample([1]),
            lambda: client.infer_batch([[1]]),
            lambda: client.wait_for_model(1),
            lambda: client.model_config,
        ):
            with pytest.raises(PyTritonClientClosedError, match="closed"):
                use()


@pytest.mark.parametrize("client_class", [ModelClient, FuturesModelClient, DecoupledModelClient])
def test_a_context_manager_closes(triton, name, client_class):
    bind_floats(triton, name, echo, config=ModelConfig(decoupled=client_class is DecoupledModelClient))
    with client_class(url_of(triton, "grpc"), name) as client:
        client.infer_sample([1])
    with pytest.raises(PyTritonClientClosedError):
        client.infer_sample([1])
    with pytest.raises(PyTritonClientClosedError), client:
        pass


def test_closing_while_another_thread_waits(triton, name):
    entered, gate = held_model(triton, name)
    client = ModelClient(url_of(triton, "grpc"), name)
    asking = Background(lambda: client.infer_sample([1]))
    assert entered.wait(30)
    client.close()
    assert isinstance(asking.finish().error, PyTritonClientClosedError)
    gate.set()


@pytest.mark.parametrize("lazy_init", [True, False])
def test_many_threads_share_a_client(triton, name, url, lazy_init):
    bind_floats(triton, name, echo)
    with ModelClient(url, name, lazy_init=lazy_init) as client:
        answers = at_once(16, lambda number: [client.infer_sample([number])["y"][0] for _ in range(10)])
    assert answers == [[number] * 10 for number in range(16)]


def test_unloading_and_loading(triton, name, url):
    bind_floats(triton, name, echo)
    with ModelClient(url, name, init_timeout_s=10) as client:
        config = client.model_config
        client.unload_model()
        wait_until(lambda: not is_ready(client))
        client.load_model()
        assert client.model_config == config
        assert client.infer_sample([1])["y"] == [1]


@every_kind_that_loads
def test_loading_with_another_configuration(triton, name, kind, protocol):
    bind_floats(triton, name, echo, config=config_for(kind))
    _, config = request_json(triton, "GET", f"/v2/models/{name}/config")
    with asking(kind, url_of(triton, protocol), name) as client:
        assert client.model_config.max_batch_size == 4
        for number in (5, 6):
            client.load_model(config=json.dumps({**config, "max_batch_size": number}))
            assert client.model_config.max_batch_size == number
            assert len(client.infer_batch(np.zeros((number, 1), np.float32))["y"]) == number
        with pytest.raises(PyTritonClientInferenceServerError, match="config"):
            client.load_model(config="{")
        # Files that are given take the place of all that are there, such as the one that the library writes.
        with pytest.raises(PyTritonClientInferenceServerError, match=r"cannot read .*/1/worker"):
            client.load_model(config=json.dumps(config), files={"file:1/weights": b"1, 2, 3"})


def is_ready(client):
    try:
        client.wait_for_model(0.05)
    except (PyTritonClientModelUnavailableError, PyTritonClientTimeoutError):
        return False
    return True


@pytest.mark.parametrize(
    "url", ["", "ftp://localhost", "localhost:0", "localhost:99999", "localhost:a", "http://", "grpc://a/b", "a b", 7]
)
@pytest.mark.parametrize("client_class", [ModelClient, FuturesModelClient, AsyncioModelClient])
def test_a_url_that_is_none(client_class, url):
    with pytest.raises(PyTritonClientInvalidUrlError, match="is no URL of a server"):
        client_class(url, "any")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model_name": ""}, "model_name is ''"),
        ({"model_version": "latest"}, "model_version is 'latest'"),
        ({"init_timeout_s": 0}, "init_timeout_s is 0"),
        ({"inference_timeout_s": -1.0}, "inference_timeout_s is -1.0"),
        ({"inference_timeout_s": "1"}, "inference_timeout_s is '1'"),
        ({"url": []}, "The list of URLs is empty"),
        ({"url": "grpcs://localhost", "tls": TLSConfig(verify=False)}, "is for https:// alone"),
    ],
    ids=repr,
)
@pytest.mark.parametrize("client_class", [ModelClient, FuturesModelClient, AsyncioModelClient])
def test_arguments_that_cannot_work(client_class, arguments, message):
    with pytest.raises(PyTritonClientValueError, match=message):
        client_class(**{"url": "localhost", "model_name": "any", **arguments})
