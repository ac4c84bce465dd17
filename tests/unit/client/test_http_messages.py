"""Messages over HTTP: requests equal tritonclient's, and every response is read however it arrives."""

from __future__ import annotations

import gc
import gzip
import json
import weakref
import zlib

import numpy as np
import pytest
import tritonclient.http
from array_strategies import arrays
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor

from pytriton.client.core import tensors
from pytriton.client.core.http import api
from pytriton.client.core.http.messages import RequestHead, ResponseReader, is_malformed
from pytriton.client.exceptions import PyTritonClientValueError
from pytriton.client.url import TritonUrl

named = st.dictionaries(st.text(min_size=1, max_size=5), arrays, min_size=1, max_size=3)
settings = st.fixed_dictionaries(
    {},
    optional={
        "request_id": st.text(max_size=5),
        "priority": st.integers(0, 9),
        "timeout": st.integers(1, 10**9),
        "parameters": st.dictionaries(
            st.text(max_size=5).map("x{}".format), st.one_of(st.booleans(), st.integers(-9, 9), st.text(max_size=5))
        ),
    },
)


def inputs_of(library, content):
    return [
        library.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype)).set_data_from_numpy(array)
        for name, array in content.items()
    ]


def same(one, other):
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def array_named(result, name):
    return result.array([each for each, _, _ in result.outputs].index(name))


def response_with(content):
    """A response of Triton with outputs, as bytes, and the length of its JSON."""
    outputs, parts = [], []
    for name, array in content.items():
        datatype = np_to_triton_dtype(array.dtype)
        part = (serialize_byte_tensor(array).item() if array.size else b"") if datatype == "BYTES" else array.tobytes()
        parameters = {"binary_data_size": len(part)}
        outputs.append({"name": name, "datatype": datatype, "shape": list(array.shape), "parameters": parameters})
        parts.append(part)
    head = json.dumps({"model_name": "m", "outputs": outputs}).encode()
    body = b"".join([head, *parts])
    return (
        b"HTTP/1.1 200 OK\r\nInference-Header-Content-Length: %d\r\nContent-Length: %d\r\n\r\n" % (len(head), len(body))
        + body,
        body,
        len(head),
    )


def read(data, sizes=(1 << 30,), buffer=65536):
    """Reads a response that arrives in pieces of these sizes, over and over; returns the reader."""
    reader = ResponseReader(memoryview(bytearray(buffer)))
    position = turn = 0
    while reader.response is None and position < len(data):
        into = reader.buffer
        count = min(sizes[turn % len(sizes)], len(into), len(data) - position)
        into[:count] = data[position : position + count]
        reader.received(count)
        position, turn = position + count, turn + 1
    return reader


@given(named, settings, st.booleans())
def test_requests_equal_those_of_tritonclient(content, options, all_outputs):
    def outputs_of(library):
        return None if all_outputs else [library.InferRequestedOutput("y"), library.InferRequestedOutput("z")]

    theirs, size = tritonclient.http.InferenceServerClient.generate_request_body(
        inputs_of(tritonclient.http, content), outputs_of(tritonclient.http), **options
    )
    call = api.call_of("infer", "m", inputs_of(tensors, content), "", outputs_of(tensors), **options)

    ours = b"".join(call.parts)
    head = int(call.headers["Inference-Header-Content-Length"])
    assert json.loads(ours[:head]) == json.loads(theirs[:size])
    assert ours[head:] == theirs[size:]


@given(named, st.lists(st.integers(1, 40), min_size=1, max_size=4), st.sampled_from([50, 65536]))
def test_responses_are_read_as_tritonclient_does(content, sizes, buffer):
    data, body, head = response_with(content)
    reader = read(data, sizes, buffer)
    result = api.call_of("infer", "m", []).read(reader.response)
    theirs = tritonclient.http.InferenceServerClient.parse_response_body(body, header_length=head)

    assert reader.is_reusable
    assert [name for name, _, _ in result.outputs] == list(content)
    for name, array in content.items():
        ours = array_named(result, name)
        assert same(ours, theirs.as_numpy(name)) if array.dtype != object else (ours == array).all()
        assert ours.shape == array.shape
        assert ours.flags.aligned
        assert array.dtype == object or not ours.flags.writeable


def test_a_large_output_is_a_view_of_what_was_received():
    content = {"small": np.arange(3, dtype=np.uint8), "large": np.arange(100_001, dtype=np.float32)}
    for arranged in (content, dict(reversed(content.items()))):
        reader = read(response_with(arranged)[0], sizes=[999])
        result = api.call_of("infer", "m", []).read(reader.response)
        received = np.frombuffer(reader.response.body, np.uint8)
        for name, array in arranged.items():
            output = array_named(result, name)
            assert same(output, array)
            assert output.flags.aligned
        is_first = next(iter(arranged)) == "large"
        assert (
            np.shares_memory(array_named(result, "large"), received) is is_first
        )  # behind three bytes, it is not aligned


def test_a_large_input_is_not_copied():
    array = np.arange(100_000, dtype=np.float32)
    [tensor] = inputs_of(tensors, {"x": array})

    assert np.shares_memory(np.frombuffer(tensor.content, np.uint8), array)
    [turned] = inputs_of(tensors, {"x": array.reshape(1000, 100).T})
    assert bytes(turned.content) == array.reshape(1000, 100).T.tobytes()


def test_json_outputs():
    outputs = [
        {"name": "y", "datatype": "FP32", "shape": [2], "data": [1, 2]},
        {"name": "t", "datatype": "BYTES", "shape": [1], "data": ["a"]},
    ]
    body = json.dumps({"outputs": outputs}).encode()
    result = api.call_of("infer", "m", []).read(api.Response(200, {}, body))

    assert same(array_named(result, "y"), np.float32([1, 2]))
    assert array_named(result, "t").tolist() == ["a"]


