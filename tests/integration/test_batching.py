from __future__ import annotations

import threading

import numpy as np
import pytest
from gates import Gate, gathers, is_pending, row
from serving import (
    FLOATS_IN,
    FLOATS_OUT,
    InferenceServerException,
    at_once,
    bind_floats,
    client_of,
    infer_json,
    json_floats,
    request_json,
    send_floats,
    statistics_of,
    wait_until,
)

from pytriton.decorators import batch, triton_context
from pytriton.model_config import DynamicBatcher, ModelConfig, QueuePolicy, Tensor, TimeoutAction

PATIENT = ModelConfig(max_batch_size=16, batcher=DynamicBatcher(max_queue_delay_microseconds=300_000))


def test_concurrent_requests_are_gathered_into_batches(triton, grpc_client, name):
    batches = []

    @batch
    def double(x):
        batches.append(len(x))
        return [x * 2]

    bind_floats(triton, name, double, config=PATIENT)

    received = at_once(16, lambda number: grpc_client.infer(name, {"x": row(number)})["y"].item())

    assert received == [2 * number for number in range(16)]
    assert sum(batches) == 16
    assert max(batches) > 1
    # Triton counts a batch just after it has sent its responses.
    statistics = wait_until(lambda: (found := statistics_of(triton, name))["inference_count"] and found)
    assert (statistics["inference_count"], statistics["execution_count"]) == (16, len(batches))
    assert {each["batch_size"]: each["compute_infer"]["count"] for each in statistics["batch_stats"]} == {
        size: batches.count(size) for size in batches
    }


def test_each_request_gets_its_own_rows(triton, grpc_client, name):
    bind_floats(triton, name, batch(lambda x: [x + 0.5]), config=PATIENT)

    def send(number):
        sent = np.full((number % 4 + 1, 3), number, np.float32)
        return np.array_equal(grpc_client.infer(name, {"x": sent})["y"], sent + 0.5)

    assert all(at_once(12, send))


def test_each_request_gets_its_own_bytes(triton, grpc_client, name):
    batches = []

    @batch
    def upper(text):
        batches.append(len(text))
        return [np.array([[each.upper() for each in row] for row in text], object)]

    triton.bind(
        name,
        upper,
        inputs=[Tensor(name="text", shape=(2,), dtype=bytes)],
        outputs=[Tensor(name="upper", shape=(2,), dtype=bytes)],
        config=PATIENT,
    )

    def send(number):
        sent = np.array([[b"a" * number, b"x" * (7 * number)]] * (number % 2 + 1), object)
        received = grpc_client.infer(name, {"text": sent})["upper"]
        return received.tolist() == [[b"A" * number, b"X" * (7 * number)]] * (number % 2 + 1)

    assert all(at_once(8, send))
    assert max(batches) > 2


def test_adjacent_requests_form_a_batch_without_a_copy(triton, grpc_client, name):
    stacked = []

    @batch
    @triton_context
    def look(x, triton_context):
        views = [request["x"] for request in triton_context.requests]
        stacked.append((x, list(map(len, views)), views))
        return [x]

    bind_floats(triton, name, look, config=PATIENT)

    at_once(6, lambda number: grpc_client.infer(name, {"x": np.full((number % 2 + 1, 5), number, np.float32)}))

    x, rows, views = max(stacked, key=lambda each: len(each[1]))
    assert len(rows) > 1
    assert x.flags.c_contiguous
    assert not x.flags.owndata
    assert all(np.shares_memory(x, view) for view in views)
    starts = [view.ctypes.data for view in views]
    assert starts == [x.ctypes.data + sum(rows[:i]) * x.strides[0] for i in range(len(rows))]


def test_requests_of_different_shapes_are_served_separately(triton, grpc_client, name):
    shapes = []

    @batch
    def same(x):
        shapes.append(x.shape)
        return [x]

    bind_floats(triton, name, same, config=PATIENT)

    def send(number):
        sent = np.full((1, number % 3 + 1), number, np.float32)
        return np.array_equal(grpc_client.infer(name, {"x": sent})["y"], sent)

    assert all(at_once(9, send))
    assert {shape[1] for shape in shapes} == {1, 2, 3}
    assert sum(shape[0] for shape in shapes) == 9


def test_requests_that_wait_for_a_busy_callable_form_a_batch(triton, grpc_client, name):
    def batches():
        gate = Gate()
        bind_floats(triton, name, gate, config=ModelConfig(max_batch_size=16))

        def send(number):
            if number == 0:
                return grpc_client.infer(name, {"x": row(0)})["y"].item()
            assert gate.entered.wait(30)
            if number < 6:
                return grpc_client.infer(name, {"x": row(number)})["y"].item()
            wait_until(lambda: is_pending(triton, name, 5))
            return gate.opened.set()

        assert at_once(7, send) == [0, 1, 2, 3, 4, 5, None]
        return [len(each) for each in gate.batches]

    assert gathers([1, 5], batches)


