"""Serves the functions of `web_functions.py` with FastAPI and uvicorn, which call them directly."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import numpy as np
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse
from pydantic import BaseModel
from serve import parser, serve_command
from web_functions import EVENTS, IMAGE, NPY, STREAM, TINY, double, event_of, from_npy, path, to_npy, tokens

app = FastAPI()


class Vector(BaseModel):
    """The input of the tiny function."""

    x: list[float]


class Doubled(BaseModel):
    """Its output."""

    y: list[float]


class Length(BaseModel):
    """How many tokens to generate."""

    count: int


@app.get("/ready")
async def ready() -> None:
    """Responds when the server is ready."""


@app.post(path(TINY))
async def tiny(vector: Vector) -> Doubled:
    """Doubles numbers."""
    return Doubled(y=double(np.array(vector.x, np.float32)).tolist())


@app.post(path(IMAGE))
async def image(request: Request) -> Response:
    """Doubles an image."""
    return Response(to_npy(double(from_npy(await request.body()))), media_type=NPY)


@app.post(path(STREAM))
async def stream(length: Length) -> StreamingResponse:
    """Streams tokens."""

    def events() -> Iterator[str]:
        for token in tokens(length.count):
            yield event_of(token)

    return StreamingResponse(events(), media_type=EVENTS)


def main() -> None:
    """Serves until standard input closes."""
    options = parser(__doc__).parse_args()
    command = [sys.executable, "-m", "uvicorn", "web_fastapi:app", "--host=127.0.0.1", f"--port={options.http_port}"]
    command += ["--loop=uvloop", "--http=httptools", "--log-level=warning", "--no-access-log"]
    serve_command(options.http_port, ["/ready"], command)


if __name__ == "__main__":
    main()
