"""Models of other libraries on the server: results are those of the library itself."""

from __future__ import annotations

import numpy as np
import onnx.parser
import onnxruntime
import pytest
from processes import processes_of
from serving import InferenceServerException, at_once
from sklearn.datasets import load_digits
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline

from pytriton.adapters import onnx_model, sklearn_model
from pytriton.model_config import ModelConfig, Tensor

MIXED = """
    mixed (float[N, 4] x, float16[N, 2] half, string[N, 1] text)
        => (float[N, 1] total, float16[N, 2] negated, string[N, 1] same)
    {
        axes = Constant<value_ints = [1]>()
        total = ReduceSum(x, axes)
        negated = Neg(half)
        same = Identity(text)
    }
"""


def onnx_bytes(graph):
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> {graph}').SerializeToString()


@pytest.fixture(scope="module")
def digits():
    images, labels = load_digits(return_X_y=True)
    return images / 16, labels


@pytest.fixture(scope="module")
def classifier(digits):
    return LogisticRegression(tol=0.1).fit(*digits)


def strings(*values):
    return np.array([[value.encode()] for value in values], object)


# ONNX


def test_onnx_model_returns_what_onnx_runtime_returns(triton, name, client):
    triton.bind(name, onnx_model(onnx_bytes(MIXED)))
    inputs = {
        "x": np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4),
        "half": np.linspace(-1, 1, 6, dtype=np.float16).reshape(3, 2),
    }

    outputs = client.infer(name, {**inputs, "text": strings("a", "ü", "")})

    session = onnxruntime.InferenceSession(onnx_bytes(MIXED))
    expected = session.run(None, {**inputs, "text": np.array([["a"], ["ü"], [""]], object)})
    assert outputs["total"].tolist() == expected[0].tolist()
    assert outputs["negated"].tolist() == expected[1].tolist()
    assert outputs["same"].ravel().tolist() == [b"a", "ü".encode(), b""]


def test_onnx_model_serves_concurrent_requests(triton, name, grpc_client):
    triton.bind(name, onnx_model(onnx_bytes("sum (float[N, 2] x) => (float[N, 2] y) { y = Add(x, x) }")))

    responses = at_once(16, lambda number: grpc_client.infer(name, {"x": np.full((2, 2), number, np.float32)}))

    assert [response["y"].ravel().tolist() for response in responses] == [[2 * number] * 4 for number in range(16)]


def test_onnx_model_without_batch_accepts_whole_tensors(triton, name, client):
    triton.bind(name, onnx_model(onnx_bytes("sum (float[2, M] x, float s) => (float[2, M] y) { y = Mul(x, s) }")))

    response = client.infer(name, {"x": np.ones((2, 3), np.float32), "s": np.array([3], np.float32)})

    assert response["y"].tolist() == [[3, 3, 3]] * 2


def test_onnx_model_runs_in_processes(triton, name, client):
    graph = onnx_bytes("sum (float[N, 2] x) => (float[N, 2] y) { y = Add(x, x) }")
    triton.bind(name, onnx_model(graph, processes=2))

    assert client.infer(name, {"x": np.ones((1, 2), np.float32)})["y"].tolist() == [[2, 2]]
    assert len(processes_of(name)) == 2


def test_onnx_model_of_the_wrong_shape_is_refused_by_the_server(triton, name, client):
    triton.bind(name, onnx_model(onnx_bytes("sum (float[N, 2] x) => (float[N, 2] y) { y = Add(x, x) }")))

    with pytest.raises(InferenceServerException, match=r"unexpected shape for input 'x'"):
        client.infer(name, {"x": np.ones((1, 3), np.float32)})


def test_client_that_requests_one_output_gets_one(triton, name, client):
    triton.bind(name, onnx_model(onnx_bytes("two (float[N] x) => (float[N] a, float[N] b) { a = Neg(x) b = Abs(x) }")))

    response = client.infer(name, {"x": np.full((1, 1), -1, np.float32)}, outputs=["b"])

    assert {key: array.tolist() for key, array in response.items()} == {"b": [[1]]}


