"""Binds models of this process to a server that another object has started."""

import sys

import numpy as np

from pytriton.client import ModelClient
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import RemoteTriton, Triton, TritonConfig

http_port, grpc_port, metrics_port = map(int, sys.argv[1:])


@batch
def linear(x):
    return [x * np.array([[2]], dtype=np.float32)]


class Affine:
    def __init__(self, shift):
        self.shift = shift

    @batch
    def __call__(self, x):
        return {"y": x + np.float32(self.shift)}


server = Triton(config=TritonConfig(http_port=http_port, grpc_port=grpc_port, metrics_port=metrics_port))
server.run()
url = f"localhost:{http_port}"
remote = RemoteTriton(url=url, access_token=server.get_access_token())
x, y = ([Tensor(name=name, dtype=np.float32, shape=(-1,))] for name in "xy")
for name, infer_func in (("Linear", linear), ("Affine", [Affine(1), Affine(1)])):
    remote.bind(model_name=name, infer_func=infer_func, inputs=x, outputs=y, config=ModelConfig(max_batch_size=4))
remote.connect()
print(remote.is_connected(), server.is_alive())
for name in ("Linear", "Affine"):
    with ModelClient(url, name, init_timeout_s=60) as client:
        print(name, client.infer_batch(x=np.array([[1, 2], [3, 4]], dtype=np.float32))["y"].tolist())
remote.stop()
server.stop()
print("stopped")
