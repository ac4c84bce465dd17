from __future__ import annotations

import ml_dtypes
import numpy as np
import psutil
import pytest
from datatypes import INTEGERS, NUMBERS, assert_same_bits, identity_of, samples_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from serving import NO_BATCHING, InferenceServerException, client_of, infer_json
from tritonclient.utils import triton_to_np_dtype

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

GIB = 1 << 30

TEXTS = [
    pytest.param([b"a", b"bc"], id="plain"),
    pytest.param([b"\xff\xfe\x80", b"\x01"], id="not UTF-8"),
    pytest.param([b"a\0\0", b"\0", b"\0b"], id="zeros, trailing ones too"),
    pytest.param([b"", b"", b"x", b""], id="empty"),
    pytest.param(["żółć ✓ 🐍".encode()], id="unicode"),
    pytest.param([bytes(range(256)) * 300], id="long"),
]


@pytest.mark.parametrize("dtype", NUMBERS)
def test_numbers_are_sent_and_returned_bit_by_bit(triton, client, name, dtype):
    seen = identity_of(triton, name, dtype)
    sent = samples_of(dtype)

    received = client.infer(name, {"x": sent})["y"]

    assert_same_bits(seen[0], sent)
    assert_same_bits(received, sent)


@pytest.mark.parametrize("dtype", [np.bool_, *INTEGERS, np.float32, np.float64])
def test_numbers_are_sent_and_returned_as_json(triton, name, dtype):
    seen = identity_of(triton, name, dtype)
    sent = np.array([[0, 1]], dtype)
    datatype = Tensor(shape=(1,), dtype=dtype).datatype.name

    status, response = infer_json(
        triton, name, [{"name": "x", "shape": [1, 2], "datatype": datatype, "data": sent.tolist()}]
    )

    assert status == 200, response
    assert_same_bits(seen[0], sent)
    assert response["outputs"] == [{"name": "y", "shape": [1, 2], "datatype": datatype, "data": sent.ravel().tolist()}]


def test_bfloat16_is_sent_and_returned_by_ml_dtypes(triton, client, name):
    seen = identity_of(triton, name, ml_dtypes.bfloat16)
    values = np.array([[1.5, -0.0, 3e38], [np.nan, np.inf, 1e-38]], ml_dtypes.bfloat16)
    # Older clients have float32 stand for it.
    sent = values.astype(triton_to_np_dtype("BF16"))

    received = client.infer(name, {"x": sent}, datatypes={"x": "BF16"})["y"]

    assert_same_bits(seen[0], values)
    assert_same_bits(received, sent)


@pytest.mark.parametrize("texts", TEXTS)
def test_bytes_are_sent_and_returned_unchanged(triton, client, name, texts):
    seen = identity_of(triton, name, bytes)

    received = client.infer(name, {"x": np.array([texts], object)})["y"]

    assert seen[0].dtype == object
    assert seen[0].tolist() == [texts]
    assert received.tolist() == [texts]


@pytest.fixture(scope="module")
def bytes_model(triton):
    return identity_of(triton, "any_bytes", object, shape=(-1, -1), config=ModelConfig(max_batch_size=64))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.tuples(st.integers(1, 4), st.integers(0, 4), st.integers(1, 4)).flatmap(
        lambda shape: st.lists(st.binary(max_size=40), min_size=int(np.prod(shape)), max_size=int(np.prod(shape))).map(
            lambda items: (shape, items)
        )
    )
)
def test_any_bytes_of_any_shape_are_sent_and_returned(bytes_model, client, shaped):
    shape, items = shaped
    sent = np.empty(len(items), object)
    sent[:] = items
    sent = sent.reshape(shape)

    received = client.infer("any_bytes", {"x": sent})["y"]

    assert bytes_model[-1].shape == shape
    assert bytes_model.pop().tolist() == received.tolist() == sent.tolist()


def test_text_is_sent_and_returned_as_json(triton, name):
    seen = identity_of(triton, name, str)
    texts = ["", "ascii", "żółć ✓ 🐍"]

    status, response = infer_json(triton, name, [{"name": "x", "shape": [1, 3], "datatype": "BYTES", "data": texts}])

    assert status == 200, response
    assert seen[0].tolist() == [[text.encode() for text in texts]]
    assert response["outputs"][0]["data"] == texts


@pytest.mark.parametrize(
    "returned", [["é", "bc"], [b"\xc3\xa9", b"bc"], np.array(["é", "bc"]), np.array([b"\xc3\xa9", b"bc"])]
)
def test_a_callable_may_return_text_or_bytes(triton, http_client, name, returned):
    array = returned if isinstance(returned, np.ndarray) else np.array(returned, object)
    triton.bind(
        name,
        batch(lambda x: [array.reshape(1, 2)]),
        inputs=[Tensor(name="x", shape=(1,), dtype=np.float32)],
        outputs=[Tensor(name="y", shape=(2,), dtype=bytes)],
    )

    received = http_client.infer(name, {"x": np.zeros((1, 1), np.float32)})["y"]

    assert received.tolist() == [["é".encode(), b"bc"]]


