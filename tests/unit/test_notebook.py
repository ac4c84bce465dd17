from __future__ import annotations

import html
import html.parser
import json
import math
import shlex

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.model_config import ModelConfig, Tensor
from pytriton.model_config.model_spec import ModelSpec
from pytriton.notebook import NOT_LOADED, ModelRow, curl, model_rows, triton_html

HTTP = "http://127.0.0.1:8000"
GRPC = "grpc://127.0.0.1:8001"
Y = Tensor((-1,), np.float32, "y")
VOID = {"br"}
TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)


class Page(html.parser.HTMLParser):
    """What a browser makes of HTML: its text, its elements, and whether they are closed in order."""

    def __init__(self, source):
        super().__init__()
        self.open, self.elements, self.texts = [], [], []
        self.feed(source)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append(data)

    @property
    def text(self):
        return "".join(self.texts)

    def attributes(self, wanted):
        return [attributes for tag, attributes in self.elements if tag == wanted]


def spec_of(*inputs, outputs=(Y,), name="Model", version=1, **config):
    return ModelSpec.create(name, inputs, outputs, version=version, config=ModelConfig(**config))


def request_in(line):
    """The request that a `curl` line sends as JSON."""
    words = shlex.split(line)
    return json.loads(words[words.index("-d") + 1])


def test_table_describes_each_model():
    rows = [ModelRow("Double", 2, "READY", ["x: FP32 (-1,)"], ["y: FP32 (-1,)"], "curl -s http://here -d '{}'")]
    text = Page(triton_html(rows, [HTTP, GRPC], alive=True)).text
    for shown in (*rows[0][:1], "2", "READY", "x: FP32 (-1,)", "y: FP32 (-1,)", rows[0].request, HTTP, GRPC):
        assert shown in text


def test_table_of_a_stopped_server_explains_how_to_start_it():
    text = Page(triton_html([ModelRow("Double", 1, NOT_LOADED)], [], alive=False)).text
    assert "The server is not running; triton.run() starts it." in text


def test_table_reports_how_the_server_exited():
    text = Page(triton_html([], [], alive=False, ended="was killed by SIGKILL")).text
    assert "it was killed by SIGKILL. triton.stop() and triton.run() restart it." in text


def test_table_explains_how_to_load_models_that_are_not_loaded():
    hint = "triton.run() loads what is not loaded yet."
    assert hint in Page(triton_html([ModelRow("Double", 1, NOT_LOADED)], [HTTP], alive=True)).text
    assert hint not in Page(triton_html([ModelRow("Double", 1, "READY")], [HTTP], alive=True)).text


def test_table_without_models_explains_how_to_bind_one():
    page = Page(triton_html([], [HTTP], alive=True))
    assert "triton.bind(…) binds one." in page.text
    assert not page.attributes("table")


def test_request_of_the_only_model_is_unfolded_those_of_several_are_folded():
    rows = [ModelRow("A", 1, "READY", request="curl a"), ModelRow("B", 1, "READY", request="curl b")]
    assert ["open" in each for each in Page(triton_html(rows[:1], [], alive=True)).attributes("details")] == [True]
    assert ["open" in each for each in Page(triton_html(rows, [], alive=True)).attributes("details")] == [False, False]


def test_states_differ_in_color_too():
    def colors(state):
        return {
            each["style"] for each in Page(triton_html([ModelRow("A", 1, state)], [], alive=True)).attributes("span")
        }

    ready, loading, gone = (colors(state) for state in ("READY", "LOADING", "UNAVAILABLE: unloaded"))
    assert len({frozenset(each) for each in (ready, loading, gone)}) == 3


@given(name=TEXTS, state=TEXTS, tensor=TEXTS, request=TEXTS, url=TEXTS)
def test_texts_are_escaped(name, state, tensor, request, url):
    plain = Page(triton_html([ModelRow("A", 1, "READY", ["i"], ["o"], "curl")], ["url"], alive=True))
    page = Page(triton_html([ModelRow(name, 1, state, [tensor], [tensor], f"curl {request}")], [url], alive=True))
    assert [tag for tag, _ in page.elements] == [tag for tag, _ in plain.elements]
    for text in (name, state, tensor, request, url):
        assert _as_read(text) in page.text


def _as_read(text):
    return html.unescape(html.escape(text))


def test_page_runs_nothing_and_fetches_nothing():
    page = Page(triton_html([ModelRow("A", 1, "READY", ["i"], ["o"], "curl")], [HTTP], alive=True))
    assert {tag for tag, _ in page.elements}.isdisjoint({"script", "style", "link", "img", "iframe", "a", "object"})
    for _, attributes in page.elements:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "href")]
        assert "url(" not in attributes.get("style", "")


def test_row_of_a_model_has_its_tensors_and_the_state_reported_by_the_server():
    spec = spec_of(Tensor((-1, 3), np.uint8, "image"), Tensor((1,), bytes, "hint", optional=True), version=3)
    (row,) = model_rows([spec], {("Model", 3): "LOADING"}, [GRPC, HTTP])
    assert row[:5] == ("Model", 3, "LOADING", ["image: UINT8 (-1, 3)", "hint: BYTES (1,) optional"], ["y: FP32 (-1,)"])
    assert f"{HTTP}/v2/models/Model/versions/3/infer" in row.request


