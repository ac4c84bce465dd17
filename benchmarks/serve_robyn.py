"""Serve a workload with Robyn, whose server is written in Rust: raw bytes, no batches, the model in the event loop."""

from __future__ import annotations

import signal
import sys

import numpy as np
from robyn import Request, Response, Robyn
from serve import serve_command, workload_parser
from workloads import WORKLOADS

_BINARY = {"content-type": "application/octet-stream"}


def make_app(name: str) -> Robyn:
    """Make the application; one route serves a workload, one shows that it is ready."""
    app = Robyn(__file__)
    workload = WORKLOADS[name]
    function = workload.function()

    @app.get("/ready")
    async def ready() -> str:
        return ""

    @app.post("/infer")
    async def infer(request: Request) -> Response:
        body = request.body if isinstance(request.body, bytes) else request.body.encode()
        array = np.frombuffer(body, np.float32).reshape(1, *workload.shape)
        return Response(200, _BINARY, function(array).tobytes())

    return app


def main() -> None:
    """Serve until standard input closes."""
    if sys.argv[1] == "--run":
        workload, port = sys.argv[2:4]
        del sys.argv[1:4]  # Robyn reads the rest
        make_app(workload).start(host="127.0.0.1", port=int(port))
        return
    options = workload_parser(__doc__).parse_args()
    command = [sys.executable, __file__, "--run", options.workload, str(options.http_port)]
    command += [f"--processes={options.instances}", "--log-level=WARN"]
    serve_command(options.http_port, ["/ready"], command, end_signal=signal.SIGKILL)  # it ignores others


if __name__ == "__main__":
    main()