def test_request_that_cannot_be_computed_fails_alone(triton, name, grpc_client):
    graph = "g (float[N, M] x, int64[N, 1] at) => (float[N, 1] y) { y = GatherElements<axis = 1>(x, at) }"
    triton.bind(name, onnx_model(onnx_bytes(graph)))

    def send(number):
        inputs = {"x": np.array([[1, 2]], np.float32), "at": np.array([[number]])}
        try:
            return grpc_client.infer(name, inputs)["y"].item()
        except InferenceServerException as error:
            return error.message()

    responses = at_once(15, lambda number: send(number % 3))

    assert [responses[number] for number in range(15) if number % 3 != 2] == [1, 2] * 5
    assert all("Out of range" in responses[number] for number in range(2, 15, 3))


# scikit-learn


@pytest.mark.parametrize("processes", [0, 1])
def test_classifier_returns_its_labels_and_probabilities(triton, name, client, digits, classifier, processes):
    triton.bind(name, sklearn_model(classifier, processes=processes))
    images = digits[0][:20]

    response = client.infer(name, {"features": images})

    assert response["label"].ravel().tolist() == classifier.predict(images).tolist()
    assert response["probability"].tolist() == classifier.predict_proba(images).tolist()


def test_classifier_returns_the_label_alone(triton, name, client, digits, classifier):
    triton.bind(name, sklearn_model(classifier))

    response = client.infer(name, {"features": digits[0][:2]}, outputs=["label"])

    assert list(response) == ["label"]


def test_clients_that_request_different_outputs_share_a_batch(triton, name, grpc_client, digits, classifier):
    triton.bind(name, sklearn_model(classifier))
    wanted = [["label"], ["probability"], None]

    responses = at_once(
        24, lambda number: grpc_client.infer(name, {"features": digits[0][:1]}, outputs=wanted[number % 3])
    )

    for number, response in enumerate(responses):
        assert sorted(response) == (wanted[number % 3] or ["label", "probability"])


def test_regressor_returns_its_predictions(triton, name, client, digits):
    regressor = Ridge().fit(*digits)
    triton.bind(name, sklearn_model(regressor, dtype=np.float32))
    images = digits[0][:5].astype(np.float32)

    response = client.infer(name, {"features": images})

    assert response["prediction"].ravel().tolist() == regressor.predict(images).tolist()


def test_text_is_classified(triton, name, client):
    texts = ["grün und gut", "sehr gut", "schlecht", "sehr schlecht"]
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(texts, ["+", "+", "-", "-"])
    triton.bind(name, sklearn_model(pipeline))

    response = client.infer(name, {"text": strings(*texts)})

    assert response["label"].ravel().tolist() == [b"+", b"+", b"-", b"-"]
    assert response["probability"].tolist() == pipeline.predict_proba(texts).tolist()


def test_text_that_is_not_utf_8_fails_no_request(triton, name, client):
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression()).fit(["a good", "a bad"], ["+", "-"])
    triton.bind(name, sklearn_model(pipeline))

    assert client.infer(name, {"text": np.array([[b"good \xff"]], object)})["label"].tolist() == [[b"+"]]


def test_client_in_the_process_calls_an_adapter(triton, name, digits, classifier):
    triton.bind(name, sklearn_model(classifier))

    assert triton.client(name).infer_sample(digits[0][0])["label"].item() == digits[1][0]


# What stands beside a definition


def test_arguments_of_bind_take_precedence(triton, name, client):
    model = onnx_model(onnx_bytes("sum (float[N, M] x) => (float[N, M] y) { y = Add(x, x) }"))
    triton.bind(name, model, [Tensor((2,), np.float32, "x")], config=ModelConfig(max_batch_size=2))

    assert client.infer(name, {"x": np.ones((2, 2), np.float32)})["y"].tolist() == [[2, 2]] * 2
    with pytest.raises(InferenceServerException, match="unexpected shape"):
        client.infer(name, {"x": np.ones((1, 3), np.float32)})
    with pytest.raises(InferenceServerException, match=r"batch-size must be <= 2"):
        client.infer(name, {"x": np.ones((3, 2), np.float32)})