def test_model_unknown_to_the_server_is_shown_as_not_loaded():
    assert model_rows([spec_of()], {})[0].state == NOT_LOADED


def test_models_of_a_repository_are_listed_last():
    rows = model_rows([spec_of(name="Bound")], {("Ensemble", 1): "READY", ("Bound", 1): "READY"}, [HTTP])
    assert [row.name for row in rows] == ["Bound", "Ensemble"]
    assert rows[1].request == ""


@pytest.mark.parametrize("urls", [[], [GRPC]])
def test_no_request_is_shown_without_http(urls):
    assert model_rows([spec_of()], {}, urls)[0].request == ""


def test_request_of_a_decoupled_model_asks_for_a_stream():
    line = curl(spec_of(Tensor((1,), np.int32, "x"), decoupled=True), HTTP)
    assert line.startswith("curl -sN ")
    assert line.endswith("""/generate_stream -d '{"x":1}'""")


def test_no_request_is_shown_for_a_decoupled_model_of_larger_tensors():
    assert curl(spec_of(Tensor((2,), np.int32, "x"), decoupled=True), HTTP) == ""


def test_request_has_a_batch_of_one():
    (x,) = request_in(curl(spec_of(Tensor((-1, 2), np.float32, "x")), HTTP))["inputs"]
    assert x == {"name": "x", "datatype": "FP32", "shape": [1, 3, 2], "data": [1, 2, 3, 4, 5, 6]}


@pytest.mark.parametrize(("shape", "sent"), [((), [1]), ((2,), [2]), ((-1,), [3])])
def test_request_of_a_model_without_batching_has_no_batch_dimension(shape, sent):
    (x,) = request_in(curl(spec_of(Tensor(shape, np.int64, "x"), batching=False), HTTP))["inputs"]
    assert x["shape"] == sent


@pytest.mark.parametrize(
    ("dtype", "values"), [(np.bool_, [True, False, True]), (bytes, ["a", "b", "c"]), (np.uint8, [1, 2, 3])]
)
def test_request_has_values_of_the_datatype(dtype, values):
    (x,) = request_in(curl(spec_of(Tensor((-1,), dtype, "x")), HTTP))["inputs"]
    assert x["data"] == values


@pytest.mark.parametrize(
    ("tensor", "size"),
    [
        (Tensor((224, 224, 3), np.uint8, "x"), 224 * 224 * 3),
        (Tensor((100,), bytes, "x"), 400),
        (Tensor((-1,), np.float16, "x"), 6),
        (Tensor((-1,), ml_dtypes.bfloat16, "x"), 6),
    ],
)
def test_large_and_non_json_inputs_are_sent_as_zeros(tensor, size):
    line = curl(spec_of(tensor, Tensor((1,), np.float64, "also")), HTTP)
    words = shlex.split(line)
    text = words[words.index("%s") + 1].removesuffix(";")
    x, also = json.loads(text)["inputs"]
    assert x["parameters"]["binary_data_size"] == size
    assert also["parameters"]["binary_data_size"] == 8
    assert f"head -c {size + 8} /dev/zero" in line
    assert f"Inference-Header-Content-Length: {len(text)}" in line
    assert len(line) < 500


def test_non_json_outputs_are_requested_as_bytes():
    line = curl(spec_of(Tensor((1,), np.int8, "x"), outputs=(Tensor((1,), np.float16, "y"),)), HTTP)
    assert request_in(line)["parameters"] == {"binary_data_output": True}


@given(names=st.lists(TEXTS.filter(bool), min_size=1, max_size=3, unique=True))
def test_names_survive_the_shell(names):
    line = curl(spec_of(*(Tensor((1,), np.float32, name) for name in names)), HTTP)
    assert "\n" not in line
    assert [each["name"] for each in request_in(line)["inputs"]] == names


@given(
    shape=st.lists(st.sampled_from([-1, 1, 2, 5]), max_size=4),
    dtype=st.sampled_from([np.bool_, np.uint8, np.int64, np.float32, bytes]),
    batching=st.booleans(),
)
def test_request_matches_the_bound_model(shape, dtype, batching):
    (x,) = _inputs_of(curl(spec_of(Tensor(tuple(shape), dtype, "x"), batching=batching), HTTP))
    inner = x["shape"][1:] if batching else x["shape"]
    assert len(inner) == max(1, len(shape))
    assert all(wanted in (-1, size) for wanted, size in zip(shape or [1], inner, strict=True))
    if "data" in x:
        assert len(x["data"]) == math.prod(x["shape"])


def _inputs_of(line):
    words = shlex.split(line)
    text = words[words.index("-d" if "-d" in words else "%s") + 1]
    return json.loads(text.removesuffix(";"))["inputs"]
