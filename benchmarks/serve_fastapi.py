"""Serve a workload with FastAPI and uvicorn: no batches, the model in the event loop, raw bytes on the wire."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from serve import serve_command, workload_parser
from workloads import STREAM, WORKLOADS


def make_app(name: str) -> FastAPI:
    """Make the application; one route serves a workload, one shows that it is ready."""
    app = FastAPI()

    @app.get("/ready")
    async def ready() -> None: ...

    if name == STREAM:

        @app.post("/infer")
        async def stream(request: Request) -> StreamingResponse:
            count = (await request.json())["count"]

            async def numbers() -> AsyncIterator[str]:
                for number in range(count):
                    yield f"data: {number}\n\n"

            return StreamingResponse(numbers(), media_type="text/event-stream")

        return app
    workload = WORKLOADS[name]
    function = workload.function()

    @app.post("/infer")
    async def infer(request: Request) -> Response:
        body = await request.body()
        if workload.datatype == "BYTES":
            texts = function(np.array([[text.encode() for text in json.loads(body)]], dtype=np.object_))
            return Response(json.dumps([text.decode() for text in texts[0]]), media_type="application/json")
        array = np.frombuffer(body, np.float32).reshape(1, *workload.shape)
        return Response(function(array).tobytes(), media_type="application/octet-stream")

    return app


def main() -> None:
    """Serve until standard input closes."""
    options = workload_parser(__doc__).parse_args()
    command = [sys.executable, "-m", "uvicorn", "--factory", f"uvicorn_apps:{options.workload}"]
    command += ["--host=127.0.0.1", f"--port={options.http_port}", f"--workers={options.instances}"]
    command += ["--loop=uvloop", "--http=httptools", "--log-level=warning", "--no-access-log"]
    serve_command(options.http_port, ["/ready"], command)


if __name__ == "__main__":
    main()