def test_a_batch_has_no_more_than_max_batch_size_samples(triton, grpc_client, name):
    gate = Gate()
    bind_floats(triton, name, gate, config=ModelConfig(max_batch_size=2, batcher=PATIENT.batcher))
    gate.opened.set()

    at_once(9, lambda number: grpc_client.infer(name, {"x": row(number)}))

    assert max(map(len, gate.batches)) == 2


def test_a_request_of_more_samples_than_max_batch_size_is_refused(triton, client, name):
    bind_floats(triton, name, lambda requests: requests, config=ModelConfig(max_batch_size=2))

    with pytest.raises(InferenceServerException, match="batch-size must be <= 2"):
        client.infer(name, {"x": np.zeros((3, 1), np.float32)})


def test_a_model_without_batching_gets_one_request_at_a_time(triton, grpc_client, name):
    counts = []

    def infer(requests):
        counts.append((len(requests), requests[0]["x"].shape))
        return [[request["x"]] for request in requests]

    bind_floats(triton, name, infer, config=ModelConfig(batching=False))

    at_once(5, lambda number: grpc_client.infer(name, {"x": np.zeros(number + 1, np.float32)}))

    assert sorted(counts) == [(1, (size,)) for size in range(1, 6)]


BATCHERS = {
    "defaults": DynamicBatcher(),
    "delay": DynamicBatcher(max_queue_delay_microseconds=100),
    "preferred sizes": DynamicBatcher(preferred_batch_size=[2, 4]),
    "order": DynamicBatcher(preserve_ordering=True),
    "priorities": DynamicBatcher(priority_levels=3, default_priority_level=2),
    "queue policy": DynamicBatcher(
        default_queue_policy=QueuePolicy(
            timeout_action=TimeoutAction.DELAY,
            default_timeout_microseconds=5_000_000,
            allow_timeout_override=True,
            max_queue_size=9,
        )
    ),
    "queue policies by priority": DynamicBatcher(
        priority_levels=2,
        default_priority_level=1,
        priority_queue_policy={1: QueuePolicy(max_queue_size=3), 2: QueuePolicy(max_queue_size=4)},
    ),
    "everything": DynamicBatcher(
        max_queue_delay_microseconds=100,
        preferred_batch_size=[3],
        preserve_ordering=False,
        priority_levels=2,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(default_timeout_microseconds=10_000_000),
        priority_queue_policy={1: QueuePolicy(timeout_action=TimeoutAction.DELAY)},
    ),
}


@pytest.mark.parametrize("kind", BATCHERS)
def test_the_server_takes_every_field_of_the_batcher(triton, name, kind):
    batcher = BATCHERS[kind]
    bind_floats(triton, name, lambda requests: requests, config=ModelConfig(max_batch_size=8, batcher=batcher))

    _, config = request_json(triton, "GET", f"/v2/models/{name}/config")

    taken = config["dynamic_batching"]
    assert config["max_batch_size"] == 8
    assert taken["max_queue_delay_microseconds"] == batcher.max_queue_delay_microseconds
    assert taken["preferred_batch_size"] == (batcher.preferred_batch_size or [8])  # the server's default: full batches
    assert taken["preserve_ordering"] == batcher.preserve_ordering
    assert taken["priority_levels"] == batcher.priority_levels
    assert taken["default_priority_level"] == batcher.default_priority_level
    if batcher.default_queue_policy is not None:
        assert_same_policy(taken["default_queue_policy"], batcher.default_queue_policy)
    for level, policy in (batcher.priority_queue_policy or {}).items():
        assert_same_policy(taken["priority_queue_policy"][str(level)], policy)
    assert send_floats(triton, name, [1, 2]) == [1, 2]


def assert_same_policy(taken, policy):
    assert taken == {
        "timeout_action": policy.timeout_action.name,
        "default_timeout_microseconds": policy.default_timeout_microseconds,
        "allow_timeout_override": policy.allow_timeout_override,
        "max_queue_size": policy.max_queue_size,
    }


def test_requests_over_the_size_of_the_queue_are_refused(triton, grpc_client, name):
    gate = Gate()
    batcher = DynamicBatcher(default_queue_policy=QueuePolicy(max_queue_size=1))
    bind_floats(triton, name, gate, config=ModelConfig(max_batch_size=1, batcher=batcher))
    refused = threading.Event()

    def send(number):
        if number > 0:
            assert gate.entered.wait(30)
        try:
            return grpc_client.infer(name, {"x": row(number)})["y"].item()
        except InferenceServerException as error:
            refused.set()
            return error.message()
        finally:
            if refused.is_set():
                gate.opened.set()

    received = at_once(8, send)

    assert any("Exceeds maximum queue size" in str(each) for each in received)
    assert received[0] == 0


