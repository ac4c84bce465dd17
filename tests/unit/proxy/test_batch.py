from __future__ import annotations

import copy
import dataclasses
import gc
import pickle

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.proxy.tensors.batch import Batch, WholeBatch, stack_requests
from pytriton.proxy.types import Request
from pytriton.proxy.wire.inference import RequestMetadata


def floats(rows, columns=3, start=0):
    return np.arange(start, start + rows * columns, dtype=np.float32).reshape(rows, columns)


def test_each_request_has_its_own_rows(wire):
    a, b = floats(2), floats(1, start=50)
    batch = wire().batch({"x": a}, {"x": b})

    one, other = batch.requests()

    assert batch.request_count == 2
    assert batch.rows == [2, 1]
    assert one["x"].tolist() == a.tolist()
    assert other["x"].tolist() == b.tolist()


def test_a_request_looks_like_a_dictionary(wire):
    (request,) = wire().batch({"x": floats(1)}).requests()

    assert isinstance(request, Request)
    assert (list(request), len(request), "x" in request, "w" in request) == (["x"], 1, True, False)
    assert request.get("w") is None
    assert dict(request)["x"].shape == (1, 3)
    assert list(request.data) == ["x"]
    with pytest.raises(KeyError):
        request["w"]


def test_requests_lie_side_by_side_and_are_joined_without_a_copy(wire):
    whole = WholeBatch(wire().batch({"x": floats(2)}, {"x": floats(1)}, {"x": floats(3)}))

    inputs, rows = stack_requests(whole)

    assert rows == [2, 1, 3]
    assert inputs["x"].shape == (6, 3)
    assert inputs["x"].flags.c_contiguous
    assert all(np.shares_memory(inputs["x"], request["x"]) for request in whole)
    assert inputs["x"].ctypes.data % 64 == 0


@pytest.mark.parametrize("count", [1, 2])
def test_joining_requests_in_a_list_copies_their_arrays(wire, count):
    requests = wire().batch(*[{"x": floats(2)}] * count).requests()

    inputs, rows = stack_requests(requests)
    inputs["x"][:] = 100

    assert rows == [2] * count
    assert all(request["x"].tolist() == floats(2).tolist() for request in requests)


def test_a_whole_batch_is_joined_without_creating_its_requests(wire):
    whole = WholeBatch(wire().batch({"x": floats(2)}, {"x": floats(1)}))

    inputs, rows = stack_requests(whole)

    assert (inputs["x"].shape, rows, len(whole)) == ((3, 3), [2, 1], 2)
    assert whole._requests is None


def test_a_whole_batch_is_a_sequence_of_requests_that_keeps_changes(wire):
    whole = WholeBatch(wire().batch({"x": floats(2)}, {"x": floats(1)}))

    first, second = whole
    second["x"] = floats(1, start=90)

    assert whole[0] is first
    assert whole[-1] is second
    assert stack_requests(whole)[0]["x"][2].tolist() == [90, 91, 92]


def test_inputs_are_views_and_may_be_written(wire):
    (request,) = wire().batch({"x": floats(1)}).requests()

    assert not request["x"].flags.owndata
    request["x"][0, 0] = 9
    assert request["x"][0, 0] == 9


def test_a_block_is_released_when_its_last_view_dies(wire):
    connection = wire()
    requests = connection.batch({"x": floats(2)}, {"x": floats(1)}).requests()
    kept = requests[1]["x"][:, 1:]
    del requests
    gc.collect()
    assert connection.arena.in_use() == 1
    assert kept.tolist() == [[1, 2]]

    del kept
    gc.collect()
    assert connection.arena.in_use() == 0


def test_a_batch_without_views_is_released(wire):
    connection = wire()
    connection.batch({"x": floats(2)})
    gc.collect()

    assert connection.arena.in_use() == 0


def test_requests_of_different_shapes_have_arrays_of_their_own(wire):
    a, b = floats(1, 2), floats(1, 5)
    batch = wire().batch({"x": a}, {"x": b})

    assert [request["x"].tolist() for request in batch.requests()] == [a.tolist(), b.tolist()]
    assert batch.stacked() is None


def test_requests_of_different_shapes_cannot_be_joined(wire):
    batch = wire().batch({"x": floats(1, 2)}, {"x": floats(1, 5)})

    with pytest.raises(PyTritonValidationError, match=r"input 'x' differs in shape .*\[\(2,\), \(5,\)\]"):
        stack_requests(batch.requests())


def test_requests_with_different_inputs_keep_them_apart(wire):
    batch = wire().batch({"x": floats(1), "w": floats(1)}, {"x": floats(2)})

    assert [sorted(request) for request in batch.requests()] == [["w", "x"], ["x"]]
    with pytest.raises(PyTritonValidationError, match=r"different inputs cannot be joined.*'w', 'x'.*'x'"):
        stack_requests(batch.requests())


def test_changed_requests_are_joined_with_their_changes(wire):
    requests = wire().batch({"x": floats(1)}, {"x": floats(1)}).requests()
    requests[0]["x"] = requests[0]["x"] + 100

    inputs, rows = stack_requests(requests)

    assert inputs["x"].tolist() == [[100, 101, 102], [0, 1, 2]]
    assert rows == [1, 1]


