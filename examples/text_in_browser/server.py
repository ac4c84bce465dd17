"""Streams text to a page in the browser, until Ctrl-C: ``python examples/text_in_browser/server.py``."""

import argparse
import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import uvicorn
from starlette.applications import Starlette
from starlette.responses import FileResponse
from starlette.routing import Mount, Route
from words import Words, corpus

from pytriton.decorators import fill_optionals, sample
from pytriton.gateway import Gateway
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

PAGE = Path(__file__).with_name("page.html")
PAUSE_S = 0.03  # after each word: a large model takes as long for the next one

words = Words(corpus())


# An async generator runs in an event loop, many requests at a time. When a browser disconnects, it is closed.
@fill_optionals(length=np.array([100], np.int32))
@sample
async def write(prompt: np.ndarray, length: np.ndarray) -> AsyncIterator[dict[str, np.ndarray]]:
    for word in words.following(prompt.item().decode(errors="replace"), length.item()):
        yield {"text": np.array([word])}
        await asyncio.sleep(PAUSE_S)


async def page(_: object) -> FileResponse:
    return FileResponse(PAGE)


def main() -> None:
    parser = argparse.ArgumentParser(description="Stream text to a page in the browser.")
    parser.add_argument("--port", type=int, default=8080, help="port of the page; 0 for any free one")
    port = parser.parse_args().port

    triton = Triton()
    triton.bind(
        "Writer",
        write,
        inputs=[Tensor((1,), bytes, "prompt"), Tensor((1,), np.int32, "length", optional=True)],
        outputs=[Tensor((1,), str, "text")],
        config=ModelConfig(batching=False, decoupled=True),
    )
    gateway = Gateway(triton)
    # The page is at /; everything else belongs to the gateway.
    app = Starlette(routes=[Route("/", page), Mount("/", gateway)], lifespan=gateway.lifespan)
    uvicorn.run(app, port=port)


if __name__ == "__main__":
    main()