def test_requests_of_higher_priority_overtake_others(triton, grpc_client, name):
    batcher = DynamicBatcher(priority_levels=2, default_priority_level=2)

    def batches():
        gate = Gate()
        bind_floats(triton, name, gate, config=ModelConfig(max_batch_size=1, batcher=batcher))

        def send(number):
            if number == 0:
                return grpc_client.infer(name, {"x": row(0)})
            assert gate.entered.wait(30)
            if number == 1:
                return grpc_client.infer(name, {"x": row(1)}, priority=2)
            # The one before it is known to be there.
            wait_until(lambda: is_pending(triton, name, number - 1))
            if number == 2:
                return grpc_client.infer(name, {"x": row(2)}, priority=1)
            return gate.opened.set()

        at_once(4, send)
        return gate.batches

    assert gathers([[[0.0]], [[2.0]], [[1.0]]], batches)


def test_the_server_gets_the_bound_config(triton, name):
    triton.bind(
        name,
        lambda requests: requests,
        inputs=[Tensor(name="image", shape=(-1, 3), dtype=np.uint8), Tensor(shape=(1,), dtype=bytes, optional=True)],
        outputs=[Tensor(name="class", shape=(10,), dtype=np.float16)],
        config=ModelConfig(max_batch_size=7),
    )

    _, config = request_json(triton, "GET", f"/v2/models/{name}/config")

    assert [(each["name"], each["data_type"], each["dims"], each["optional"]) for each in config["input"]] == [
        ("image", "TYPE_UINT8", [-1, 3], False),
        ("INPUT_2", "TYPE_STRING", [1], True),
    ]
    assert [(each["name"], each["data_type"], each["dims"]) for each in config["output"]] == [
        ("class", "TYPE_FP16", [10])
    ]
    assert config["backend"] == "pytriton"
    _, metadata = request_json(triton, "GET", f"/v2/models/{name}")
    assert metadata["inputs"][0] == {"name": "image", "datatype": "UINT8", "shape": [-1, -1, 3]}


def test_each_request_of_a_batch_keeps_its_own_optional_inputs(triton, grpc_client, name):
    def infer(requests):
        return [[request["x"] + request.get("w", 0)] for request in requests]

    triton.bind(
        name,
        infer,
        inputs=[*FLOATS_IN, Tensor(name="w", shape=(-1,), dtype=np.float32, optional=True)],
        outputs=FLOATS_OUT,
        config=PATIENT,
    )

    def send(number):
        inputs = {"x": row(number)} | ({"w": row(100)} if number % 2 else {})
        return grpc_client.infer(name, inputs)["y"].item()

    assert at_once(8, send) == [number + 100 * (number % 2) for number in range(8)]


def test_parameters_stay_with_their_request_within_a_batch(triton, grpc_client, name):
    def infer(requests):
        return [[np.full((1, 1), request.parameters["n"], np.float32)] for request in requests]

    bind_floats(triton, name, infer, config=PATIENT)

    received = at_once(8, lambda number: grpc_client.infer(name, {"x": row(0)}, parameters={"n": number})["y"].item())
    assert received == list(range(8))


def test_requested_outputs_stay_with_their_request_within_a_batch(triton, grpc_client, name):
    triton.bind(
        name,
        batch(lambda x: {"y": x, "z": -x}),
        FLOATS_IN,
        [*FLOATS_OUT, Tensor(name="z", shape=(-1,), dtype=np.float32)],
        config=PATIENT,
    )

    def send(number):
        wanted = [["y"], ["z"], ["y", "z"]][number % 3]
        received = grpc_client.infer(name, {"x": row(number)}, outputs=wanted)
        return {key: value.item() for key, value in received.items()} == {
            key: {"y": number, "z": -number}[key] for key in wanted
        }

    assert all(at_once(9, send))


def test_json_requests_are_batched_too(triton, name):
    sizes = []

    @batch
    def infer(x):
        sizes.append(len(x))
        return [x]

    bind_floats(triton, name, infer, config=PATIENT)

    responses = at_once(8, lambda number: infer_json(triton, name, [json_floats([number])])[1])

    assert [response["outputs"][0]["data"] for response in responses] == [[number] for number in range(8)]
    assert max(sizes) > 1


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_large_inputs_that_are_returned_unchanged_arrive_intact(triton, name, protocol):
    seen = []

    @batch
    def echo(x):
        seen.append(len(x))
        x[:, 0] += 1  # in place: it is the input still
        return {"y": x}

    bind_floats(triton, name, echo, config=PATIENT)
    rows = [np.random.default_rng(seed).random((1 + seed % 2, 50_000), np.float32) for seed in range(6)]
    with client_of(triton, protocol, concurrency=6) as client:
        responses = at_once(6, lambda number: client.infer(name, {"x": rows[number]})["y"])

    for sent, received in zip(rows, responses, strict=True):
        assert received[:, 0].tolist() == (sent[:, 0] + 1).tolist()
        assert np.array_equal(received[:, 1:], sent[:, 1:])
    assert max(seen) > 2
