"""Turns texts into vectors, until Ctrl-C: ``python examples/embeddings/server.py``."""

from pathlib import Path

import numpy as np
import wordllama

from pytriton.decorators import batch
from pytriton.gateway import GatewayConfig, OpenAIEmbeddings
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.triton import Triton

# The package includes the model, but finds all of it only if its own folder is named.
model = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)


@batch
def embed(text: np.ndarray) -> dict[str, np.ndarray]:
    return {"embedding": model.embed([each.decode() for [each] in text], norm=True)}


with Triton() as triton:
    triton.bind(
        "Embeddings",
        embed,
        inputs=[Tensor((1,), bytes, "text")],
        outputs=[Tensor((256,), np.float32, "embedding")],
        config=ModelConfig(max_batch_size=64, batcher=DynamicBatcher(max_queue_delay_microseconds=100)),
    )
    triton.serve(gateway=GatewayConfig(openai=[OpenAIEmbeddings("Embeddings")]))
