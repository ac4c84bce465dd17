"""``POST /v1/models/<name>``."""

from __future__ import annotations

import base64
import io
import json

import numpy as np
import pytest
from gateways import DOUBLED, NUMBERS, PNG, sizes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytriton.decorators import batch
from pytriton.gateway import npy
from pytriton.model_config import ModelConfig, Tensor


def npy_of(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


FORM = "multipart/form-data; boundary=limit"


def form_of(**fields):
    """A form in which bytes are files."""
    parts = []
    for name, value in fields.items():
        file = '; filename="a file"' if isinstance(value, bytes) else ""
        head = f'--limit\r\ncontent-disposition: form-data; name="{name}"{file}\r\n\r\n'.encode()
        parts += [head, value if file else value.encode(), b"\r\n"]
    return b"".join([*parts, b"--limit--\r\n"])


def test_one_sample(gateway):
    response = gateway.post("Double", {"x": [1, 2, 3]})
    assert response.status == 200
    assert response.headers["content-type"] == "application/json"
    assert response.body == b'{"y":[2.0,4.0,6.0]}'


def test_a_batch(gateway):
    assert gateway.post("Double", {"x": [[1, 2], [3, 4]]}).json() == {"y": [[2, 4], [6, 8]]}


def test_a_list_of_samples_becomes_batches(gateway):
    sizes.clear()
    response = gateway.post("Double", [{"x": [i]} for i in range(20)])
    assert response.json() == [{"y": [2 * i]} for i in range(20)]
    assert max(sizes) == 8


def test_samples_of_several_shapes(gateway):
    samples = [{"x": [1.0] * (1 + i % 3)} for i in range(9)]
    assert gateway.post("Double", samples).json() == [{"y": [2.0] * (1 + i % 3)} for i in range(9)]


def test_an_empty_list(gateway):
    assert gateway.post("Double", []).json() == []


def test_a_batch_larger_than_the_models_is_sent_in_parts(gateway):
    sizes.clear()
    assert gateway.post("Double", {"x": [[i] for i in range(20)]}).json() == {"y": [[2 * i] for i in range(20)]}
    assert max(sizes) == 8


def test_parts_that_cannot_be_joined(gateway, served):
    @batch
    def grow(x):
        return {"y": np.ones((len(x), len(x)), np.float32)}

    served.bind("Grow", grow, NUMBERS, DOUBLED, config=ModelConfig(max_batch_size=4))
    response = gateway.post("Grow", {"x": [[1]] * 6})
    assert response.status == 500
    assert "cannot be joined" in response.json()["error"]["message"]


def test_a_model_without_batching(gateway):
    assert gateway.post("Single", {"x": [1, 2]}).json() == {"y": [2, 4]}
    assert gateway.post("Single", [{"x": [1]}, {"x": [2, 3]}]).json() == [{"y": [2]}, {"y": [4, 6]}]


def test_text_and_an_optional_input(gateway):
    assert gateway.post("Greet", {"who": "Zoë"}).json() == {"text": "hello Zoë"}
    assert gateway.post("Greet", {"who": ["Zoë"], "greeting": "bye"}).json() == {"text": "bye Zoë"}


def test_bytes_that_are_not_text(gateway):
    raw = bytes(range(128, 256))
    response = gateway.post("Greet", {"who": {"b64": base64.b64encode(raw).decode()}})
    assert base64.b64decode(response.json()["text"]["b64"]) == b"hello " + raw


def test_an_image_as_base64(gateway):
    encoded = base64.b64encode(PNG).decode()
    for image in (encoded, f"data:image/png;base64,{encoded}", {"b64": encoded}, [encoded]):
        assert gateway.post("Mirror", {"image": image}).json() == {"same": encoded, "size": len(PNG)}
    batch = gateway.post("Mirror", {"image": [[encoded], [encoded]]}).json()
    assert batch == {"same": [[encoded]] * 2, "size": [[len(PNG)]] * 2}
    text = base64.b64encode(b"text").decode()
    assert gateway.post("Mirror", {"image": text}).json()["same"] == text
    response = gateway.post("Mirror", {"image": "no base64"})
    assert (response.status, response.json()["error"]["field"]) == (422, "image")


@pytest.mark.parametrize("accepted", ["image/png", "image/*", "text/html,image/avif,*/*"])
def test_an_image_is_returned_as_a_file_if_accepted(gateway, accepted):
    response = gateway.post("Mirror", form_of(image=PNG), content_type=FORM, accept=accepted)
    assert (response.body, response.headers["content-type"]) == (PNG, "image/png")
    assert response.headers["content-security-policy"] == "sandbox"
    path = "Mirror?output=size"
    assert gateway.post(path, form_of(image=PNG), content_type=FORM, accept=accepted).json()["size"] == len(PNG)


def test_a_form_with_a_file(gateway):
    response = gateway.post("Mirror", form_of(image=PNG, times="3"), content_type=FORM)
    assert response.json() == {"same": base64.b64encode(PNG).decode(), "size": 3 * len(PNG)}
    large = bytes(range(256)) * 10_000
    assert gateway.post("Mirror", form_of(image=large), content_type=FORM).json()["size"] == len(large)
    assert gateway.post("Greet", form_of(who="Zoë", greeting=b"bye"), content_type=FORM).json() == {"text": "bye Zoë"}
    assert gateway.post("Double", form_of(x="[1, 2]"), content_type=FORM).json() == {"y": [2, 4]}
    array = npy_of(np.arange(3, dtype=np.float32))
    assert gateway.post("Double", form_of(x=array), content_type=FORM).json() == {"y": [0, 2, 4]}


@pytest.mark.parametrize(
    ("body", "status", "words"),
    [
        (b"", 422, "missing"),
        (b"--limit\r\n\r\n", 400, "form"),
        (b"--other\r\n", 400, "form"),
        ({"image": PNG, "other": "1"}, 422, "no input 'other'"),
        ({"image": PNG, "times": b"3"}, 422, ".npy"),
        ({"image": PNG, "times": "three"}, 422, "JSON"),
    ],
)
def test_a_form_that_does_not_fit(gateway, body, status, words):
    response = gateway.post("Mirror", body if isinstance(body, bytes) else form_of(**body), content_type=FORM)
    assert response.status == status, response.body
    assert words in response.json()["error"]["message"]


@pytest.mark.parametrize("parameters", ["", "; boundary=", '; boundary="a;b"', f"; boundary={'a' * 71}", "; charset=a"])
def test_a_form_without_a_boundary(gateway, parameters):
    response = gateway.post("Mirror", form_of(image=PNG), content_type=f"multipart/form-data{parameters}")
    assert response.status == 400
    assert "boundary" in response.json()["error"]["message"]


@pytest.mark.parametrize("charset", ["punycode", "utf-16", "utf-7", "hex", "nothing"])
def test_text_of_a_form_is_utf_8(gateway, charset):
    content_type = f'multipart/form-data; charset={charset}; Boundary="limit" ; other=1'
    response = gateway.post("Greet", form_of(who="Zoë+2AA-"), content_type=content_type)
    assert response.json() == {"text": "hello Zoë+2AA-"}


def test_null_stands_for_nan(gateway):
    assert gateway.post("Double", {"x": [None, 1]}).json() == {"y": [None, 2]}


def test_a_version(gateway):
    assert gateway.post("Double/versions/1", {"x": [1]}).json() == {"y": [2]}
    assert gateway.post("Double/versions/7", {"x": [1]}).status == 404


def test_npy_of_a_model_without_batches(gateway):
    response = gateway.post("Single", npy_of(np.ones(1, np.float32)), content_type=npy.MEDIA_TYPE)
    assert np.load(io.BytesIO(response.body)).tolist() == [2]


def test_npy(gateway):
    x = np.arange(6, dtype=np.float32)
    response = gateway.post("Double", npy_of(x), content_type="application/x-npy")
    assert response.headers["content-type"] == "application/x-npy"
    np.testing.assert_array_equal(np.load(io.BytesIO(response.body)), x * 2)
    response = gateway.post("Double", npy_of(x.reshape(2, 3)), content_type="application/x-npy")
    np.testing.assert_array_equal(np.load(io.BytesIO(response.body)), x.reshape(2, 3) * 2)
    response = gateway.post("Double", {"x": [1]}, accept="application/x-npy")
    np.testing.assert_array_equal(np.load(io.BytesIO(response.body)), [2])


@pytest.mark.parametrize(
    ("body", "field", "words"),
    [
        ({"x": "one"}, "x", "FP32"),
        ({"x": [[[1]]]}, "x", "shape"),
        ({"x": [1], "z": 2}, "z", "no input 'z'"),
        ({}, "x", "missing"),
        ([{"x": [1]}, {"x": ["one"]}], "[1].x", "FP32"),
        ([{"x": [1]}, 2], "[1]", "instead of 2"),
        ("hello", "", 'instead of "hello"'),
        ({"x": [1, True]}, "x", "true and false"),
        ({"x": [[1], [False]]}, "x", "true and false"),
    ],
)
def test_the_error_of_an_input_names_the_input(gateway, body, field, words):
    response = gateway.post("Double", body)
    error = response.json()["error"]
    assert (response.status, error["field"]) == (422, field)
    assert words in error["message"]


@pytest.mark.parametrize(
    ("model", "body"),
    [("Double", {"a" * 10_000: 1}), ("Double", {"x": ["a" * 10_000]}), ("Greet", {"who": [["a" * 10_000], "a"]})],
)
def test_an_error_does_not_repeat_a_long_value(gateway, model, body):
    response = gateway.post(model, body)
    assert (response.status, len(response.body) < 1000) == (422, True)


def test_inputs_with_batches_of_different_sizes(gateway):
    response = gateway.post("Greet", {"who": [["Zoë"]], "greeting": [["hello"], ["bye"]]})
    assert (response.status, response.json()["error"]["field"]) == (422, "greeting")
    assert "2 samples, but 'who' has 1" in response.json()["error"]["message"]


def test_other_errors(gateway):
    assert gateway.post("Nobody", {}).status == 404
    assert gateway.post("Double", b"{", content_type="application/json").status == 400
    assert gateway.post("Double", b"[" * 100_000, content_type="application/json").status == 400
    assert gateway.post("Double", b"x", content_type="application/pdf").status == 415
    assert gateway.post("Double", b"\x93NUMPY", content_type="application/x-npy").status == 400
    assert gateway.send("DELETE", "/v1/models/Double").status == 405
    assert gateway.get("/nothing").status == 404
    response = gateway.post("Fail", {"x": [1]})
    assert response.status == 500
    assert "no such luck" in response.json()["error"]["message"]


def test_curl_needs_no_content_type(gateway):
    body = b'{"x": [1]}'
    assert gateway.post("Double", body, content_type="application/x-www-form-urlencoded").json() == {"y": [2]}


def test_request_ids(gateway):
    assert gateway.post("Double", {"x": [1]}, x_request_id="abc").headers["x-request-id"] == "abc"
    made = {gateway.post("Double", {"x": [1]}).headers["x-request-id"] for _ in range(3)}
    assert len(made) == 3
    assert all(len(each) > 16 for each in made)


def test_descriptions(gateway):
    listed = gateway.get("/v1/models").json()
    assert {"Double", "Greet", "Count"} <= {model["id"] for model in listed["data"]}
    assert gateway.get("/v1/models/Greet").json() == {
        "id": "Greet",
        "object": "model",
        "created": 0,
        "owned_by": "pytriton",
        "name": "Greet",
        "inputs": [
            {"name": "who", "datatype": "BYTES", "shape": [1]},
            {"name": "greeting", "datatype": "BYTES", "shape": [1], "optional": True},
        ],
        "outputs": [{"name": "text", "datatype": "BYTES", "shape": [1]}],
        "max_batch_size": 8,
        "streams": False,
    }


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["x", "who", "n", "b64", ""]), inner),
    max_leaves=20,
)


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(model=st.sampled_from(["Double", "Single", "Greet"]), body=anything | st.binary())
def test_no_body_causes_an_internal_error(gateway, model, body):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    assert gateway.post(model, raw, content_type="application/json").status in (200, 400, 422)


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(changes=st.lists(st.tuples(st.integers(0, 90), st.integers(0, 255)), max_size=4), cut=st.integers(0, 300))
def test_no_array_causes_an_internal_error(gateway, changes, cut):
    raw = bytearray(npy_of(np.ones(4, np.float32)))
    for at, value in changes:
        raw[at] = value
    assert gateway.post("Double", bytes(raw[:cut]), content_type=npy.MEDIA_TYPE).status in (200, 400, 422)


