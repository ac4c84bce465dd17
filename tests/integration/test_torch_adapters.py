"""PyTorch modules and pipelines of transformers on the server: results are those of the library itself."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")

from serving import InferenceServerException, at_once  # noqa: E402

from pytriton.adapters import torch_model, transformers_model  # noqa: E402
from pytriton.model_config import Tensor  # noqa: E402


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def test_module_returns_what_pytorch_returns(triton, name, client, network):
    triton.bind(name, torch_model(network, example=torch.zeros(1, 8)))
    rows = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)

    response = client.infer(name, {"input": rows})

    with torch.inference_mode():
        assert response["OUTPUT_1"] == pytest.approx(network(torch.from_numpy(rows)).numpy())


def test_module_serves_concurrent_requests(triton, name, grpc_client):
    inputs, outputs = [Tensor((2,), np.int64, "x")], [Tensor((2,), np.int64, "y")]
    triton.bind(name, torch_model(torch.nn.Identity(), inputs, outputs))

    responses = at_once(16, lambda number: grpc_client.infer(name, {"x": np.full((1, 2), number)}))

    assert [response["y"].tolist() for response in responses] == [[[number] * 2] for number in range(16)]


def test_module_may_change_its_input(triton, name, client):
    triton.bind(name, torch_model(torch.nn.ReLU(inplace=True), example=torch.zeros(1, 2)))

    assert client.infer(name, {"input": np.array([[-1, 1]], np.float32)})["OUTPUT_1"].tolist() == [[0, 1]]


def test_index_out_of_range_fails_its_own_request(triton, name, grpc_client):
    triton.bind(name, torch_model(torch.nn.Embedding(4, 2), example=torch.zeros(1, 1, dtype=torch.int64)))

    def send(number):
        try:
            return grpc_client.infer(name, {"input": np.array([[number]])})["OUTPUT_1"].shape
        except InferenceServerException as error:
            return error.message()

    responses = at_once(16, lambda number: send(number % 5))

    assert [responses[number] for number in range(16) if number % 5 != 4] == [(1, 1, 2)] * 13
    assert all("out of range" in responses[number] for number in (4, 9, 14))


def test_wrong_shape_is_refused_by_the_server(triton, name, client, network):
    triton.bind(name, torch_model(network, example=torch.zeros(1, 8)))

    with pytest.raises(InferenceServerException, match="unexpected shape for input 'input'"):
        client.infer(name, {"input": np.zeros((1, 7), np.float32)})


def test_pipeline_returns_what_transformers_returns(triton, name, client):
    pytest.importorskip("transformers", reason="needs transformers: pip install '.[transformers]'")
    from tiny_pipelines import bert_pipeline

    pipeline = bert_pipeline("text-classification")
    triton.bind(name, transformers_model(pipeline))
    texts = ["good", "very bad text"]

    response = client.infer(name, {"text": np.array([[text.encode()] for text in texts], object)})

    expected = [pipeline(text)[0] for text in texts]
    assert response["label"].ravel().tolist() == [each["label"].encode() for each in expected]
    assert response["score"].ravel() == pytest.approx([each["score"] for each in expected], abs=1e-5)


def test_features_have_as_many_rows_as_the_text_has_tokens(triton, name, client):
    pytest.importorskip("transformers", reason="needs transformers: pip install '.[transformers]'")
    from tiny_pipelines import bert_pipeline

    triton.bind(name, transformers_model(bert_pipeline("feature-extraction")))

    assert client.infer(name, {"text": np.array([b"very bad text"], object)})["features"].shape == (3, 16)
