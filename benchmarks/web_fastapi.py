"""Serves the functions of `web_functions.py` with FastAPI and uvicorn, which call them directly.

``app`` calls them in the event loop, which is fastest for functions as short as these. ``app_with_threads`` calls them
in threads, as FastAPI's users do with functions that take longer.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from serve import parser, serve_command
from web_functions import EVENTS, IMAGE, NPY, STREAM, TINY, double, event_of, from_npy, path, to_npy, tokens

app = FastAPI()
app_with_threads = FastAPI()


class Vector(BaseModel):
    """The input of the tiny function."""

    x: list[float]


class Doubled(BaseModel):
    """Its output."""

    y: list[float]


class Length(BaseModel):
    """How many tokens to generate."""

    count: int


def _doubled(vector: Vector) -> Doubled:
    return Doubled(y=double(np.array(vector.x, np.float32)).tolist())


def _doubled_image(body: bytes) -> Response:
    return Response(to_npy(double(from_npy(body))), media_type=NPY)


@app.get("/ready")
@app_with_threads.get("/ready")
async def ready() -> None:
    """Responds when the server is ready."""


@app.post(path(TINY))
async def tiny(vector: Vector) -> Doubled:
    """Doubles numbers."""
    return _doubled(vector)


@app_with_threads.post(path(TINY))
def tiny_in_thread(vector: Vector) -> Doubled:
    """Doubles numbers in a thread."""
    return _doubled(vector)


@app.post(path(IMAGE))
async def image(request: Request) -> Response:
    """Doubles an image."""
    return _doubled_image(await request.body())


@app_with_threads.post(path(IMAGE))
async def image_in_thread(request: Request) -> Response:
    """Doubles an image in a thread."""
    return await run_in_threadpool(_doubled_image, await request.body())


@app.post(path(STREAM))
@app_with_threads.post(path(STREAM))
async def stream(length: Length) -> StreamingResponse:
    """Streams tokens."""

    def events() -> Iterator[str]:
        for token in tokens(length.count):
            yield event_of(token)

    return StreamingResponse(events(), media_type=EVENTS)


def main() -> None:
    """Serves until standard input closes."""
    made = parser(__doc__)
    made.add_argument("--app", default="app")
    options = made.parse_args()
    command = [
        sys.executable,
        "-m",
        "uvicorn",
        f"web_fastapi:{options.app}",
        "--host=127.0.0.1",
        f"--port={options.http_port}",
    ]
    command += ["--loop=uvloop", "--http=httptools", "--log-level=warning", "--no-access-log"]
    serve_command(options.http_port, ["/ready"], command)


if __name__ == "__main__":
    main()
