"""Tells what kind of file some bytes are, until Ctrl-C: ``python examples/file_types/server.py``."""

import numpy as np
from magika import Magika

from pytriton.decorators import batch
from pytriton.gateway import GatewayConfig
from pytriton.model_config import Tensor
from pytriton.triton import Triton

INPUTS = [Tensor((1,), bytes, "content")]
OUTPUTS = [Tensor((1,), str, "type"), Tensor((1,), np.float64, "score")]
magika = Magika()


@batch
def file_type(content: np.ndarray) -> dict[str, np.ndarray]:
    found = [magika.identify_bytes(each) for [each] in content]
    return {"type": np.array([[f.output.label] for f in found]), "score": np.array([[f.score] for f in found])}


with Triton() as triton:
    triton.bind("FileType", file_type, INPUTS, OUTPUTS)
    triton.serve(gateway=GatewayConfig())
