"""The errors for typical mistakes in JSON say what to send instead."""

from __future__ import annotations

import pytest

from pytriton.gateway.errors import RequestError
from pytriton.gateway.json_tensors import parse, samples_of
from pytriton.model_config.triton_model_config import TritonModelConfig

CONFIG = TritonModelConfig.from_dict(
    {
        "name": "Rent",
        "backend": "pytriton",
        "max_batch_size": 8,
        "input": [
            {"name": "city", "data_type": "TYPE_STRING", "dims": [1]},
            {"name": "sizes", "data_type": "TYPE_FP32", "dims": [-1]},
        ],
        "output": [{"name": "rent", "data_type": "TYPE_FP32", "dims": [1]}],
    },
    "1",
)


@pytest.mark.parametrize("body", [b'{"x": NaN}', b"[1, NaN]", b'{"x":[NaN]}'])
def test_nan_is_null_in_json(body):
    with pytest.raises(RequestError, match=r"is not valid JSON: .*; write null in place of NaN"):
        parse(body)


@pytest.mark.parametrize("body", [b'{"NaN": 1', b"{'x': 1}"])
def test_other_mistakes_have_nothing_to_do_with_nan(body):
    with pytest.raises(RequestError) as caught:
        parse(body)
    assert "null" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "shape"),
    [({"city": ["Rome", "Oslo"], "sizes": [1, 2]}, "(2,)"), ({"city": "Rome", "sizes": [[1], [2]]}, "(2, 1)")],
)
def test_columns_of_samples_are_refused_with_the_forms_of_a_batch(given, shape):
    with pytest.raises(RequestError) as caught:
        samples_of(CONFIG, given, 10)

    message = f"has shape {shape}; for several samples, send a list of objects, or one dimension more in each input."
    assert message in str(caught.value)
