"""Writing of results: copies, outputs that stay in the batch, and cached forms."""

from __future__ import annotations

import os

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from wiring import TIMES, floats, listed, result_of

from pytriton.decorators import batch as batched
from pytriton.exceptions import PyTritonValidationError
from pytriton.model_config import Tensor
from pytriton.proxy.tensors import result as result_module
from pytriton.proxy.tensors.batch import WholeBatch
from pytriton.proxy.tensors.stacked_outputs import StackedOutputs
from pytriton.proxy.transport.arena import PeerArena
from pytriton.proxy.types import Response
from pytriton.proxy.wire.inference import RequestMetadata

LARGE = 1 << 14
ONE = Tensor(name="y", shape=(-1,), dtype=np.float32)


@pytest.fixture
def large(wire):
    """A connection, and a batch of two requests with large rows."""
    connection = wire(outputs=[ONE])
    return connection, connection.batch({"x": floats(2, LARGE)}, {"x": floats(1, LARGE, start=50)})


def in_batch(result):
    return [column.in_batch for column in result.columns]


@pytest.mark.parametrize(
    "infer",
    [
        batched(lambda x: {"y": x}),
        batched(lambda x: {"y": x.view()[:]}),
        lambda requests: [{"y": request["x"]} for request in requests],
        lambda requests: [[request["x"]] for request in requests],
    ],
)
def test_unmodified_inputs_that_are_returned_are_not_copied(large, infer):
    connection, batch = large

    result, outputs = result_of(connection, batch, infer(WholeBatch(batch)))

    assert in_batch(result) == [True]
    assert listed(outputs)["y"] == [floats(2, LARGE).tolist(), floats(1, LARGE, start=50).tolist()]


def test_changes_of_a_returned_input_are_sent(large):
    connection, batch = large

    def negated(requests):
        for request in requests:
            request["x"][...] *= -1
        return [[request["x"]] for request in requests]

    result, outputs = result_of(connection, batch, negated(batch.requests()))

    assert in_batch(result) == [True]
    assert outputs["y"][1].tolist() == (-floats(1, LARGE, start=50)).tolist()


@pytest.mark.parametrize(
    "infer",
    [
        batched(lambda x: {"y": x + 1}),
        batched(lambda x: {"y": x.copy()}),
        batched(lambda x: {"y": x[::-1]}),
        batched(lambda x: {"y": x[:, ::2]}),
        batched(lambda x: {"y": np.concatenate([x[1:], x[:1]])}),
        lambda requests: [{"y": request["x"][:, 1:]} for request in requests],
        lambda requests: [{"y": request["x"][:1]} for request in requests],
    ],
)
def test_all_other_outputs_are_copied(large, infer):
    connection, batch = large
    expected = [np.array(response["y"]) for response in infer(batch.requests())]

    result, outputs = result_of(connection, batch, infer(batch.requests()))

    assert in_batch(result) == [False]
    assert all(map(np.array_equal, outputs["y"], expected))


def test_an_input_of_another_batch_is_copied(wire):
    connection = wire(outputs=[ONE])
    other = connection.batch({"x": floats(1, LARGE, start=9)}).requests()[0]["x"]

    result, outputs = result_of(connection, connection.batch({"x": floats(1, LARGE)}), [{"y": other}])

    assert in_batch(result) == [False]
    assert outputs["y"][0].tolist() == floats(1, LARGE, start=9).tolist()


@pytest.mark.parametrize(
    "infer", [batched(lambda x: {"y": x}), lambda requests: [[request["x"]] for request in requests]]
)
def test_a_batch_that_contains_the_result_is_held_until_its_release(wire, infer):
    connection = wire(outputs=[ONE])
    for _ in range(2):
        batch = connection.batch({"x": floats(1, LARGE)})
        returned = infer(WholeBatch(batch))

        offset, _ = connection.writer.write(returned, batch, TIMES, connection.results)
        del batch, returned
        held = connection.arena.in_use()
        PeerArena(os.dup(connection.results.fd)).lease(offset, 64)  # which dies at once, as when the server has read it

        assert held == 1
        assert connection.results.in_use() == 0
        assert connection.arena.in_use() == 0


