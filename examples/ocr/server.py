"""Reads the text in pictures, in two processes, until Ctrl-C: ``python examples/ocr/server.py``."""

import numpy as np
from rapidocr import RapidOCR

from pytriton.decorators import sample
from pytriton.gateway import GatewayConfig
from pytriton.model_config import ModelConfig, Tensor
from pytriton.process import ProcessInstance
from pytriton.triton import Triton

INPUTS = [Tensor((1,), bytes, "image", media_type="image/*")]
OUTPUTS = [Tensor((-1,), str, "texts"), Tensor((-1,), np.float64, "scores"), Tensor((-1, 4, 2), np.float32, "boxes")]


class Reader:
    def __init__(self) -> None:
        # A core for each process.
        self.ocr = RapidOCR(params={"Global.log_level": "error", "EngineConfig.onnxruntime.intra_op_num_threads": 1})

    @sample
    def __call__(self, image: np.ndarray) -> dict[str, np.ndarray]:
        found = self.ocr(image.item())
        boxes = np.empty((0, 4, 2), np.float32) if found.boxes is None else found.boxes
        return {"texts": np.array(found.txts or (), str), "scores": np.array(found.scores or ()), "boxes": boxes}


if __name__ == "__main__":
    with Triton() as triton:
        # Not in batches: each picture has a number of texts of its own.
        triton.bind("OCR", [ProcessInstance(Reader)] * 2, INPUTS, OUTPUTS, config=ModelConfig(batching=False))
        triton.serve(gateway=GatewayConfig())
