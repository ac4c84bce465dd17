"""Messages over gRPC: requests are those of Protocol Buffers' library, and so are the responses that are read."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from array_strategies import NUMBERS, arrays
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2
from tritonclient.utils import np_to_triton_dtype

from pytriton.client.core import tensors
from pytriton.client.core.grpc import api, results
from pytriton.client.exceptions import PyTritonClientValueError
from pytriton.model_config.datatypes import datatype_by_name
from pytriton.proxy.tensors.bytes_tensor import encode_elements

large = st.sampled_from(NUMBERS).flatmap(
    lambda dtype: st.integers(60_000, 200_000).map(lambda size: (np.arange(size) % 100).astype(dtype))
)
named = st.dictionaries(st.text(min_size=1, max_size=5), st.one_of(arrays, large), min_size=1, max_size=3)
options = st.fixed_dictionaries(
    {},
    optional={
        "request_id": st.text(max_size=5),
        "priority": st.integers(0, 9),
        "timeout": st.integers(1, 10**9),
        "parameters": st.dictionaries(
            st.text(max_size=5).map("x{}".format),
            st.one_of(st.booleans(), st.integers(-9, 9), st.floats(allow_nan=False), st.text(max_size=5)),
        ),
        "sequence_id": st.one_of(st.integers(0, 9), st.text(max_size=3)),
        "sequence_start": st.booleans(),
    },
)
KINDS = {bool: "bool_param", int: "int64_param", float: "double_param", str: "string_param"}


def encoded(*args, **kwargs):
    return api.call_of("infer", *args, **kwargs).message


def content_of(array):
    return encode_elements(array.ravel().tolist()) if array.dtype == object else array.tobytes()


def input_of(name, array):
    datatype = np_to_triton_dtype(array.dtype)
    return tensors.InferInput(name, array.shape, datatype).set_data_from_numpy(array)


def message_with(content):
    """A response of Triton with outputs."""
    message = service_pb2.ModelInferResponse(model_name="m", model_version="3", id="7")
    message.parameters["final"].bool_param = True
    for name, array in content.items():
        message.outputs.add(name=name, datatype=np_to_triton_dtype(array.dtype), shape=array.shape)
        message.raw_output_contents.append(content_of(array))
    return message


def check(result, content):
    assert [name for name, _, _ in result.outputs] == list(content)
    assert (result.message.model_name, result.message.id) == ("m", "7")
    assert result.message.parameters["final"].bool_param
    for index, array in enumerate(content.values()):
        received = result.array(index)
        assert (received.dtype, received.shape) == (array.dtype, array.shape)
        assert content_of(received) == content_of(array)
        assert received.flags.aligned
        assert array.dtype == object or not received.flags.writeable


@given(named, options, st.sampled_from(["", "2"]), st.sampled_from([None, ["y"], ["y", "z"]]))
def test_requests_are_read_by_protocol_buffers(content, options, version, wanted):
    outputs = wanted and [tensors.InferRequestedOutput(name) for name in wanted]
    request = encoded("m", [input_of(*each) for each in content.items()], version, outputs, **options)

    expected = service_pb2.ModelInferRequest(model_name="m", model_version=version, id=options.get("request_id", ""))
    for name, array in content.items():
        expected.inputs.add(name=name, datatype=np_to_triton_dtype(array.dtype), shape=array.shape)
        expected.raw_input_contents.append(content_of(array))
    for name in wanted or ():
        expected.outputs.add(name=name)
    parameters = {(name, KINDS[type(value)]): value for name, value in options.get("parameters", {}).items()}
    if options.get("priority"):
        parameters["priority", "uint64_param"] = options["priority"]
    if "timeout" in options:
        parameters["timeout", "int64_param"] = options["timeout"]
    if sequence := options.get("sequence_id"):
        parameters["sequence_id", KINDS[type(sequence)]] = sequence
        parameters["sequence_start", "bool_param"] = options.get("sequence_start", False)
        parameters["sequence_end", "bool_param"] = False
    for (name, kind), value in parameters.items():
        setattr(expected.parameters[name], kind, value)
    assert service_pb2.ModelInferRequest.FromString(request) == expected


def test_tensors_in_shared_memory_are_described_and_have_no_content():
    behind = tensors.InferInput("b", (2,), "FP32").set_shared_memory("region", 8, 64)
    output = tensors.InferRequestedOutput("y")
    output.set_shared_memory("region", 8)
    array = np.float32([1])

    request = encoded("m", [behind, input_of("a", array)], "", [output])

    message = service_pb2.ModelInferRequest.FromString(request)
    assert [
        MessageToDict(each.parameters["shared_memory_region"]) for each in (*message.inputs[:1], *message.outputs)
    ] == [{"stringParam": "region"}] * 2
    assert message.inputs[0].parameters["shared_memory_offset"].int64_param == 64
    assert message.outputs[0].parameters["shared_memory_byte_size"].int64_param == 8
    assert list(message.raw_input_contents) == [array.tobytes()]


@pytest.mark.parametrize("name", ["priority", "timeout", "sequence_id", "triton_x"])
def test_reserved_parameters_are_refused(name):
    with pytest.raises(PyTritonClientValueError, match=f'"{name}" is a reserved parameter'):
        encoded("m", [], parameters={name: 1})


@given(named)
def test_responses_are_read(content):
    check(results.read_response(message_with(content).SerializeToString()), content)


@given(named)
def test_responses_of_streams_are_read(content):
    response = service_pb2.ModelStreamInferResponse(infer_response=message_with(content))
    result, error = results.read_stream_response(response.SerializeToString())
    assert error == ""
    check(result, content)


@pytest.mark.parametrize("length", [5, 100_000])
def test_an_error_in_a_stream_has_no_result(length):
    response = service_pb2.ModelStreamInferResponse(error_message="x" * length)
    assert results.read_stream_response(response.SerializeToString()) == (None, "x" * length)


@given(named, st.randoms())
def test_responses_are_read_in_any_order_of_their_fields(content, random):
    message = message_with(content)
    parts = [service_pb2.ModelInferResponse(raw_output_contents=[part]) for part in message.raw_output_contents]
    del message.raw_output_contents[:]
    order = [0] * len(parts) + [1]
    random.shuffle(order)
    contents = iter(parts)
    body = b"".join((message if is_rest else next(contents)).SerializeToString() for is_rest in order)
    check(results.read_response(body), content)


UNKNOWN = {
    "a number": b"\xd0\x05\x96\x01",
    "eight bytes": b"\xd1\x05" + bytes(8),
    "four bytes": b"\xd5\x05" + bytes(4),
    "a text": b"\xd2\x05\x02ab",
    "a group": b"\xd3\x05\x08\x01\xd4\x05",
    "contents that are a number": b"\x30\x01",
}


@pytest.mark.parametrize("unknown", UNKNOWN.values(), ids=UNKNOWN)
@pytest.mark.parametrize("is_first", [True, False])
def test_unknown_fields_of_large_responses_are_ignored(unknown, is_first):
    content = {"y": np.arange(50_000, dtype=np.float32), "z": np.arange(3)}
    body = message_with(content).SerializeToString()
    check(results.read_response(unknown + body if is_first else body + unknown), content)


@pytest.mark.parametrize("is_first", [True, False])
def test_an_error_beside_a_large_result_takes_precedence(is_first):
    error = service_pb2.ModelStreamInferResponse(error_message="broken").SerializeToString()
    result = service_pb2.ModelStreamInferResponse(infer_response=message_with({"y": np.zeros(90_000)}))
    body = result.SerializeToString()
    assert results.read_stream_response(error + body if is_first else body + error) == (None, "broken")


def test_a_large_output_is_a_view_of_what_was_received_if_that_is_aligned():
    content = {"y": np.arange(200_000, dtype=np.uint8)}
    body = message_with(content).SerializeToString()
    assert np.shares_memory(results.read_response(body).array(0), np.frombuffer(body, np.uint8))


def test_outputs_without_binary_content():
    message = service_pb2.ModelInferResponse()
    message.outputs.add(name="t", datatype="BYTES", shape=[2]).contents.bytes_contents.extend([b"a", b"b"])
    message.outputs.add(name="e", datatype="FP32", shape=[0, 3])
    result = results.read_response(message.SerializeToString())
    assert result.array(0).tolist() == [b"a", b"b"]
    assert (result.array(1).shape, result.array(1).dtype) == ((0, 3), np.float32)


def test_a_small_part_of_a_large_response_is_copied_and_keeps_nothing_else_in_memory():
    content = {"small": np.zeros(70_000, np.uint8), "large": np.zeros(10_000_000, np.uint8)}
    body = message_with(content).SerializeToString()
    result, received = results.read_response(body), np.frombuffer(body, np.uint8)
    assert not np.shares_memory(result.array(0), received)
    assert np.shares_memory(result.array(1), received)


@pytest.mark.parametrize("datatype", ["BOOL", "INT8", "INT32", "INT64", "UINT16", "UINT64", "FP32", "FP64"])
def test_outputs_with_typed_contents(datatype):
    message = service_pb2.ModelInferResponse()
    output = message.outputs.add(name="y", datatype=datatype, shape=[2])
    getattr(output.contents, results._TYPED_CONTENTS[datatype]).extend([1, 0])
    array = results.read_response(message.SerializeToString()).array(0)
    assert (array.tolist(), array.dtype) == ([1, 0], datatype_by_name(datatype).numpy_dtype)
    assert not array.flags.writeable


def test_transposed_inputs_are_sent_in_their_order():
    array = np.arange(40_000, dtype=np.float32).reshape(200, 200).T
    message = service_pb2.ModelInferRequest.FromString(encoded("m", [input_of("x", array)]))
    assert message.raw_input_contents[0] == array.tobytes()


def test_the_last_location_of_a_tensor_takes_precedence():
    array = np.float32([1])
    behind = input_of("x", array).set_shared_memory("region", 4)
    assert not service_pb2.ModelInferRequest.FromString(encoded("m", [behind])).raw_input_contents
    message = service_pb2.ModelInferRequest.FromString(encoded("m", [behind.set_data_from_numpy(array)]))
    assert not message.inputs[0].parameters
    assert list(message.raw_input_contents) == [array.tobytes()]


@pytest.mark.parametrize(
    "options",
    [{"request_id": "\ud800"}, {"parameters": {"x": "\ud800"}}, {"parameters": {"x": [1]}}, {"sequence_id": 2**63}],
    ids=repr,
)
def test_unencodable_arguments_are_refused(options):
    with pytest.raises(PyTritonClientValueError, match="cannot be sent over gRPC"):
        encoded("m", [], **options)


def test_a_request_of_two_gigabytes_is_refused_before_it_is_joined():
    array = np.zeros(2**31, np.uint8)  # which takes no memory until it is read
    with pytest.raises(PyTritonClientValueError, match=r"2,147,483,\d+ bytes.*use HTTP"):
        encoded("m", [input_of("x", array)])


@pytest.mark.parametrize("read", [results.read_response, results.read_stream_response])
@given(st.binary(max_size=200), st.booleans())
def test_any_other_bytes_are_refused_or_have_no_output(read, body, is_large):
    if is_large:  # tensors are cut out
        body += b"\xff" * 500_000
    with contextlib.suppress(ValueError, DecodeError):
        read(body)


@given(st.integers(1, 99_999))
def test_a_large_response_that_ends_early_is_refused(missing):
    body = message_with({"y": np.zeros(100_000, np.uint8)}).SerializeToString()
    with pytest.raises(DecodeError):
        results.read_response(body[:-missing])
