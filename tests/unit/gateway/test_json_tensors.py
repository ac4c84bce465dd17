"""Numbers of JSON become arrays."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.gateway.errors import RequestError
from pytriton.gateway.json_tensors import samples_of
from pytriton.model_config.triton_model_config import TritonModelConfig

COUNTS = TritonModelConfig.from_dict(
    {
        "name": "Counts",
        "backend": "pytriton",
        "max_batch_size": 8,
        "input": [{"name": "n", "data_type": "TYPE_INT32", "dims": [-1]}],
        "output": [{"name": "n", "data_type": "TYPE_INT32", "dims": [-1]}],
    },
    "1",
)
INTEGERS = st.integers(-(1 << 31), (1 << 31) - 1)


@given(st.lists(INTEGERS | INTEGERS.map(float), min_size=1))
def test_whole_numbers_are_integers(numbers):
    (batch,) = samples_of(COUNTS, {"n": numbers}, 1).arrays
    assert batch["n"].dtype == np.int32
    assert batch["n"].tolist() == [numbers]


def test_whole_numbers_are_integers_in_a_batch():
    (batch,) = samples_of(COUNTS, {"n": [[1.0, 2], [3, 4.0]]}, 2).arrays
    assert batch["n"].tolist() == [[1, 2], [3, 4]]


@pytest.mark.parametrize("number", [1.5, 1e300, 2.0**31])
def test_other_numbers_are_refused(number):
    with pytest.raises(RequestError):
        samples_of(COUNTS, {"n": [number]}, 1)