@settings(max_examples=200, suppress_health_check=list(HealthCheck))
@given(changes=st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=4), cut=st.integers(0, 300))
def test_no_form_causes_an_internal_error(gateway, changes, cut):
    raw = bytearray(form_of(image=PNG, times="3"))
    for at, value in changes:
        raw[at] = value
    assert gateway.post("Mirror", bytes(raw[:cut]), content_type=FORM).status in (200, 400, 422)


def test_null_is_an_optional_input_that_is_left_out(gateway):
    assert gateway.post("Greet", {"who": "a", "greeting": None}).json() == {"text": "hello a"}
    assert gateway.post("Greet", [{"who": "a", "greeting": None}]).json() == [{"text": "hello a"}]
    assert gateway.post("Greet", {"who": [["a"], ["b"]], "greeting": None}).json() == {
        "text": [["hello a"], ["hello b"]]
    }


@pytest.mark.parametrize(
    ("model", "sample", "taken"),
    [
        ("Greet", {"who": None}, "'who': BYTES (1,) takes text, not null."),
        ("Greet", {"who": {"b64": 1}}, """'who': BYTES (1,) takes text, not {"b64":1}."""),
        ("Count", {"n": None}, "'n': INT32 (1,) takes numbers, not null."),
        ("Count", {"n": {}}, "'n': INT32 (1,) takes numbers, not {}."),
    ],
)
def test_null_and_objects_are_no_inputs(gateway, model, sample, taken):
    error = gateway.post(model, sample)
    assert (error.status, error.json()["error"]["message"]) == (422, f"Input {taken}")


