"""Serve a workload with LitServe: batches as Triton's. Its requests are JSON, so tensors are base64 in it."""

import base64
import os
import sys
from collections.abc import Iterator
from typing import Any

import litserve
import numpy as np
from fastapi import Request
from serve import serve_command, workload_parser
from workloads import MAX_BATCH_SIZE, STREAM, WORKLOADS, Workload

# LitServe starts processes of its own, which import this file again. It also reads the annotations of the methods, so
# they are not postponed.
_VARIABLE = "PYTRITON_BENCHMARK_WORKLOAD"


class Model(litserve.LitAPI):
    """The workload's model."""

    workload: Workload

    def setup(self, device: str) -> None:
        """Look up the workload."""
        self.workload = WORKLOADS[os.environ[_VARIABLE]]
        self.function = self.workload.function()

    def decode_request(self, request: Request) -> Any:
        """Take an input from a request."""
        if self.workload.datatype == "BYTES":
            return np.array([text.encode() for text in request["strings"]], dtype=np.object_)
        return np.frombuffer(base64.b64decode(request["tensor"]), np.float32).reshape(self.workload.shape)

    def predict(self, x: Any) -> Any:
        """Compute a batch."""
        return self.function(x)

    def batch(self, inputs: list[Any]) -> Any:
        """Stack inputs."""
        return np.stack(inputs)

    def unbatch(self, output: Any) -> list[Any]:
        """Split a batch of outputs."""
        return list(output)

    def encode_response(self, output: Any) -> Any:
        """Make a response of an output."""
        if self.workload.datatype == "BYTES":
            return {"strings": [text.decode() for text in output]}
        return {"tensor": base64.b64encode(output.tobytes()).decode()}


class Stream(litserve.LitAPI):
    """Counts."""

    def setup(self, device: str) -> None:
        """Need nothing."""

    def decode_request(self, request: Request) -> int:
        """Take the number of responses from a request."""
        return int(request["count"])

    def predict(self, x: list[int]) -> Iterator[list[int]]:
        """Count for all streams of a batch."""
        for number in range(x[0]):
            yield [number] * len(x)

    def encode_response(self, output: Any) -> Any:
        """Write the numbers as events."""
        for numbers in output:
            yield [f"data: {number}\n\n" for number in numbers]


def _run(port: int, instances: int) -> None:
    batches = {"max_batch_size": MAX_BATCH_SIZE, "batch_timeout": 0.001}
    is_stream = os.environ[_VARIABLE] == STREAM
    api = Stream(stream=True, api_path="/infer", **batches) if is_stream else Model(api_path="/infer", **batches)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=instances, fast_queue=True)
    server.run(host="127.0.0.1", port=port, log_level="warning", access_log=False, generate_client_file=False)


def main() -> None:
    """Serve until standard input closes."""
    if sys.argv[1] == "--run":
        _run(int(sys.argv[2]), int(sys.argv[3]))
        return
    options = workload_parser(__doc__).parse_args()
    command = [sys.executable, __file__, "--run", str(options.http_port), str(options.instances)]
    serve_command(options.http_port, ["/health"], command, {_VARIABLE: options.workload})


if __name__ == "__main__":
    main()