@pytest.mark.parametrize("dtype", [np.bool_, np.uint8, np.float64, ml_dtypes.bfloat16, bytes])
@pytest.mark.parametrize("shape", [(2, 0), (2, 0, 3), (0, 3)])
def test_dimensions_of_size_zero_are_sent_and_returned(triton, client, name, dtype, shape):
    batching = shape[0] != 0
    declared = (-1,) * (len(shape) - batching)
    seen = identity_of(triton, name, dtype, shape=declared, config=ModelConfig(batching=batching))
    datatype = Tensor(shape=(1,), dtype=dtype).datatype.name
    sent = np.zeros(shape, triton_to_np_dtype(datatype))

    received = client.infer(name, {"x": sent}, datatypes={"x": datatype})["y"]

    assert seen[0].shape == shape
    assert received.shape == shape


@pytest.mark.parametrize("dtype", [np.int32, bytes])
def test_scalars_have_no_dimension_without_batching(triton, client, name, dtype):
    seen = identity_of(triton, name, dtype, shape=(), config=NO_BATCHING)
    sent = np.array([b"abc"], object) if dtype is bytes else np.array([7], dtype)

    received = client.infer(name, {"x": sent})["y"]

    assert seen[0].shape == ()
    assert seen[0].item() == sent.item()
    assert received.tolist() == sent.tolist()


def test_scalars_of_a_batch_form_a_vector(triton, client, name):
    seen = identity_of(triton, name, np.int32, shape=())

    received = client.infer(name, {"x": np.array([[7], [8]], np.int32)})["y"]

    assert seen[0].tolist() == [7, 8]
    assert received.ravel().tolist() == [7, 8]


def test_arrays_that_are_not_contiguous_are_returned_in_their_order(triton, client, name):
    @batch
    def transposed(x):
        return [np.ascontiguousarray(x).swapaxes(1, 2), x[:, ::-1, ::2]]

    triton.bind(
        name,
        transposed,
        inputs=[Tensor(name="x", shape=(-1, -1), dtype=np.int64)],
        outputs=[Tensor(name="t", shape=(-1, -1), dtype=np.int64), Tensor(name="s", shape=(-1, -1), dtype=np.int64)],
    )
    x = np.arange(24).reshape(2, 3, 4)

    received = client.infer(name, {"x": x})

    assert received["t"].tolist() == x.swapaxes(1, 2).tolist()
    assert received["s"].tolist() == x[:, ::-1, ::2].tolist()


def test_inputs_are_views_of_shared_memory(triton, http_client, name):
    seen = identity_of(triton, name, np.float32)

    http_client.infer(name, {"x": np.ones((2, 3), np.float32)})

    assert not seen[0].flags.owndata
    assert seen[0].base is not None
    assert seen[0].ctypes.data % 64 == 0


def test_a_request_of_one_byte(triton, client, name):
    seen = identity_of(triton, name, np.uint8, shape=(1,))

    received = client.infer(name, {"x": np.array([[200]], np.uint8)})["y"]

    assert seen[0].nbytes == received.nbytes == 1
    assert received.tolist() == [[200]]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_request_of_a_gibibyte(triton, name):
    needed = 8 * GIB
    available = psutil.virtual_memory().available
    if available < needed:
        pytest.skip(f"needs {needed / GIB:.0f} GiB of memory, {available / GIB:.1f} are available")
    sums = []

    @batch
    def roll(x):
        sums.append(int(x.sum()))
        return [x[:, ::-1]]

    triton.bind(
        name,
        roll,
        inputs=[Tensor(name="x", shape=(-1,), dtype=np.int64)],
        outputs=[Tensor(name="y", shape=(-1,), dtype=np.int64)],
        config=ModelConfig(max_batch_size=1),
    )
    sent = np.arange(GIB // 8, dtype=np.int64).reshape(1, -1)

    with client_of(triton, "http") as client:
        received = client.infer(name, {"x": sent})["y"]

    assert sums == [int(sent.sum())]
    assert np.array_equal(received, sent[:, ::-1])


@pytest.mark.parametrize("datatype", ["FP32", "BYTES"])
def test_a_datatype_other_than_the_declared_one_is_refused(triton, client, name, datatype):
    identity_of(triton, name, np.int32)
    sent = np.array([[b"abcd"]], object) if datatype == "BYTES" else np.ones((1, 1), np.float32)

    with pytest.raises(InferenceServerException, match=name):
        client.infer(name, {"x": sent})
