from __future__ import annotations

import dataclasses
import pickle
from collections.abc import MutableMapping

import numpy as np
import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider

from pytriton.proxy.types import Request, Response

X = np.zeros((1, 2), np.float32)


@pytest.mark.parametrize("kind", [Request, Response])
def test_it_is_a_dictionary_of_arrays(kind):
    each = kind({"x": X})
    each["y"] = X + 1
    del each["x"]

    assert isinstance(each, MutableMapping)
    assert list(each) == ["y"]
    assert len(each) == 1
    assert each.data is each.data
    assert each["y"].tolist() == [[1, 1]]
    assert dict(**each)["y"] is each["y"]


@pytest.mark.parametrize("kind", [Request, Response])
def test_its_data_can_be_replaced(kind):
    each = kind({"x": X})
    each.data = {"z": X}

    assert list(each) == ["z"]


@pytest.mark.parametrize("each", [Request({"x": X}, {"n": 1}, request_id="7"), Response({"x": X}, parameters={"n": 1})])
def test_it_is_a_dataclass(each):
    other = dataclasses.replace(each, data={"z": X})

    assert (list(other), other.parameters, list(each)) == (["z"], {"n": 1}, ["x"])
    assert dataclasses.asdict(each)["data"].keys() == {"x"}
    assert pickle.loads(pickle.dumps(each)).parameters == {"n": 1}


def test_a_request_has_metadata():
    request = Request({"x": X}, {"temperature": 1}, "span", requested_output_names=["y"], request_id="7")

    assert request.parameters == {"temperature": 1}
    assert request.span == "span"
    assert request.requested_output_names == ["y"]
    assert request.request_id == "7"


def test_by_default_a_request_has_only_arrays():
    request = Request({"x": X})

    assert (request.parameters, request.span, request.requested_output_names, request.request_id) == (None,) * 4


def test_their_representations_show_their_contents():
    assert "'x'" in repr(Request({"x": X}, {"n": 1}))
    assert "{'n': 1}" in repr(Request({"x": X}, {"n": 1}))
    assert repr(Response({"x": X})).startswith("Response({'x'")


def test_a_span_of_a_request_that_is_not_traced_is_none():
    with Request({}).traced_span("tokenize") as span:
        assert span is None


def test_a_span_of_a_traced_request_is_its_child():
    trace.set_tracer_provider(TracerProvider())
    parent = trace.get_tracer("test").start_span("request")

    with Request({}, span=parent).traced_span("tokenize") as child:
        assert trace.get_current_span() is child
    assert child.name == "tokenize"
    assert child.parent.span_id == parent.get_span_context().span_id
