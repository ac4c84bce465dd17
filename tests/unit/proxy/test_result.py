from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wiring import TIMES, floats, listed, result_of

from pytriton.decorators import batch as batched
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import ModelConfig, Tensor
from pytriton.proxy.tensors.failure import failure_of
from pytriton.proxy.tensors.stacked_outputs import StackedOutputs
from pytriton.proxy.transport.arena import ArenaError
from pytriton.proxy.wire.error_code import ErrorCode
from pytriton.proxy.wire.inference import RequestMetadata


@pytest.fixture
def two(wire):
    """A connection, and a batch of two requests of two rows and one."""
    connection = wire()
    return connection, connection.batch({"x": floats(2)}, {"x": floats(1, start=50)})


@pytest.mark.parametrize("form", [dict, list, tuple])
def test_responses_are_dictionaries_lists_or_tuples(two, form):
    connection, batch = two

    def response(request):
        outputs = {"y": request["x"], "z": -request["x"]}
        return outputs if form is dict else form(outputs.values())

    result, outputs = result_of(connection, batch, [response(request) for request in batch.requests()])

    a, b = floats(2), floats(1, start=50)
    assert listed(outputs) == {"y": [a.tolist(), b.tolist()], "z": [(-a).tolist(), (-b).tolist()]}
    assert (result.request_count, result.failures) == (2, [])
    assert (result.compute_start_ns, result.compute_end_ns) == TIMES


def test_outputs_of_a_whole_batch_are_sent_as_one_tensor(two):
    connection, batch = two
    returned = batched(lambda x: {"z": x + 1, "y": x})(batch.requests())

    result, outputs = result_of(connection, batch, returned)

    assert [(column.stacked, len(column.tensors)) for column in result.columns] == [(True, 1)] * 2
    assert listed(outputs)["z"] == [(floats(2) + 1).tolist(), (floats(1, start=50) + 1).tolist()]


def test_outputs_of_equal_shape_are_sent_stacked(two):
    connection, batch = two

    result, _ = result_of(connection, batch, [[request["x"]] * 2 for request in batch.requests()])

    assert all(column.stacked for column in result.columns)


def test_outputs_of_different_shapes_or_rows_are_sent_apart(two):
    connection, batch = two
    returned = [[floats(2, 1), floats(7)], [floats(1, 4), floats(1)]]

    result, outputs = result_of(connection, batch, returned)

    assert not any(column.stacked for column in result.columns)
    assert [each.shape for each in outputs["y"]] == [(2, 1), (1, 4)]
    assert [each.shape for each in outputs["z"]] == [(7, 3), (1, 3)]


def test_requests_that_are_returned_are_their_own_responses(wire):
    connection = wire(outputs=[Tensor(name="y", shape=(-1,), dtype=np.float32)])
    batch = connection.batch({"x": floats(1)}, {"x": floats(1, start=5)})

    _, outputs = result_of(connection, batch, batch.requests())

    assert listed(outputs) == {"y": [floats(1).tolist(), floats(1, start=5).tolist()]}


def test_an_exception_among_the_responses_fails_its_request_alone(two):
    connection, batch = two
    x = floats(1)

    result, outputs = result_of(connection, batch, [ValueError("no"), [x, x]])

    (failure,) = result.failures
    assert (failure.request, failure.code, failure.message) == (0, ErrorCode.INTERNAL, "model 'm': ValueError: no")
    assert listed(outputs) == {"y": [None, x.tolist()], "z": [None, x.tolist()]}


def test_exceptions_for_all_requests_leave_no_outputs(two):
    connection, batch = two

    result, outputs = result_of(connection, batch, [ValueError("a"), KeyError("b")])

    assert [failure.request for failure in result.failures] == [0, 1]
    assert outputs == {}


def test_outputs_that_are_not_requested_may_be_missing(wire):
    connection = wire(strict=True)
    batch = connection.batch(
        {"x": floats(1)}, {"x": floats(1)}, metadata=[RequestMetadata(outputs=[1]), RequestMetadata()]
    )

    _, outputs = result_of(connection, batch, [{"z": floats(1)}, [floats(1), floats(1)]])

    assert listed(outputs)["y"] == [None, floats(1).tolist()]
    with pytest.raises(PyTritonValidationError, match="did not return the output 'z'"):
        result_of(connection, batch, [{"y": floats(1)}, [floats(1), floats(1)]])


