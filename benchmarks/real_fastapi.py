"""Serve a model of `real_functions.py` with FastAPI and uvicorn: raw bytes, no batches, the model in the event loop."""

from __future__ import annotations

import sys

from fastapi import FastAPI, Request, Response
from real_servers import PATH, model, real_parser, run_server


def make_app() -> FastAPI:
    """Make the application, which loads the model; each of uvicorn's workers calls this."""
    served = model()
    function = served.load()
    app = FastAPI()

    @app.get("/ready")
    async def ready() -> None: ...

    @app.post(PATH)
    async def infer(request: Request) -> Response:
        [output] = function(served.stack([served.decode(await request.body())]))
        return Response(served.encode(output), media_type="application/octet-stream")

    return app


def main() -> None:
    """Serve until standard input closes."""
    options = real_parser(__doc__).parse_args()
    command = [sys.executable, "-m", "uvicorn", "--factory", "real_fastapi:make_app"]
    command += ["--host=127.0.0.1", f"--port={options.http_port}", f"--workers={options.workers}"]
    command += ["--loop=uvloop", "--http=httptools", "--log-level=warning", "--no-access-log", "--backlog=4096"]
    run_server(options, "/ready", command)


if __name__ == "__main__":
    main()