def arrays():
    """Functions that make an array with so many rows, laid out in one way or another."""

    def make(drawn):
        columns, start, layout = drawn

        def array(rows):
            made = np.arange(start, start + rows * columns).reshape(rows, columns).astype(np.float32)
            return {"C": made, "F": np.asfortranarray(made), "cut": np.repeat(made, 2, 1)[:, ::2]}[layout]

        return array

    return st.tuples(st.integers(0, 5), st.integers(0, 1000), st.sampled_from(["C", "F", "cut"])).map(make)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(
    rows=st.lists(st.integers(1, 3), min_size=1, max_size=4),
    results=st.lists(st.tuples(arrays(), arrays(), st.booleans()), min_size=2, max_size=6),
)
def test_results_of_any_form_are_read_as_written_after_any_other(wire, rows, results):
    connection = wire()
    for y, z, in_order in results:
        batch = connection.batch(*[{"x": floats(count)} for count in rows])
        outputs = {"y": y(sum(rows)), "z": z(sum(rows))}
        returned = StackedOutputs(list(outputs.values()) if in_order else dict(reversed(outputs.items())), batch.rows)

        result, read = result_of(connection, batch, returned)

        assert (result.request_count, result.compute_start_ns, result.compute_end_ns) == (len(rows), *TIMES)
        for name, array in outputs.items():
            assert [each.tolist() for each in read[name]] == [
                each.tolist() for each in np.split(array, np.cumsum(rows)[:-1])
            ]


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        ({"y": floats(1), "z": floats(1).astype(np.complex64)}, "output 'z' has dtype complex64"),
        ({"y": floats(1), "z": floats(1)[None].tolist()}, r"output 'z' has shape \(1, 1, 3\)"),
        ({"y": floats(1), "z": [["a"] * 3]}, "output 'z' has dtype <U1"),
        ({"y": floats(1), "z": 1.5}, r"output 'z' has shape \(\)"),
        ({"a": floats(1)}, "an output 'a' that the model does not have"),
    ],
)
def test_outputs_are_checked_after_any_other_result(wire, outputs, reason):
    check_refused(wire(), outputs, reason)


@pytest.mark.parametrize(
    ("outputs", "reason"),
    [
        ({"y": floats(1), "z": np.full((1, 3), 1e300)}, "output 'z' has dtype float64, but float32"),
        ({"y": floats(1), "a": floats(1)}, "an output 'a' that the model does not have"),
        ({"y": floats(1), "z": floats(2)}, "output 'z' has 2 rows, but the batch has 1"),
        ({"y": floats(1)}, "did not return the output 'z'"),
        ({"y": floats(1), "z": floats(1), "a": floats(1)}, "an output 'a' that the model does not have"),
    ],
)
def test_strict_models_must_have_all_outputs_and_no_others(wire, outputs, reason):
    check_refused(wire(strict=True), outputs, reason)


def check_refused(connection, outputs, reason):

    def batch():
        return connection.batch({"x": floats(1)})

    for _ in range(2):
        result_of(connection, batch(), StackedOutputs({"y": floats(1), "z": floats(1)}, [1]))

    for _ in range(2):
        with pytest.raises(PyTritonValidationError, match=reason):
            result_of(connection, batch(), StackedOutputs(outputs, [1]))


@pytest.mark.parametrize("convert", [np.asarray, np.ndarray.tolist], ids=["arrays", "lists"])
def test_rows_beyond_those_of_the_batch_are_dropped_with_one_warning(wire, caplog, convert):
    connection = wire()

    for rows in ((2, 2), (1, 1), (1, 2), (2, 2)):
        batch = connection.batch(*({"x": floats(each)} for each in rows))
        outputs = StackedOutputs({"y": floats(sum(rows)), "z": convert(floats(4))}, list(rows))
        _, read = result_of(connection, batch, outputs)
        sizes = [np.shape(each) for each in listed(read)["z"]]
        assert sizes == [(each, 3) for each in rows]

    (warning,) = [each.getMessage() for each in caplog.records]
    assert "output 'z' has 4 rows, but the batch has 2" in warning
    assert "The rows beyond that are dropped." in warning


