"""Classifies pictures by the nearest known ones, on a GPU if there is one, until Ctrl-C.

python examples/nearest_neighbors/server.py
"""

from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits

from pytriton import GatewayConfig
from pytriton.decorators import batch
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton, TritonConfig, TritonSecurityConfig

NEIGHBOURS = 5

device = "cuda" if torch.cuda.is_available() else "cpu"
digits = load_digits()
known = torch.tensor(digits.data[::2], dtype=torch.float32, device=device)
labels = torch.tensor(digits.target[::2], device=device)


@batch
def vote(image: Any) -> dict[str, Any]:
    images = torch.from_dlpack(image).to(device, non_blocking=True)
    distances, nearest = torch.cdist(images, known).topk(NEIGHBOURS, largest=False)
    return {"label": labels[nearest].mode(dim=1).values, "distance": distances[:, 0]}


# Clients on this machine may register memory of the GPU without a token.
config = TritonConfig(http_address="127.0.0.1", grpc_address="127.0.0.1")
security = TritonSecurityConfig(restricted_endpoints=["model-repository", "logging", "trace", "statistics"])
with Triton(config=config, security_config=security) as triton:
    triton.bind(
        model_name="Digits",
        infer_func=vote,
        inputs=[Tensor(name="image", shape=(64,), dtype=np.float32)],
        outputs=[
            Tensor(name="label", shape=(), dtype=np.int64),
            Tensor(name="distance", shape=(), dtype=np.float32),
        ],
        config=ModelConfig(max_batch_size=1024, gpu_tensors=True),
    )
    print(f"The known pictures are in the memory of: {device}")
    triton.serve(gateway=GatewayConfig())
