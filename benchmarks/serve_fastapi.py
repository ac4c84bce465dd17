"""Serve a workload with FastAPI and uvicorn: no batches, the model in the event loop's process, raw bytes on the wire."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from serve import parser, serve
from workloads import WORKLOADS


def make_app(name: str) -> FastAPI:
    """Make the application; one route answers a workload, one tells that it is ready."""
    app = FastAPI()

    @app.get("/ready")
    async def ready() -> None: ...

    if name == "stream":

        @app.post("/infer")
        async def stream(request: Request) -> StreamingResponse:
            count = (await request.json())["count"]

            async def numbers() -> AsyncIterator[str]:
                for number in range(count):
                    yield f"data: {number}\n\n"
                    await asyncio.sleep(0)

            return StreamingResponse(numbers(), media_type="text/event-stream")

        return app
    workload = WORKLOADS[name]
    function = workload.function()

    @app.post("/infer")
    async def infer(request: Request) -> Response:
        body = await request.body()
        if workload.datatype == "BYTES":
            array = np.array([[text.encode() for text in json.loads(body)]], dtype=np.object_)
            return Response(json.dumps([text.decode() for text in function(array)[0]]), media_type="application/json")
        array = np.frombuffer(body, np.float32).reshape(1, *workload.shape)
        return Response(function(array).tobytes(), media_type="application/octet-stream")

    return app


def main() -> None:
    """Serve until standard input closes."""
    options = parser(__doc__).parse_args()

    def start() -> Callable[[], object]:
        command = [sys.executable, "-m", "uvicorn", "--factory", f"uvicorn_apps:{options.workload}"]
        command += ["--host=127.0.0.1", f"--port={options.http_port}", "--log-level=warning", "--no-access-log"]
        command.append(f"--workers={options.instances}")
        server = subprocess.Popen(command, cwd=sys.path[0])

        def stop() -> None:
            server.terminate()
            server.wait()

        return stop

    serve(options.http_port, ["/ready"], start)


if __name__ == "__main__":
    main()