@pytest.mark.parametrize(
    "convert",
    [np.ndarray.tolist, lambda array: array.astype(np.float64), lambda array: array.astype(">f4"), tuple],
    ids=["a list", "float64", "another byte order", "a tuple of arrays"],
)
def test_outputs_are_converted_after_any_other_result(wire, convert):
    connection = wire()
    for each in (convert, np.asarray, convert):
        batch = connection.batch({"x": floats(2)}, {"x": floats(1, start=7)})
        whole = np.concatenate([floats(2), floats(1, start=7)])
        for returned in (
            StackedOutputs({"y": each(whole), "z": whole}, batch.rows),
            list(StackedOutputs([each(whole), whole], batch.rows)),
        ):
            _, outputs = result_of(connection, batch, returned)
            assert listed(outputs) == {name: [floats(2).tolist(), floats(1, start=7).tolist()] for name in "yz"}


@pytest.mark.parametrize("stacked", [False, True])
def test_some_outputs_may_be_missing(wire, stacked, caplog):
    connection = wire()
    for outputs in ({"z": floats(1)}, {"q": floats(1), "z": floats(1)}, {"z": floats(1)}):
        returned = StackedOutputs(outputs, [1]) if stacked else [outputs]
        _, sent = result_of(connection, connection.batch({"x": floats(1)}), returned)
        assert {name: value for name, value in listed(sent).items() if value != [None]} == {"z": [floats(1).tolist()]}
    (record,) = caplog.records
    assert "did not return the output 'y'. The response lacks it. Logged once; bind(..., strict=True) makes" in (
        record.getMessage()
    )


def test_strict_models_may_leave_out_only_outputs_that_are_not_requested(wire):
    connection = wire(strict=True)
    unwanted = connection.batch({"x": floats(1)}, metadata=[RequestMetadata(outputs=[0])])

    for _ in range(2):
        _, outputs = result_of(connection, unwanted, StackedOutputs({"y": floats(1)}, [1]))
        assert listed(outputs) == {"y": [floats(1).tolist()]}

    with pytest.raises(PyTritonValidationError, match="did not return the output 'z'"):
        result_of(connection, connection.batch({"x": floats(1)}), StackedOutputs({"y": floats(1)}, [1]))


def test_text_is_sent_whatever_its_form(wire):
    connection = wire(outputs=[Tensor(name="y", shape=(-1,), dtype=bytes)])
    batch = connection.batch({"x": floats(1)})

    for text in (b"a", b"bcd", b""):
        for array in (np.array([[text, b"x"]], object), np.array([[text, b"x"]])):
            _, outputs = result_of(connection, batch, StackedOutputs({"y": array}, [1]))
            assert listed(outputs) == {"y": [[[text, b"x"]]]}


def test_large_outputs_of_a_cached_form_are_copied_or_stay_in_the_batch(large):
    connection, batch = large
    x = batch.stacked()["x"]

    for output, stays in [(x, True), (x + 1, False), (x, True), (x.copy(), False)]:
        result, outputs = result_of(connection, batch, StackedOutputs({"y": output}, batch.rows))

        assert in_batch(result) == [stays]
        assert np.array_equal(np.concatenate(outputs["y"]), output)


def test_parameters_that_cannot_be_sent_are_refused(wire):
    connection = wire(outputs=[ONE])
    batch = connection.batch({"x": floats(1)})
    with pytest.raises(PyTritonValidationError, match=r"parameter 'score' of a response is .*0\.5.*, of type float32"):
        result_of(connection, batch, [Response({"y": floats(1)}, parameters={"score": np.float32(0.5)})])


def test_the_number_of_cached_forms_is_bounded(wire):
    connection = wire(outputs=[ONE])

    for columns in [*range(2 * result_module._MOST_FORMS), 3]:
        batch = connection.batch({"x": floats(1)})
        _, outputs = result_of(connection, batch, StackedOutputs({"y": floats(1, columns)}, [1]))
        assert listed(outputs) == {"y": [floats(1, columns).tolist()]}

    assert len(connection.writer._forms) <= result_module._MOST_FORMS
