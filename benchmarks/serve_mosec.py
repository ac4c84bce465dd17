"""Serve a workload with mosec: batches as Triton's, raw bytes on the wire."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import numpy as np
from mosec import Server, SSEWorker, Worker
from serve import serve_command, workload_parser
from workloads import MAX_BATCH_SIZE, STREAM, WORKLOADS

# mosec starts processes of its own, which import this file again.
_VARIABLE = "PYTRITON_BENCHMARK_WORKLOAD"


class Model(Worker):
    """The workload's model."""

    resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        super().__init__()
        self.workload = WORKLOADS[os.environ[_VARIABLE]]
        self.function = self.workload.function()

    def deserialize(self, data: bytes) -> Any:
        """Take an input from a request's body."""
        if self.workload.datatype == "BYTES":
            return np.array([text.encode() for text in json.loads(data)], dtype=np.object_)
        return np.frombuffer(data, np.float32).reshape(self.workload.shape)

    def serialize(self, data: Any) -> bytes:
        """Make a response's body from an output."""
        if self.workload.datatype == "BYTES":
            return json.dumps([text.decode() for text in data]).encode()
        return bytes(data.tobytes())

    def forward(self, data: list[Any]) -> list[Any]:
        """Compute a batch."""
        return list(self.function(np.stack(data)))


class Stream(SSEWorker):
    """Counts."""

    def forward(self, data: list[dict[str, int]]) -> list[dict[str, int]]:
        """Send the numbers to all streams of a batch, one by one."""
        for number in range(data[0]["count"]):
            for index in range(len(data)):
                self.send_stream_event(str(number), index=index)
        return data


def _run(instances: int) -> None:
    server = Server()
    worker = Stream if os.environ[_VARIABLE] == STREAM else Model
    server.append_worker(worker, num=instances, max_batch_size=MAX_BATCH_SIZE, max_wait_time=1)
    server.run()


def main() -> None:
    """Serve until standard input closes."""
    if sys.argv[1] == "--run":
        instances = int(sys.argv[2])
        del sys.argv[1:3]  # mosec reads the rest
        _run(instances)
        return
    options = workload_parser(__doc__).parse_args()
    command = [sys.executable, __file__, "--run", str(options.instances), "--address=127.0.0.1"]
    command += [f"--port={options.http_port}", "--log-level=warning"]
    serve_command(options.http_port, ["/"], command, {_VARIABLE: options.workload})


if __name__ == "__main__":
    main()
