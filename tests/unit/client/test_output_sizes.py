"""Expected sizes of outputs, and the layout of a shared memory region."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from pytriton.client.core.failures import server_error
from pytriton.client.core.requests import EncodedRequest
from pytriton.client.core.shared_memory import MIN_BYTES, OutputSizes, _laid_out, _rounded
from pytriton.client.exceptions import Failure
from pytriton.model_config.triton_model_config import TensorSpec, TritonModelConfig


def spec(name, datatype, *shape):
    return TensorSpec(name, shape, datatype)


CONFIG = TritonModelConfig(
    "M",
    max_batch_size=8,
    inputs=[spec("x", "FP32", -1)],
    outputs=[
        spec("fixed", "FP32", 20_000),
        spec("free", "FP32", -1),
        spec("text", "BYTES", 20_000),
        spec("tiny", "INT8", 1),
    ],
)


def request(rows=1, length=5, outputs=None):
    return EncodedRequest([(CONFIG.inputs[0], np.zeros((rows, length), np.float32))], False, outputs=outputs)


def test_the_size_of_a_fixed_shape_is_known_at_once():
    sizes = OutputSizes(CONFIG)

    assert sizes.expected(request()) == {"fixed": 80_000}
    assert sizes.expected(request(rows=3)) == {"fixed": 240_000}


def test_the_size_of_a_varying_output_is_learned_per_input_shape():
    sizes = OutputSizes(CONFIG)
    sizes.learn(request(length=5), {"free": np.zeros(100_000, np.uint8), "text": np.zeros(100_000, np.uint8)})

    assert sizes.expected(request(length=5)) == {"fixed": 80_000, "free": 100_000}
    assert sizes.expected(request(length=6)) == {"fixed": 80_000}


def test_small_outputs_are_ignored():
    sizes = OutputSizes(CONFIG)
    sizes.learn(request(), {"free": np.zeros(MIN_BYTES - 1, np.uint8)})

    assert "free" not in sizes.expected(request())


def test_only_requested_outputs():
    assert OutputSizes(CONFIG).expected(request(outputs=["free"])) == {}


def test_a_wrong_expectation_is_dropped():
    sizes = OutputSizes(CONFIG)
    sizes.learn(request(), {"free": np.zeros(100_000, np.uint8)})
    error = server_error("shared memory size ... for output 'free' (8 bytes) should be at least 16", Failure.REFUSED)
    sizes.outgrown(error, sizes.expected(request()))

    assert sizes.expected(request()) == {"fixed": 80_000}


def test_the_number_of_remembered_sizes_is_bounded():
    sizes = OutputSizes(CONFIG)
    for length in range(1000):
        sizes.learn(request(length=length), {"free": np.zeros(MIN_BYTES, np.uint8)})

    assert "free" in sizes.expected(request(length=999))
    assert "free" not in sizes.expected(request(length=0))


@given(st.dictionaries(st.text(), st.integers(0, 10_000)))
def test_tensors_in_a_region_do_not_overlap(sizes):
    layout, end = _laid_out(sizes)

    taken = sorted(layout.values())
    assert all(offset % 64 == 0 for offset, _ in taken)
    assert all(first + size <= second for (first, size), (second, _) in itertools.pairwise(taken))
    assert all(offset + size <= end for offset, size in taken)


@given(st.integers(1, 1 << 40))
def test_regions_are_at_most_a_quarter_or_a_page_larger_than_needed(size):
    assert size <= _rounded(size) <= max(size + 4096, size * 5 // 4 + 1)
    assert _rounded(_rounded(size)) == _rounded(size)