def test_samples_without_inputs(gateway, served):
    def pick(requests):
        return [{"n": request.get("n", np.array([[-1]], np.int32))} for request in requests]

    served.bind("Optional", pick, [Tensor((1,), np.int32, "n", optional=True)], [Tensor((1,), np.int32, "n")])
    assert gateway.post("Optional", {}).json() == {"n": -1}
    assert gateway.post("Optional", [{}, {"n": 2}, {"n": 3}, {}, {}]).json() == [{"n": n} for n in (-1, 2, 3, -1, -1)]


@pytest.mark.parametrize("nested", [b"[" * 900 + b"]" * 900, b"[" * 100_000, b'{"x":' * 900 + b"1" + b"}" * 900])
@pytest.mark.parametrize("path", ["/v1/models/Double", "/v1/models/Greet", "/v2/models/Double/infer"])
def test_deeply_nested_bodies_are_refused(gateway, path, nested):
    for body in (nested, b'{"x": %s}' % nested, b'{"who": %s}' % nested, b'{"inputs": [{"data": %s}]}' % nested):
        assert gateway.send("POST", path, body).status in (400, 422)


def test_text_that_numpy_cannot_read_is_refused(gateway):
    file = io.BytesIO()
    np.save(file, np.array(["a"]))
    body = file.getvalue().replace(b"a\0\0\0", b"\0\0\x11\0")
    response = gateway.post("Greet", body, content_type="application/x-npy")
    assert response.status == 422  # it has several inputs
    response = gateway.send("POST", "/v1/models/Greet?input=who", body, content_type="application/x-npy")
    assert (response.status, "0x110000" in response.json()["error"]["message"]) == (400, True)


def test_a_large_response(gateway):
    numbers = np.arange(600_000, dtype=np.float32)
    assert gateway.post("Double", {"x": numbers.tolist()}).json() == {"y": (numbers * 2).tolist()}
    samples = [{"x": numbers[:1000].tolist()}] * 600
    assert gateway.post("Double", samples).json() == [{"y": (numbers[:1000] * 2).tolist()}] * 600
    assert gateway.post("Double", {"x": numbers.reshape(2, -1).tolist()}).json() == {
        "y": (numbers * 2).reshape(2, -1).tolist()
    }
