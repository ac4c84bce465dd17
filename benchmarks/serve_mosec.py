"""Serve a workload with mosec: batches as Triton's, raw bytes on the wire."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from mosec import Server, SSEWorker, Worker
from serve import parser, serve
from workloads import MAX_BATCH_SIZE, WORKLOADS

_WORKLOAD = os.environ.get("PYTRITON_BENCHMARK_WORKLOAD", "tiny")


class Model(Worker):
    """The workload's model."""

    resp_mime_type = "application/octet-stream"

    def __init__(self) -> None:
        super().__init__()
        self.workload = WORKLOADS[_WORKLOAD]
        self.function = self.workload.function()

    def deserialize(self, data: bytes) -> Any:
        """Take an input from a request's body."""
        if self.workload.datatype == "BYTES":
            return np.array([text.encode() for text in json.loads(data)], dtype=np.object_)
        return np.frombuffer(data, np.float32).reshape(self.workload.shape)

    def serialize(self, data: Any) -> bytes:
        """Make a response's body of an output."""
        if self.workload.datatype == "BYTES":
            return json.dumps([text.decode() for text in data]).encode()
        return bytes(data.tobytes())

    def forward(self, data: list[Any]) -> list[Any]:
        """Compute a batch."""
        return list(self.function(np.stack(data)))


class Stream(SSEWorker):
    """Counts."""

    def forward(self, data: dict[str, int]) -> dict[str, int]:
        """Send the numbers, one by one."""
        for number in range(data["count"]):
            self.send_stream_event(str(number))
        return data


def _run(instances: int) -> None:
    server = Server()
    if _WORKLOAD == "stream":
        server.append_worker(Stream, num=instances, max_batch_size=1)
    else:
        server.append_worker(Model, num=instances, max_batch_size=MAX_BATCH_SIZE, max_wait_time=1)
    server.run()


def main() -> None:
    """Serve until standard input closes."""
    if len(sys.argv) > 1 and sys.argv[1] == "--run":
        instances = int(sys.argv.pop(2))
        del sys.argv[1]
        _run(instances)
        return
    options = parser(__doc__).parse_args()

    def start() -> Callable[[], object]:
        command = [sys.executable, __file__, "--run", str(options.instances), "--address=127.0.0.1"]
        command += [f"--port={options.http_port}", "--log-level=warning"]
        server = subprocess.Popen(command, env={**os.environ, "PYTRITON_BENCHMARK_WORKLOAD": options.workload})

        def stop() -> None:
            server.terminate()
            server.wait()

        return stop

    serve(options.http_port, ["/"], start)


if __name__ == "__main__":
    main()
