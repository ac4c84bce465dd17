"""Reads the text in pictures, in two processes, until Ctrl-C: ``python examples/ocr/server.py``."""

from typing import NamedTuple

from rapidocr import RapidOCR

from pytriton import GatewayConfig, ProcessInstance, Triton


class Found(NamedTuple):
    texts: list[str]
    scores: list[float]
    boxes: list[list[list[float]]]


class Reader:
    def __init__(self) -> None:
        # A core for each process.
        self.ocr = RapidOCR(params={"Global.log_level": "error", "EngineConfig.onnxruntime.intra_op_num_threads": 1})

    # The type hints declare what the model takes and returns.
    def __call__(self, image: bytes) -> Found:
        found = self.ocr(image)
        return Found(found.txts or [], found.scores or [], [] if found.boxes is None else found.boxes.tolist())


if __name__ == "__main__":
    with Triton() as triton:
        triton.bind("OCR", [ProcessInstance(Reader)] * 2)
        triton.serve(gateway=GatewayConfig())