@pytest.mark.parametrize("stacked", [False, True])
def test_a_strict_model_must_return_requested_outputs(wire, stacked):
    connection = wire(strict=True)
    batch = connection.batch({"x": floats(1)})
    returned = StackedOutputs({"y": floats(1)}, [1]) if stacked else [{"y": floats(1)}]

    with pytest.raises(PyTritonValidationError, match="did not return the output 'z'"):
        result_of(connection, batch, returned)


X = floats(1)
WRONG = [
    (None, "returned None, not a list with one response per request"),
    ("text", "returned a str, not a list"),
    ({"y": X}, "returned a dict, not a list"),
    (iter([[X, X]]), "returned a list_iterator, not a list"),
    ([], "returned 0 responses to 1 requests"),
    ([[X, X]] * 2, "returned 2 responses to 1 requests"),
    ([None], "returned None: return a dictionary"),
    ([[X, X, X]], "returned 3 outputs, but the model has 2: 'y', 'z'"),
    ([{"q": X}], "an output 'q' that the model does not have: its outputs are 'y', 'z'"),
    ([[X, None]], r"output 'z' is None, but float32 \(batch, -1\) was declared: return an array"),
    ([[X, X.astype("M8[s]")]], r"output 'z' has dtype datetime64\[s\], but float32 \(batch, -1\) was declared"),
    ([[X, X[0].tolist()]], r"output 'z' has shape \(3,\), but float32 \(batch, -1\) was declared"),
]


@pytest.mark.parametrize(("returned", "message"), WRONG)
def test_outputs_that_do_not_fit_are_described_in_one_sentence(wire, returned, message):
    connection = wire()
    batch = connection.batch({"x": X})

    with pytest.raises(PyTritonValidationError, match=message) as caught:
        result_of(connection, batch, returned)
    assert "\n" not in str(caught.value)


def test_strict_checks_every_dimension(wire):
    outputs = [Tensor(name="y", shape=(-1, 4), dtype=np.float32)]
    good, bad = np.zeros((1, 9, 4), np.float32), np.zeros((1, 9, 5), np.float32)

    for strict in (False, True):
        connection = wire(outputs=outputs, strict=strict)
        batch = connection.batch({"x": X})
        result_of(connection, batch, [[good]])
        if not strict:
            result_of(connection, batch, [[bad]])
        else:
            with pytest.raises(PyTritonValidationError, match=r"\(1, 9, 5\), but float32 \(batch, -1, 4\) was"):
                result_of(connection, batch, [[bad]])


@pytest.mark.parametrize(
    "array",
    [floats(4, 6)[::2, 1:4], floats(3, 2).T, np.broadcast_to(np.float32(7), (2, 3)), np.asfortranarray(floats(2))],
)
def test_arrays_of_any_layout_are_written_in_order(wire, array):
    connection = wire(outputs=[Tensor(name="y", shape=(-1,), dtype=np.float32)])
    batch = connection.batch({"x": floats(2)})

    assert listed(result_of(connection, batch, [[array]])[1]) == {"y": [array.tolist()]}


def test_scalars_without_batching_are_sent_with_one_dimension(wire):
    connection = wire(outputs=[Tensor(name="y", shape=(), dtype=np.int32)], config=ModelConfig(batching=False))
    batch = connection.batch({"x": np.float32([1])})

    assert listed(result_of(connection, batch, [[np.array(7, np.int32)]])[1]) == {"y": [[7]]}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.one_of(st.binary(max_size=20), st.text(max_size=10)), min_size=1, max_size=8))
def test_bytes_and_text_of_any_kind_are_sent(wire, items):
    connection = wire(outputs=[Tensor(name="y", shape=(-1,), dtype=bytes)])
    batch = connection.batch({"x": X})
    array = np.empty((1, len(items)), object)
    array[0] = items

    (received,) = result_of(connection, batch, [[array]])[1]["y"]

    assert received.tolist() == [[item.encode() if isinstance(item, str) else item for item in items]]