@pytest.mark.parametrize("choice", [[1, 0], [0], [0, 0], [1, 2, 0], [0, 1, 2, 0]])
def test_requests_in_another_order_or_number_are_joined_accordingly(wire, choice):
    requests = wire().batch(*({"x": floats(1, start=10 * number)} for number in range(3))).requests()

    inputs, rows = stack_requests([requests[number] for number in choice])

    assert inputs["x"][:, 0].tolist() == [10 * number for number in choice]
    assert rows == [1] * len(choice)


def test_requests_of_two_batches_are_joined(wire):
    connection = wire()
    (one,), (other,) = (connection.batch({"x": floats(1, start=start)}).requests() for start in (0, 7))

    assert stack_requests([one, other])[0]["x"][:, 0].tolist() == [0, 7]


def test_dictionaries_are_joined_like_requests():
    inputs, rows = stack_requests([{"x": floats(2)}, {"x": floats(1)}])

    assert inputs["x"].tolist() == [*floats(2).tolist(), *floats(1).tolist()]
    assert rows == [2, 1]


def test_metadata_belongs_to_its_request(wire):
    batch = wire().batch(
        {"x": floats(1)},
        {"x": floats(1)},
        metadata=[RequestMetadata("first", [1], {"n": 1, "f": 0.5, "s": "é", "b": True}), RequestMetadata()],
    )
    one, other = batch.requests()

    assert (one.request_id, one.parameters) == ("first", {"n": 1, "f": 0.5, "s": "é", "b": True})
    assert one.requested_output_names == ["z"]
    assert (other.request_id, other.parameters, other.requested_output_names) == (None, {}, ["y", "z"])
    assert (batch.requested_outputs(0), batch.requested_outputs(1)) == ([1], None)


def test_metadata_may_be_set_before_it_is_read(wire):
    (request,) = wire().batch({"x": floats(1)}, metadata=[RequestMetadata("first", [1], {"n": 1})]).requests()

    request.request_id = "second"
    other = copy.copy(request)

    assert (request.parameters, request.request_id, request.requested_output_names) == ({"n": 1}, "second", ["z"])
    assert (other.parameters, other.request_id) == ({"n": 1}, "second")
    with pytest.raises(AttributeError, match="'BatchRequest' object has no attribute 'nonsense'"):
        _ = request.nonsense


def test_a_copy_of_a_request_has_its_fields_and_nothing_of_the_others(wire):
    details = RequestMetadata("first", [1], {"n": 1})
    request, _ = wire().batch({"x": floats(1)}, {"x": floats(1000)}, metadata=[details, RequestMetadata()]).requests()

    pickled = pickle.dumps(request)
    assert len(pickled) < floats(1000).nbytes
    for other in (pickle.loads(pickled), copy.deepcopy(request), dataclasses.replace(request)):
        assert type(other) is Request
        assert other["x"].tolist() == floats(1).tolist()
        assert (other.parameters, other.request_id, other.requested_output_names) == ({"n": 1}, "first", ["z"])


def test_without_batching_a_request_has_no_batch_dimension(plain_wire):
    batch = plain_wire.batch({"x": np.float32([1, 2])})

    assert batch.rows == []
    (request,) = batch.requests()
    assert request["x"].shape == (2,)
    inputs, rows = stack_requests([request])
    assert (inputs["x"].tolist(), rows) == ([1, 2], [])


def test_scalars_without_batching_have_no_dimension(wire):
    connection = wire(
        inputs=[Tensor(name="n", shape=(), dtype=np.int64), Tensor(name="t", shape=(), dtype=bytes)],
        config=ModelConfig(batching=False),
    )
    (request,) = connection.batch({"n": np.array([7]), "t": np.array([b"abc"], object)}).requests()

    assert request["n"].shape == request["t"].shape == ()
    assert (request["n"].item(), request["t"].item()) == (7, b"abc")


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(st.binary(max_size=20), min_size=2, max_size=2), min_size=1, max_size=6))
def test_bytes_of_any_kind_arrive_unchanged(wire, rows):
    connection = wire(inputs=[Tensor(name="t", shape=(2,), dtype=bytes)])
    arrays = []
    for row in rows:
        array = np.empty((1, 2), object)
        array[0] = row
        arrays.append({"t": array})

    batch = connection.batch(*arrays)

    assert [request["t"].tolist() for request in batch.requests()] == [[row] for row in rows]
    assert stack_requests(batch.requests())[0]["t"].tolist() == rows


def test_requests_know_whether_they_are_cancelled(wire):
    connection = wire()
    offset, size = connection.lay_down([{"x": floats(1)}, {"x": floats(2)}])
    batch = Batch(connection.peer.lease(offset, size), connection.signature)
    requests = batch.requests()
    assert batch.cancelled() == b"\0\0"
    assert not any(request.is_cancelled() for request in requests)

    connection.cancel(offset, 1)

    assert batch.cancelled() == b"\0\1"
    assert [request.is_cancelled() for request in requests] == [False, True]
    assert [request["x"].tolist() for request in requests] == [floats(1).tolist(), floats(2).tolist()]
    assert copy.copy(requests[1]).is_cancelled(), "a decorator passes it on with other inputs"
    assert not Request({}).is_cancelled(), "nobody cancels one that was made by hand"


def test_a_callback_that_is_registered_after_the_cancellation_is_called_at_once(wire):
    connection = wire()
    offset, size = connection.lay_down([{"x": floats(1)}])
    batch = Batch(connection.peer.lease(offset, size), connection.signature)
    connection.cancel(offset, 0)
    calls = []

    batch.on_cancel(0, lambda: calls.append(1))
    batch.cancel(0)

    assert calls == [1]
