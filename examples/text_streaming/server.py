"""Serves a model that streams the text it writes, until Ctrl-C: ``python examples/text_streaming/server.py``."""

from __future__ import annotations

import argparse
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import numpy as np
from engine import Engine
from model import cache_folder, load
from numpy.typing import NDArray

from pytriton.decorators import fill_optionals, sample
from pytriton.model_config import ModelConfig, Tensor
from pytriton.triton import Triton

MODEL_NAME = "Writer"
Array = NDArray[Any]


def bind(triton: Triton, engine: Engine) -> None:
    # An async generator runs in an event loop, many requests at a time. When a client cancels, it is closed.
    @fill_optionals(max_tokens=np.array([200], np.int32), temperature=np.array([0.5], np.float32))
    @sample
    async def generate(prompt: Array, max_tokens: Array, temperature: Array) -> AsyncIterator[dict[str, Array]]:
        texts = engine.generate(prompt.item().decode(errors="replace"), max_tokens.item(), temperature.item())
        async with aclosing(texts):
            async for text in texts:
                yield {"text": np.array([text.encode()])}

    triton.bind(
        model_name=MODEL_NAME,
        infer_func=generate,
        inputs=[
            Tensor(name="prompt", dtype=bytes, shape=(1,)),
            Tensor(name="max_tokens", dtype=np.int32, shape=(1,), optional=True),
            Tensor(name="temperature", dtype=np.float32, shape=(1,), optional=True),
        ],
        outputs=[Tensor(name="text", dtype=bytes, shape=(1,))],
        # The engine makes the batches; decoupled means any number of responses to a request.
        config=ModelConfig(batching=False, decoupled=True),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Serve a model that streams the text it writes.")
    parser.add_argument("--cache", type=Path, default=cache_folder(), help="folder with the trained model")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    engine = Engine(load(parser.parse_args().cache))
    with Triton() as triton:
        bind(triton, engine)
        triton.serve()


if __name__ == "__main__":
    main()