@pytest.mark.parametrize("dtype", ["S4", "U4", object])
def test_bytes_in_every_kind_of_array_are_sent(wire, dtype):
    connection = wire(outputs=[Tensor(name="y", shape=(-1,), dtype=bytes)])
    batch = connection.batch({"x": X})

    assert listed(result_of(connection, batch, [[np.array([["ab", ""]], dtype)]])[1]) == {"y": [[[b"ab", b""]]]}


@pytest.mark.parametrize("element", [np.str_("né"), np.bytes_("né".encode()), bytearray("né".encode())], ids=type)
def test_strings_of_numpy_in_arrays_of_objects_are_sent_as_text(wire, element):
    connection = wire(outputs=[Tensor(name="y", shape=(-1,), dtype=bytes)])
    batch = connection.batch({"x": X})
    outputs = np.empty((1, 2), object)
    outputs[0] = [element, b"raw"]

    assert listed(result_of(connection, batch, [[outputs]])[1]) == {"y": [[["né".encode(), b"raw"]]]}


def test_objects_other_than_bytes_are_named_in_the_error(wire):
    connection = wire(outputs=[Tensor(name="y", shape=(-1,), dtype=bytes)])
    batch = connection.batch({"x": X})

    with pytest.raises(PyTritonValidationError, match=r"output 'y' contains 1\.5, which is a float: use bytes or str"):
        result_of(connection, batch, [[np.array([[b"a", 1.5]], object)]])


def test_a_result_that_does_not_fit_into_memory_is_an_error(wire):
    connection = wire()
    batch = connection.batch({"x": X})
    enormous = np.broadcast_to(np.float32(0), (1, 1 << 40))

    with pytest.raises(ArenaError, match="larger than shared memory may be"):
        result_of(connection, batch, [[enormous, X]])


def test_stacked_outputs_look_like_a_list_of_responses():
    outputs = StackedOutputs({"y": floats(4), "z": floats(4, 1)}, [1, 3])

    assert len(outputs) == 2
    assert [each["y"].shape for each in outputs] == [(1, 3), (3, 3)]
    assert outputs[-1]["z"].tolist() == floats(4, 1)[1:].tolist()
    assert [each["z"].shape for each in outputs[:1]] == [(1, 1)]
    assert np.shares_memory(outputs[0]["y"], outputs.outputs["y"])
    with pytest.raises(IndexError):
        outputs[2]


def test_stacked_outputs_in_a_list_are_lists():
    outputs = StackedOutputs((floats(2), floats(2)), [1, 1])

    assert [[array.shape for array in each] for each in outputs] == [[(1, 3), (1, 3)]] * 2


def test_stacked_outputs_need_the_rows_of_the_batch():
    with pytest.raises(PyTritonValidationError, match="output 'y' has 3 rows, but the batch has 4"):
        StackedOutputs({"y": floats(3)}, [1, 3])
    with pytest.raises(PyTritonValidationError, match="output number 2 has 3 rows, but the batch has 4"):
        StackedOutputs([floats(4), floats(3)], [1, 3])


def test_rows_beyond_those_of_the_batch_belong_to_no_request():
    outputs = StackedOutputs({"y": floats(6), "z": floats(6).tolist()}, [1, 3])

    assert [len(each["y"]) for each in outputs] == [len(each["z"]) for each in outputs] == [1, 3]


def test_a_list_of_stacked_outputs_is_sent_alike(two):
    connection, batch = two
    returned = list(batched(lambda x: [x, x])(batch.requests()))

    assert listed(result_of(connection, batch, returned)[1])["y"] == [floats(2).tolist(), floats(1, start=50).tolist()]


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def test_a_failure_is_one_sentence_and_a_traceback():
    failure = failure_of(raised(ValueError("bad weather")), "m")

    assert failure.request == -1
    assert failure.code == ErrorCode.INTERNAL
    assert failure.message == "model 'm': ValueError: bad weather"
    assert failure.detail.startswith("model 'm': the inference callable failed\nTraceback")
    assert "in raised" in failure.detail
    assert failure.detail.endswith("ValueError: bad weather")


@pytest.mark.parametrize("error", [ValueError, AssertionError])
def test_a_failure_without_text_names_the_class(error):
    assert failure_of(error(), "m").message == f"model 'm': {error.__name__}"


def test_a_failure_of_validation_does_not_name_the_class():
    assert failure_of(PyTritonValidationError("wrong dtype"), "m", 3)[:3] == (3, 1, "model 'm': wrong dtype")
