"""A gateway in front of a server that has a model repository, and no bound model."""

from __future__ import annotations

import json

import gateways
import pytest
import serving
from gateways import gateway_of
from worker_models import write_model

MODEL = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(each, "x").as_numpy() for each in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", x * 2)]) for x in inputs]
"""


@pytest.fixture
def repository(tmp_path):
    write_model(tmp_path / "models", "Twice", code=MODEL)
    return str(tmp_path / "models")


def test_its_models_are_served(repository):
    with serving.running_triton(model_repository=repository) as triton:
        triton.run()
        with gateway_of(triton) as gateway:
            assert gateway.get("/health/ready").status == 200
            assert gateway.post("Twice", {"x": [1, 2]}).json() == {"y": [2, 4]}
            inputs = [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [3]}]
            response = gateway.send("POST", "/v2/models/Twice/infer", json.dumps({"inputs": inputs}))
            assert response.json()["outputs"][0]["data"] == [6]
            assert gateway.post("Twice", {"x": "one"}).status == 422
            assert [model["name"] for model in gateway.get("/status").json()["models"]] == ["Twice"]
            triton.bind(
                "Single", lambda requests: [{"y": r["x"]} for r in requests], gateways.NUMBERS, gateways.DOUBLED
            )
            assert gateway.post("Single", {"x": [[1]]}).status == 200
            assert gateway.post("Twice", {"x": [1]}).json() == {"y": [2]}


def test_the_error_without_grpc_names_the_remedy(repository):
    with serving.running_triton(model_repository=repository, allow_grpc=False) as triton:
        triton.run()
        with gateway_of(triton) as gateway:
            response = gateway.post("Twice", {"x": [1]})
            assert (response.status, "allow gRPC" in response.json()["error"]["message"]) == (503, True)
