"""The service of `serve_bentoml.py`, which BentoML's processes import."""

import base64
import os
from typing import Any

import bentoml
import numpy as np
from serve_bentoml import INSTANCES_VARIABLE, VARIABLE
from workloads import MAX_BATCH_SIZE, WORKLOADS

# BentoML reads the annotations of the methods, so they are not postponed.
_WORKLOAD = WORKLOADS[os.environ[VARIABLE]]
_MAX_LATENCY_MS = 60_000  # beyond which it refuses requests


@bentoml.service(
    workers=int(os.environ[INSTANCES_VARIABLE]), http={"host": "127.0.0.1"}, logging={"access": {"enabled": False}}
)
class Service:
    """The workload's model."""

    def __init__(self) -> None:
        self.function = _WORKLOAD.function()

    @bentoml.api(route="/infer", batchable=True, max_batch_size=MAX_BATCH_SIZE, max_latency_ms=_MAX_LATENCY_MS)
    def infer(self, tensor: list[str]) -> list[str]:
        """Compute a batch of tensors."""
        outputs = self.function(np.stack([_from_base64(each) for each in tensor]))
        return [base64.b64encode(output.tobytes()).decode() for output in outputs]


def _from_base64(text: str) -> Any:
    return np.frombuffer(base64.b64decode(text), np.float32).reshape(_WORKLOAD.shape)
