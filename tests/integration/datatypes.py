"""Models that return their input, and arrays for them."""

from __future__ import annotations

import numpy as np

from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor

INTEGERS = [np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64]
FLOATS = [np.float16, np.float32, np.float64]
NUMBERS = [np.bool_, *INTEGERS, *FLOATS]


def identity_of(triton, name, dtype, *, shape=(-1,), **arguments):
    """Binds a model that returns its input, and returns a list of the arrays that its callable was given."""
    seen = []

    @batch
    def identity(x):
        seen.append(x)
        return {"y": x}

    def unbatched(requests):
        seen.extend(request["x"] for request in requests)
        return [{"y": request["x"]} for request in requests]

    batching = arguments.get("config", ModelConfig()).batching
    triton.bind(
        model_name=name,
        infer_func=identity if batching else unbatched,
        inputs=[Tensor(name="x", shape=shape, dtype=dtype)],
        outputs=[Tensor(name="y", shape=shape, dtype=dtype)],
        **arguments,
    )
    return seen


def samples_of(dtype):
    """Values at the limits of a dtype, as a batch of two."""
    dtype = np.dtype(dtype)
    if dtype.kind == "b":
        return np.array([[True, False, True], [False, False, True]])
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        return np.array([[info.min, 0, info.max], [1, 2, 3]], dtype)
    info = np.finfo(dtype)
    return np.array([[info.min, -0.0, info.max], [np.nan, np.inf, info.tiny]], dtype)


def assert_same_bits(actual, expected):
    assert actual.dtype == expected.dtype
    assert actual.shape == expected.shape
    assert actual.tobytes() == expected.tobytes()