@pytest.mark.parametrize(
    "size",
    [
        pytest.param(1, id="byte by byte"),
        pytest.param(7, id="in pieces"),
        pytest.param(1 << 30, id="at once"),
    ],
)
@pytest.mark.parametrize(
    ("data", "body", "is_reusable"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", b"", True),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 3\r\n\r\nabc", b"abc", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", b"abc", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x=y\r\nbc\r\n0\r\n\r\n", b"abc", True),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", b"abc", True),
    ],
)
def test_forms_of_responses(data, body, is_reusable, size):
    reader = read(data, [size])

    assert bytes(reader.response.body) == body
    assert (reader.response.status, reader.is_reusable) == (200, is_reusable)


def test_bytes_after_a_response_end_the_connection():
    reader = read(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx")

    assert (bytes(reader.response.body), reader.is_reusable) == (b"abc", False)


@pytest.mark.parametrize(
    ("data", "is_complete"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\nabc", True),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nabc", False),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n", False),
        (b"HTTP/1.1 200 OK\r\nContent-", False),
        (b"", False),
    ],
)
def test_the_end_of_the_connection(data, is_complete):
    reader = read(data)

    assert reader.ended() is is_complete
    assert not reader.is_reusable
    assert not is_complete or reader.response.body == b"abc"


@pytest.mark.parametrize(
    "data",
    [
        b"SSH-2.0-OpenSSH_9.6\r\n",
        b"\x15\x03\x01\x00\x02\x02\x46",
        bytes([0, 0, 0, 4, 0, 0, 0, 0, 0]),
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nab",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: upgrade\r\n\r\n\0\0",
    ],
)
def test_malformed_http(data):
    with pytest.raises(Exception) as caught:
        read(data)

    assert is_malformed(caught.value)


@pytest.mark.parametrize(("encoding", "compress"), [("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_compressed_responses(encoding, compress):
    content = {"y": np.arange(5, dtype=np.int32)}
    _, body, head = response_with(content)
    headers = {b"content-encoding": encoding.encode(), b"inference-header-content-length": b"%d" % head}
    infer = api.call_of("infer", "m", [])

    requested = {"accept-Encoding": encoding}
    assert same(array_named(infer.read(api.Response(200, headers, compress(body)).to(requested)), "y"), content["y"])
    with pytest.raises(ValueError, match="the body is not"):
        infer.read(api.Response(200, headers, body).to(requested))
    with pytest.raises(ValueError, match=rf"compressed \({encoding}\), which was not requested"):
        infer.read(api.Response(200, headers, compress(body)).to({}))


def test_too_deeply_nested_json_is_not_from_triton():
    deep = b"[" * 200_000

    with pytest.raises(ValueError, match="nested too deeply"):
        api.call_of("infer", "m", []).read(api.Response(200, {}, deep))
    with pytest.raises(api.UnexpectedResponseError) as caught:
        api.call_of("get_model_config", "m").read(api.Response(200, {}, deep))
    for error in (caught.value, api.StatusError(api.Response(500, {}, deep))):
        assert "does not respond like Triton" in str(api.translated("http://localhost:8000", error))


def test_a_closed_reader_needs_no_garbage_collection():
    gc.disable()
    try:
        reader = read(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc")
        reader.close()
        body, found = bytes(reader.response.body), weakref.ref(reader)
        del reader
        assert (body, found()) == (b"abc", None)
    finally:
        gc.enable()


def test_the_headers_of_a_request():
    head = RequestHead(TritonUrl.from_url("http://[::1]:8000/behind"))
    call = api.call_of("load_model", "a b/c", config="{}")

    assert head.of(call, {}, 7) == (
        b"POST /behind/v2/repository/models/a%20b%2Fc/load HTTP/1.1\r\nHost: [::1]:8000\r\nUser-Agent: pytriton\r\n"
        b"Accept-Encoding: identity\r\n"
        b"Content-Type: application/json\r\nContent-Length: 7\r\n\r\n"
    )
    ready = api.call_of("is_model_ready", "m", "3")
    assert head.of(ready, {"host": "other", "X-Trace": "7"}, 0) == (
        b"GET /behind/v2/models/m/versions/3/ready HTTP/1.1\r\nUser-Agent: pytriton\r\n"
        b"Accept-Encoding: identity\r\n"
        b"host: other\r\nX-Trace: 7\r\n\r\n"
    )


@pytest.mark.parametrize("name", ["Transfer-Encoding", "content-length"])
def test_invalid_headers(name):
    with pytest.raises(PyTritonClientValueError, match=f"Unsupported HTTP header: '{name}'"):
        RequestHead(TritonUrl.from_url("localhost")).of(api.call_of("is_server_ready"), {name: "1"}, 0)


@pytest.mark.parametrize(
    ("name", "value"),
    [("X-A", "1\r\nX-B: 2"), ("X-A", "1\n"), ("X-A", "\0"), ("X-A: 1\r\nX-B", "2"), ("", "1"), ("X-A", "€")],
)
def test_headers_with_line_breaks(name, value):
    with pytest.raises(PyTritonClientValueError, match="characters that HTTP does not allow"):
        RequestHead(TritonUrl.from_url("localhost")).of(api.call_of("is_server_ready"), {name: value}, 0)


@pytest.mark.parametrize("name", ["priority", "timeout", "triton_x", "binary_data_output"])
def test_reserved_parameters(name):
    with pytest.raises(PyTritonClientValueError, match=f'Parameter "{name}" is a reserved parameter'):
        api.call_of("infer", "m", [], parameters={name: 1})
