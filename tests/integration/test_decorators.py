"""Decorated inference callables on the real server."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import wrapt
from serving import (
    FLOATS_IN,
    FLOATS_OUT,
    NO_BATCHING,
    InferenceServerException,
    at_once,
    bind_floats,
    running_triton,
)

from pytriton.decorators import (
    ConstantPadder,
    batch,
    fill_optionals,
    first_value,
    group_by_keys,
    group_by_values,
    pad_batch,
    sample,
    triton_context,
)
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor

ONE_FLOAT = {"shape": (1,), "dtype": np.float32}
X_AND_K = [Tensor(name="x", **ONE_FLOAT), Tensor(name="k", **ONE_FLOAT, optional=True)]
Y = [Tensor(name="y", **ONE_FLOAT)]


@pytest.fixture(scope="module")
def triton():
    """A server that forwards headers."""
    forwarded = "(x-tenant|x-trace)"
    with running_triton(http_header_forward_pattern=forwarded, grpc_header_forward_pattern=forwarded) as triton:
        triton.run()
        yield triton


def gathering(rows, **settings):
    """A configuration whose batches wait until they have that many rows."""
    batcher = DynamicBatcher(max_queue_delay_microseconds=30_000_000, **settings)
    return ModelConfig(max_batch_size=rows, batcher=batcher)


def floats(*values):
    return np.array(values, np.float32).reshape(-1, 1)


@pytest.fixture
def calls():
    return []


def test_group_by_keys_serves_clients_with_and_without_an_optional_input(triton, grpc_client, name, calls):
    @group_by_keys
    @batch
    def infer(x, k=None):
        calls.append((len(x), k is not None))
        return {"y": x if k is None else x * k}

    triton.bind(name, infer, X_AND_K, Y)

    def send(number):
        inputs = {"x": floats(number), **({"k": floats(10)} if number % 3 == 0 else {})}
        return grpc_client.infer(name, inputs)["y"].item()

    assert at_once(6, send) == [0, 1, 2, 30, 4, 5]
    assert [sum(rows for rows, given in calls if given is wanted) for wanted in (True, False)] == [2, 4]


def test_fill_optionals_fills_in_missing_inputs(triton, grpc_client, name, calls):
    @fill_optionals(k=np.array([10], np.float32))
    @batch
    def infer(x, k):
        calls.append(k.shape == x.shape)
        return {"y": x * k}

    triton.bind(name, infer, X_AND_K, Y)

    def send(number):
        inputs = {"x": floats(number, number), **({"k": floats(2, 3)} if number % 2 == 0 else {})}
        return grpc_client.infer(name, inputs)["y"].ravel().tolist()

    assert at_once(4, send) == [[0, 0], [10, 10], [4, 6], [30, 30]]
    assert all(calls)


def test_a_model_with_only_optional_inputs_accepts_any_of_them(triton, client, name):
    @fill_optionals(a=np.array([1], np.float32), b=np.array([2], np.float32))
    @batch
    def infer(a, b):
        return {"y": a * 10 + b}

    triton.bind(name, infer, [Tensor(name=each, **ONE_FLOAT, optional=True) for each in "ab"], Y)

    assert client.infer(name, {"a": floats(3, 4)})["y"].tolist() == [[32], [42]]
    assert client.infer(name, {"b": floats(3)})["y"].tolist() == [[13]]


def test_a_default_of_text_equals_what_a_client_sends(triton, client, name, calls):
    @fill_optionals(text=["grüße", b"\0"])
    @batch
    def infer(x, text):
        calls.append((text.dtype, text.tolist()))
        return {"y": x}

    inputs = [X_AND_K[0], Tensor(name="text", shape=(2,), dtype=str, optional=True)]
    triton.bind(name, infer, inputs, Y)

    client.infer(name, {"x": floats(1)})
    client.infer(name, {"x": floats(1), "text": np.array([["grüße".encode(), b"\0"]], object)})

    assert calls[0] == calls[1]


def test_fill_optionals_serves_a_model_without_batching(triton, client, name):
    @fill_optionals(k=np.array([3], np.float32))
    @sample
    @first_value("k")
    def infer(x, k):
        return {"y": x * k}

    inputs = [FLOATS_IN[0], Tensor(name="k", **ONE_FLOAT, optional=True)]
    triton.bind(name, infer, inputs, FLOATS_OUT, config=NO_BATCHING)

    x = np.array([1, 2, 3], np.float32)
    assert client.infer(name, {"x": x})["y"].tolist() == [3, 6, 9]
    assert client.infer(name, {"x": x, "k": np.array([2], np.float32)})["y"].tolist() == [2, 4, 6]


def test_batch_below_fill_optionals_serves_a_model_without_batching(triton, client, name):
    infer = fill_optionals(k=np.array([3], np.float32))(batch(lambda x, k: {"y": np.append(x, k)}))
    inputs = [FLOATS_IN[0], Tensor(name="k", **ONE_FLOAT, optional=True)]
    triton.bind(name, infer, inputs, FLOATS_OUT, config=NO_BATCHING)

    assert client.infer(name, {"x": np.array([1, 2], np.float32)})["y"].tolist() == [1, 2, 3]


def test_an_invalid_default_is_reported(triton, client, name):
    def bind_and_send():
        triton.bind(name, fill_optionals(k=[1.5])(batch(lambda x, k: {"y": x * k})), X_AND_K, Y)
        client.infer(name, {"x": floats(1)})

    with pytest.raises(Exception, match="fill_optionals has a default for 'k' of dtype float64, but the input is FP32"):
        bind_and_send()


def test_group_by_values_serves_concurrent_clients_in_uniform_calls(triton, grpc_client, name, calls):
    @batch
    @group_by_values("k")
    @first_value("k")
    def infer(x, k):
        calls.append((k, len(x)))
        return {"y": x * k}

    triton.bind(name, infer, X_AND_K, Y, config=gathering(12))

    def send(number):
        rows = number % 2 + 1
        received = grpc_client.infer(name, {"x": floats(*[number] * rows), "k": floats(*[number % 3] * rows)})
        return received["y"].ravel().tolist()

    assert at_once(8, send) == [[number * (number % 3)] * (number % 2 + 1) for number in range(8)]
    assert sorted(calls) == [(0, 4), (1, 5), (2, 3)]


def test_outputs_of_groups_are_padded_to_one_shape(triton, client, name):
    @batch
    @group_by_values("x", pad_fn=ConstantPadder(-1))
    def infer(x):
        return {"y": np.ones((len(x), int(x[0, 0])), np.float32)}

    bind_floats(triton, name, infer)

    assert client.infer(name, {"x": floats(2, 1, 2)})["y"].tolist() == [[1, 1], [1, -1], [1, 1]]


def test_pad_batch_fills_up_to_preferred_sizes_and_clients_see_their_rows(triton, client, name, calls):
    @batch
    @pad_batch
    def infer(x):
        calls.append(x.ravel().tolist())
        return {"y": x + 1}

    config = ModelConfig(max_batch_size=16, batcher=DynamicBatcher(preferred_batch_size=[4, 8]))
    triton.bind(name, infer, X_AND_K[:1], Y, config=config)

    for rows in (1, 4, 5, 9):
        x = np.arange(rows, dtype=np.float32).reshape(-1, 1)
        assert client.infer(name, {"x": x})["y"].tolist() == (x + 1).tolist()

    assert [len(each) for each in calls] == [4, 4, 8, 16]
    assert calls[2] == [0, 1, 2, 3, 4, 4, 4, 4]


def test_pad_batch_pads_requests_of_several_clients(triton, grpc_client, name, calls):
    @batch
    @pad_batch
    def infer(x):
        calls.append(len(x))
        return [x * 2]

    triton.bind(name, infer, X_AND_K[:1], Y, config=gathering(5))

    assert at_once(5, lambda number: grpc_client.infer(name, {"x": floats(number)})["y"].item()) == [0, 2, 4, 6, 8]
    assert calls == [5]


CONTEXTS = {
    "above batch": lambda infer: triton_context(batch(infer)),
    "below batch": lambda infer: batch(triton_context(infer)),
    "above sample": lambda infer: triton_context(sample(infer)),
    "below sample": lambda infer: sample(triton_context(infer)),
}


@pytest.mark.parametrize("order", CONTEXTS)
def test_parameters_and_forwarded_headers_reach_the_function(triton, client, name, order, calls):
    @CONTEXTS[order]
    def infer(x, triton_context):
        calls.extend(triton_context.row_parameters)
        return [x]

    bind_floats(triton, name, infer)
    headers = {"x-tenant": "acme", "x-secret": "s"}

    client.infer(name, {"x": floats(1, 2)}, parameters={"temperature": 3}, headers=headers)
    client.infer(name, {"x": floats(1)})

    assert calls == [{"temperature": 3, "x-tenant": "acme"}] * 2 + [{}]


def test_each_row_of_a_batch_has_the_parameters_and_headers_of_its_client(triton, grpc_client, name, calls):
    @batch
    @triton_context
    def infer(x, triton_context):
        calls.append(len(x))
        factors = [each["factor"] * len(each["x-trace"]) for each in triton_context.row_parameters]
        return {"y": x * np.array(factors, np.float32)[:, None]}

    triton.bind(name, infer, X_AND_K[:1], Y, config=gathering(9))

    def send(number):
        sent = floats(*[1] * (number % 2 + 1))
        received = grpc_client.infer(
            name, {"x": sent}, parameters={"factor": number}, headers={"x-trace": "t" * (number + 1)}
        )
        return received["y"].ravel().tolist()

    assert at_once(6, send) == [[number * (number + 1)] * (number % 2 + 1) for number in range(6)]
    assert calls == [9]


def test_parameters_stay_with_their_rows_in_groups_of_values(triton, grpc_client, name):
    @batch
    @group_by_values("k")
    @triton_context
    def infer(x, k, triton_context):
        return {"y": np.array([[each["number"]] for each in triton_context.row_parameters], np.float32)}

    triton.bind(name, infer, X_AND_K, Y, config=gathering(6))

    def send(number):
        inputs = {"x": floats(0), "k": floats(number % 2)}
        return grpc_client.infer(name, inputs, parameters={"number": number})["y"].item()

    assert at_once(6, send) == list(range(6))


class Scaled:
    """A model whose methods are bound."""

    def __init__(self, factor):
        self.factor = np.float32(factor)

    @batch
    @triton_context
    def infer(self, x, triton_context):
        config = triton_context.model_config
        return {"y": x * self.factor + config.max_batch_size * 100 + config.model_version * 1000}

    @sample
    @triton_context
    def __call__(self, x, triton_context):
        assert not triton_context.model_config.batching
        return {"y": x * self.factor}


def test_each_model_has_its_own_context(triton, client, name):
    shared = Scaled(1)
    for version, (infer, size) in enumerate([(shared.infer, 2), (shared.infer, 3), (Scaled(5).infer, 4)], start=1):
        bind_floats(triton, f"{name}{version}", infer, model_version=version, config=ModelConfig(max_batch_size=size))
    bind_floats(triton, name, Scaled(7), config=NO_BATCHING)

    received = [client.infer(f"{name}{version}", {"x": floats(1)})["y"].item() for version in (1, 2, 3)]

    assert received == [1201, 2301, 3405]
    assert client.infer(name, {"x": floats(1)[0]})["y"].tolist() == [7]


def test_the_context_has_the_configuration_of_the_model(triton, http_client, name, calls):
    @batch
    @triton_context
    def infer(x, triton_context, k=None):
        calls.append(triton_context.model_config)
        return {"y": x}

    config = ModelConfig(max_batch_size=6, batcher=DynamicBatcher(preferred_batch_size=[2, 6]))
    triton.bind(name, infer, X_AND_K, Y, config=config)
    http_client.infer(name, {"x": floats(1)})

    (bound,) = calls
    assert (bound.model_name, bound.model_version, bound.max_batch_size) == (name, 1, 6)
    assert (bound.batching, bound.decoupled, bound.response_cache) == (True, False, False)
    assert bound.batcher.preferred_batch_size == [2, 6]
    assert [(each.name, each.optional) for each in bound.inputs] == [("x", False), ("k", True)]


@wrapt.decorator
def doubled(wrapped, instance, args, kwargs):
    """As a user would write it, with wrapt, around a function of arrays."""
    return {name: array * 2 for name, array in wrapped(*args, **kwargs).items()}


def logged(calls):
    """As a user would write it, with functools, around a function of requests."""

    def decorator(function):
        @functools.wraps(function)
        def wrapper(requests):
            calls.append(len(requests))
            return function(requests)

        return wrapper

    return decorator


def test_custom_decorators_stand_between_ours(triton, client, name, calls):
    @logged(calls)
    @fill_optionals(k=np.array([5], np.float32))
    @logged(calls)
    @group_by_keys
    @batch
    @doubled
    @pad_batch
    @doubled
    @triton_context
    def infer(x, k, triton_context):
        return {"y": x * k}

    triton.bind(name, infer, X_AND_K, Y)

    assert client.infer(name, {"x": floats(1, 2)})["y"].tolist() == [[20], [40]]
    assert calls == [1, 1]


def test_one_request_fails_among_others_below_group_by_keys(triton, grpc_client, name):
    @group_by_keys
    def infer(requests):
        return [ValueError("too large") if request["x"].item() > 3 else {"y": request["x"]} for request in requests]

    triton.bind(name, infer, X_AND_K, Y, config=gathering(6))

    def send(number):
        try:
            return grpc_client.infer(name, {"x": floats(number)})["y"].item()
        except InferenceServerException as error:
            return error.message()

    refused = f"model {name!r}: ValueError: too large"
    assert at_once(6, send) == [0, 1, 2, 3, refused, refused]


def test_serving_continues_after_a_decorator_refused_a_batch(triton, http_client, name):
    bind_floats(triton, name, batch(first_value("x")(lambda x: {"y": np.array([[x]], np.float32)})))

    with pytest.raises(InferenceServerException, match=r"first_value\('x'\): the rows of this input differ"):
        http_client.infer(name, {"x": floats(1, 2)})
    assert http_client.infer(name, {"x": floats(3)})["y"].tolist() == [[3]]
