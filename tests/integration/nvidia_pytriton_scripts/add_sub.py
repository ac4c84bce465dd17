"""Adds and subtracts vectors; the second one, and the scale, are optional."""

import sys

import numpy as np

from pytriton.client import ModelClient
from pytriton.client.exceptions import PyTritonClientInferenceServerError, PyTritonClientValueError
from pytriton.decorators import batch, fill_optionals, first_value, group_by_keys, group_by_values
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig

http_port, grpc_port, metrics_port = map(int, sys.argv[1:])


@fill_optionals(scale=np.array([2.0], dtype=np.float32))
@group_by_keys
@batch
@group_by_values("scale")
@first_value("scale")
def add_sub(a, scale, b=None):
    b = np.zeros_like(a) if b is None else b
    return {"add": (a + b) * scale, "sub": (a - b) * scale}


@batch
def fail(a):
    raise RuntimeError("the sum is too large")


vector = {"dtype": np.float32, "shape": (-1,)}
triton = Triton(config=TritonConfig(http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port))
triton.bind(
    model_name="AddSub",
    infer_func=add_sub,
    inputs=[
        Tensor(name="a", **vector),
        Tensor(name="b", optional=True, **vector),
        Tensor(name="scale", dtype=np.float32, shape=(1,), optional=True),
    ],
    outputs=[Tensor(name="add", **vector), Tensor(name="sub", **vector)],
    config=ModelConfig(max_batch_size=8),
)
triton.bind("Fail", fail, [Tensor(name="a", **vector)], [Tensor(name="y", **vector)])
triton.run()
try:
    a = np.array([[1, 2], [3, 4]], dtype=np.float32)
    with ModelClient(f"localhost:{http_port}", "AddSub", init_timeout_s=60) as client:
        for inputs in ({"a": a}, {"a": a, "b": a}, {"a": a, "b": a, "scale": np.array([[1], [3]], dtype=np.float32)}):
            result = client.infer_batch(**inputs)
            print(sorted(inputs), {name: result[name].tolist() for name in sorted(result)})
        print({name: array.tolist() for name, array in sorted(client.infer_sample(a[0], a[1]).items())})
        for arguments in ({"b": a}, {"a": a, "c": a}, {"a": a.astype(np.int32)}):
            try:
                client.infer_batch(**arguments)
            except PyTritonClientInferenceServerError:
                print(sorted(arguments), "is refused")
        try:
            client.infer_batch(a, b=a)
        except PyTritonClientValueError:
            print("positions and names cannot be mixed")
    with ModelClient(f"localhost:{http_port}", "Fail") as client:
        try:
            client.infer_batch(a)
        except PyTritonClientInferenceServerError as error:
            print("the sum is too large" in str(error))
finally:
    triton.stop()
