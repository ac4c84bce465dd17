"""The models that every contender serves: signature, computation, and the bytes of a request.

Servers of all contenders import this module, so it needs only NumPy (and onnxruntime for the network).
"""

from __future__ import annotations

import base64
import json
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

NETWORK_VARIABLE = "PYTRITON_BENCHMARK_NETWORK"
"""Environment variable with the path of the network's ONNX file."""

STREAM = "stream"
"""The workload that is no `Workload`: a request has a number, and gets as many responses, which count."""

STREAM_LENGTH = 32
"""Responses to each request of a stream."""

MAX_BATCH_SIZE = 64

_TEXT = "the quick brown fox jumps over the lazy dog and runs away from forty grey wolves of the north"


@dataclass(frozen=True)
class Workload:
    """A model, and a request to it.

    Attributes:
        name: the workload's, and the model's.
        title: what tables call it.
        datatype: of input and output, as KServe names it.
        shape: of the input, without the batch.
        output_shape: of the output, without the batch.
    """

    name: str
    title: str
    datatype: str
    shape: tuple[int, ...]
    output_shape: tuple[int, ...]

    @property
    def dtype(self) -> type[Any]:
        """As `Tensor` takes it."""
        return np.bytes_ if self.datatype == "BYTES" else np.float32

    def function(self) -> Callable[[Any], Any]:
        """Make the model's function, from an array with the batch in front to another such array."""
        return _network() if self.name == "network" else _identity

    def sample(self) -> Any:
        """Make an input of one row, always the same."""
        if self.datatype == "BYTES":
            words = _TEXT.split()
            sentences = [" ".join(words[i % 7 : i % 7 + 12]) + f" {i}" for i in range(self.shape[0])]
            return np.array([[sentence.encode() for sentence in sentences]], dtype=np.object_)
        return np.random.default_rng(0).random((1, *self.shape), dtype=np.float32)

    def raw(self) -> bytes:
        """Encode the input for servers without a protocol of their own: its bytes; strings as JSON."""
        sample = self.sample()
        if self.datatype == "BYTES":
            return json.dumps([text.decode() for text in sample[0]]).encode()
        return bytes(sample.tobytes())

    def json(self, *, is_batch: bool = False) -> bytes:
        """Encode the input as JSON, for servers that take nothing else: strings as they are, numbers in base64.

        Args:
            is_batch: write a list with the input as its only element.
        """
        key, value = (
            ("strings", [text.decode() for text in self.sample()[0]])
            if self.datatype == "BYTES"
            else ("tensor", base64.b64encode(self.raw()).decode())
        )
        return json.dumps({key: [value] if is_batch else value}).encode()

    def kserve(self) -> tuple[bytes, int]:
        """Encode a KServe request over HTTP with binary tensors; the second is the size of its JSON header."""
        sample = self.sample()
        if self.datatype == "BYTES":
            data = b"".join(struct.pack("<I", len(text)) + text for text in sample[0])
        else:
            data = sample.tobytes()
        header = json.dumps(
            {
                "inputs": [
                    {
                        "name": "x",
                        "shape": [1, *self.shape],
                        "datatype": self.datatype,
                        "parameters": {"binary_data_size": len(data)},
                    }
                ],
                "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
            }
        ).encode()
        return header + data, len(header)


WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("tiny", "tiny (16 float32)", "FP32", (16,), (16,)),
        Workload("image", "image (3×224×224 float32)", "FP32", (3, 224, 224), (3, 224, 224)),
        Workload("strings", "32 sentences", "BYTES", (32,), (32,)),
        Workload("network", "a small network", "FP32", (64,), (10,)),
        Workload("large", "large (10 MB of float32)", "FP32", (2_500_000,), (2_500_000,)),
    )
}

NAMES = (*WORKLOADS, STREAM)
"""Names of everything that a server can serve."""


def stream_request() -> bytes:
    """Encode a request for a stream of `STREAM_LENGTH` numbers, as JSON."""
    return json.dumps({"count": STREAM_LENGTH}).encode()


def _identity(array: Any) -> Any:
    return array


def _network() -> Callable[[Any], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        os.environ[NETWORK_VARIABLE], sess_options=options, providers=["CPUExecutionProvider"]
    )

    def infer(array: Any) -> Any:
        return session.run(["y"], {"x": array})[0]

    return infer
