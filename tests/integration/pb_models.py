"""Models of a repository, written in a few lines, for the tests of ``triton_python_backend_utils``."""

from __future__ import annotations

import json
import pathlib

from serving import infer_json, json_floats
from worker_models import command, write_model

SNIPPETS = pathlib.Path(__file__).parent / "python_backend" / "snippets"
HEAD = """
import asyncio
import json
import os
import pathlib
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils

HERE = pathlib.Path(__file__).parent
FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


def y(*values, **more):
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([values], np.float32))], **more)


def text(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("y", np.array([[json.dumps(value)]], object))])


def x(request):
    return request.inputs()[0].as_numpy().ravel().tolist()


class TritonPythonModel:
"""
ASK = """
def ask(model, value, name="x", output="y", **more):
    tensor = pb_utils.Tensor(name, np.array([[value]], np.float32))
    return pb_utils.InferenceRequest(model_name=model, requested_output_names=[output], inputs=[tensor], **more)


def value_of(response):
    assert not response.has_error(), response.error().message()
    return pb_utils.get_output_tensor_by_name(response, "y").as_numpy().item()


class TritonPythonModel:
"""
ASKING = HEAD.replace("class TritonPythonModel:\n", ASK)
DECOUPLED = "model_transaction_policy {decoupled: true}"
TEXT = """
backend: "python"
max_batch_size: 8
input [{name: "x", data_type: TYPE_FP32, dims: [-1]}]
output [{name: "y", data_type: TYPE_STRING, dims: [-1]}]
"""


def write(triton, repository, name, head, body, *, config="", whole=None):
    """Writes a model whose class has this body, and has it loaded; returns the folder of its version.

    ``whole`` is the whole of its configuration.
    """
    lines = "\n".join("    " + line for line in body.strip("\n").splitlines())
    folder = write_model(repository, name, config=config, code=f"{head}{lines}\n")
    if whole is not None:
        (folder.parent / "config.pbtxt").write_text(whole)
    status, response = command(triton, name, "load")
    assert status == 200, response
    return folder


def execute(body):
    return "def execute(self, requests):\n" + "\n".join("    " + line for line in body.strip("\n").splitlines())


def asynchronous(body):
    return "async " + execute(body)


def text_of(triton, name, values=(1,), **fields):
    status, response = infer_json(triton, name, [json_floats(list(values))], **fields)
    assert status == 200, response
    return json.loads(response["outputs"][0]["data"][0])
