"""The models that the contenders of `real_models.py` serve, and their inputs and outputs as bytes.

Run as a script in an environment that has all models' packages, it writes requests to a model, and the model's outputs
when it is called directly: ``python real_functions.py MODEL FOLDER``.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

NETWORK_VARIABLE = "PYTRITON_BENCHMARK_RESNET"
"""Environment variable with the path of the image network's ONNX file."""

ONE_THREAD = dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], "1")
"""Environment variables that limit the libraries used by NumPy, scikit-learn and PyTorch to one thread."""

REQUIREMENTS = ["numpy", "onnxruntime>=1.17", "magika>=1.0", "rapidocr>=3.2", "scikit-learn>=1.4"]
"""The requirements of all models, besides PyTorch."""

SAMPLES = 16
"""The number of requests that are written for each model, all different."""

Function = Callable[[Any], Any]
"""Computes a batch: arrays with the batch in front, or a list of bytes; as many outputs."""


@dataclass(frozen=True)
class Model:
    """A model, and how its inputs and outputs are written.

    Attributes:
        name: its name.
        title: what tables call it.
        load: loads it, on one thread.
        samples: makes inputs, without a batch.
        shape: of an input without the batch; None: the input is bytes, such as a file.
        dtype: of the input's elements.
        output_shape: of an output without the batch; None: the output is a text.
        output_dtype: of the output's elements.
        max_batch_size: inputs that a server may compute at once; 1: the model takes one at a time.
        seconds: how many times longer it is measured than others, because a response takes long.
    """

    name: str
    title: str
    load: Callable[[], Function]
    samples: Callable[[], list[Any]]
    shape: tuple[int, ...] | None
    dtype: Any
    output_shape: tuple[int, ...] | None
    output_dtype: Any
    max_batch_size: int
    seconds: int = 1

    def decode(self, body: bytes) -> Any:
        """Read an input."""
        return bytes(body) if self.shape is None else np.frombuffer(body, self.dtype).reshape(self.shape)

    def encode(self, output: Any) -> bytes:
        """Write an output."""
        if self.output_shape is None:
            return str(output).encode()
        return np.asarray(output, self.output_dtype).tobytes()

    def stack(self, inputs: list[Any]) -> Any:
        """Make a batch of inputs."""
        return inputs if self.shape is None else np.stack(inputs)

    def is_right(self, output: bytes, expected: bytes) -> bool:
        """Compare an output with what it should be; numbers of a batch may differ from those of one input alone."""
        if self.output_shape is None or len(output) != len(expected):
            return output == expected
        found, wanted = (np.frombuffer(each, self.output_dtype) for each in (output, expected))
        return np.allclose(found, wanted, rtol=1e-3, atol=1e-4)


def _load_digits() -> Function:
    from sklearn.datasets import load_digits
    from sklearn.svm import SVC

    digits = load_digits()
    classifier = SVC(gamma=0.001).fit(digits.data[::2], digits.target[::2])
    return lambda images: classifier.predict(images)


def _digits() -> list[Any]:
    from sklearn.datasets import load_digits

    return list(load_digits().data[1 : 2 * SAMPLES : 2].astype(np.float32))


def _load_file_types() -> Function:
    import onnxruntime

    make_session = onnxruntime.InferenceSession
    onnxruntime.InferenceSession = lambda path, **options: make_session(path, _one_thread(), **options)
    from magika import Magika

    try:
        magika = Magika()
    finally:
        onnxruntime.InferenceSession = make_session
    return lambda files: [magika.identify_bytes(file).output.label for file in files]


def _files() -> list[Any]:
    """Take the sources beside this file, whose names Magika does not see, and files of other types made from them."""
    import gzip
    import json

    texts = [path.read_bytes() for path in sorted(Path(__file__).parent.glob("*.*")) if path.suffix != ".pyc"]
    plain = texts[: SAMPLES - 4]
    made = [gzip.compress(texts[0]), json.dumps({"texts": texts[1].decode().split()}).encode(), _picture("a"), texts[2]]
    return plain + made


def _load_ocr() -> Function:
    import cv2
    from rapidocr import RapidOCR

    cv2.setNumThreads(1)
    threads = {"EngineConfig.onnxruntime.intra_op_num_threads": 1, "EngineConfig.onnxruntime.inter_op_num_threads": 1}
    # The pictures are small, and are not enlarged.
    ocr = RapidOCR(params={"Global.log_level": "error", "Det.limit_type": "max", **threads})
    return lambda pictures: ["\n".join(ocr(picture).txts or ()) for picture in pictures]


def _pictures() -> list[Any]:
    return [_picture(f"Parcel {number + 10}\n{7 * number + 3} Station Road") for number in range(SAMPLES)]


def _picture(text: str) -> bytes:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (320, 120), "white")
    ImageDraw.Draw(image).multiline_text((20, 20), text, "black", ImageFont.load_default(32))
    file = io.BytesIO()
    image.save(file, "PNG")
    return file.getvalue()


def _load_images() -> Function:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        os.environ[NETWORK_VARIABLE], sess_options=_one_thread(), providers=["CPUExecutionProvider"]
    )
    return lambda images: session.run(["y"], {"x": images})[0]


def _images() -> list[Any]:
    random = np.random.default_rng(0)
    return [random.standard_normal((3, 224, 224), np.float32) for _ in range(SAMPLES)]


def _load_embeddings() -> Function:
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)  # the same weights in every process

    embedding, positions = torch.nn.Embedding(_TOKENS, _WIDTH), torch.randn(_LENGTH, _WIDTH)
    layer = torch.nn.TransformerEncoderLayer(_WIDTH, 4, 4 * _WIDTH, batch_first=True)
    layers = torch.nn.TransformerEncoder(layer, 4).eval()

    def embed(tokens: Any) -> Any:
        with torch.inference_mode():
            return layers(embedding(torch.tensor(tokens)) + positions).mean(dim=1).numpy()

    return embed


_TOKENS, _LENGTH, _WIDTH = 8192, 32, 256


def _tokens() -> list[Any]:
    return list(np.random.default_rng(0).integers(_TOKENS, size=(SAMPLES, _LENGTH)))


def _one_thread() -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return options


MODELS = {
    model.name: model
    for model in (
        Model("digits", "digits (scikit-learn)", _load_digits, _digits, (64,), np.float32, (), np.int64, 64),
        Model("file_types", "file types (Magika)", _load_file_types, _files, None, np.uint8, None, None, 1),
        Model(
            "embeddings",
            "embeddings (PyTorch, a transformer of four layers)",
            _load_embeddings,
            _tokens,
            (_LENGTH,),
            np.int64,
            (_WIDTH,),
            np.float32,
            16,
        ),
        Model(
            "images",
            "images (ONNX Runtime, ResNet-18)",
            _load_images,
            _images,
            (3, 224, 224),
            np.float32,
            (1000,),
            np.float32,
            8,
            2,
        ),
        Model("ocr", "text in pictures (RapidOCR)", _load_ocr, _pictures, None, np.uint8, None, None, 1, 4),
    )
}


def main() -> None:
    """Write requests, and the outputs of direct calls."""
    model, folder = MODELS[sys.argv[1]], Path(sys.argv[2])
    folder.mkdir(parents=True, exist_ok=True)
    function = model.load()
    for number, sample in enumerate(model.samples()):
        body = sample if model.shape is None else np.ascontiguousarray(sample, model.dtype).tobytes()
        (folder / f"{number}.request").write_bytes(body)
        (folder / f"{number}.answer").write_bytes(model.encode(function(model.stack([model.decode(body)]))[0]))


if __name__ == "__main__":
    main()
