"""The fast path for samples gives the same results as the general one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.gateway.errors import RequestError
from pytriton.gateway.json_tensors import json_of, parse, samples_of
from pytriton.gateway.sample_codec import SampleCodec
from pytriton.model_config.triton_model_config import TritonModelConfig

TYPES = ["FP16", "FP32", "FP64", "INT8", "INT32", "INT64", "UINT8", "UINT64", "BOOL", "STRING"]


def config_of(datatype, dims, max_batch_size, optional=False):
    tensor = {"data_type": f"TYPE_{datatype}", "dims": dims}
    message = {
        "name": "m",
        "backend": "pytriton",
        "max_batch_size": max_batch_size,
        "input": [{"name": "x", "optional": optional, **tensor}, {"name": "a-b", "optional": True, **tensor}],
        "output": [{"name": "y", **tensor}],
    }
    return TritonModelConfig.from_dict(message, "1")


configs = st.builds(
    config_of,
    st.sampled_from(TYPES),
    st.lists(st.sampled_from([-1, 1, 2]), max_size=3),
    st.sampled_from([0, 8]),
    st.booleans(),
)
leaves = st.one_of(
    st.integers(-(1 << 70), 1 << 70),
    st.integers(-2, 300),
    st.floats(allow_nan=False),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
    st.just({"b64": "AAA="}),
)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3), max_leaves=8)


@given(config=configs, body=st.dictionaries(st.sampled_from(["x", "a-b", "z"]), values, max_size=3))
def test_the_fast_path_decodes_like_the_general_one(config, body):
    written = json.dumps(body).encode()
    arrays = SampleCodec(config).decode(written)
    if arrays is None:
        return
    expected = samples_of(config, parse(written), 10)
    assert expected.layout == "sample"
    [long_way] = expected.arrays
    assert list(arrays) == list(long_way)
    for name, array in arrays.items():
        assert (array.dtype, array.shape) == (long_way[name].dtype, long_way[name].shape)
        np.testing.assert_array_equal(array, long_way[name])


@pytest.mark.parametrize(
    ("datatype", "dims", "value"),
    [("FP32", [2], [1, 2.5]), ("INT8", [1], -128), ("BOOL", [-1], [True]), ("STRING", [1], "Zoë"), ("FP32", [1, 1], 3)],
)
def test_the_fast_path_covers_usual_requests(datatype, dims, value):
    arrays = SampleCodec(config_of(datatype, dims, 8)).decode(json.dumps({"x": value}).encode())
    assert arrays is not None
    assert arrays["x"].shape == (1, *(len(value) if dim < 0 else dim for dim in dims))


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"x": [1, 2]', b'{"x": 1e39}', b'{"x": [[1, 2]]}', b'{"y": 1}', b'{"x": "a"}']
)
def test_mistakes_are_left_to_the_general_path(body):
    config = config_of("FP32", [2], 8)
    assert SampleCodec(config).decode(body) is None
    if body not in (b"[]", b'{"x": [[1, 2]]}'):
        with pytest.raises(RequestError):
            samples_of(config, parse(body), 10)


numbers = st.lists(st.floats(width=32), min_size=1, max_size=3)


@given(config=configs, rows=st.lists(numbers, min_size=1, max_size=2), scalar=st.booleans())
def test_the_fast_path_encodes_like_the_general_one(config, rows, scalar):
    array = np.array([row[:1] for row in rows], np.float32)
    outputs = {"y": array[:1] if scalar else array}
    sample = SampleCodec(config).sample_of(outputs)
    assert json.dumps(sample) == json.dumps(json_of([outputs], config, "sample"))


@pytest.mark.parametrize(("datatype", "element", "shown"), [("STRING", b"a", "a"), ("FP32", np.float32(2), 2.0)])
def test_a_vector_for_a_declared_column_is_one_value_per_sample(datatype, element, shown):
    outputs = {"y": np.array([element], object if datatype == "STRING" else None)}
    assert json_of([outputs], config_of(datatype, [1], 8), "sample") == {"y": shown}


def test_text_is_left_to_the_general_path():
    outputs = {"y": np.array([[b"a"]], object)}
    assert SampleCodec(config_of("STRING", [1], 8)).sample_of(outputs) is None
