"""Write ResNet-18 with random weights, which `real_models.py` measures, as an ONNX file: its path is the argument.

The layers are those of the network for images of 224×224 pixels and 1,000 classes, with batch normalization folded into
the convolutions, as tools that optimize a trained network do.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_CHANNELS = (64, 128, 256, 512)
_CLASSES = 1000


@dataclass
class _Graph:
    """Collects nodes and weights."""

    random: Any = field(default_factory=lambda: np.random.default_rng(0))
    nodes: list[Any] = field(default_factory=list)
    weights: list[Any] = field(default_factory=list)

    def node(self, kind: str, inputs: list[str], **attributes: Any) -> str:
        output = f"{kind}{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [output], **attributes))
        return output

    def weight(self, shape: tuple[int, ...], deviation: float) -> str:
        name = f"weight{len(self.weights)}"
        values = (self.random.standard_normal(shape) * deviation).astype(np.float32)
        self.weights.append(numpy_helper.from_array(values, name))
        return name

    def convolution(self, x: str, channels: tuple[int, int], size: int, stride: int) -> str:
        inward, outward = channels
        kernel = self.weight((outward, inward, size, size), float(np.sqrt(1 / (inward * size * size))))
        bias = self.weight((outward,), 0.0)
        pad = size // 2
        return self.node("Conv", [x, kernel, bias], strides=[stride, stride], pads=[pad] * 4)

    def block(self, x: str, channels: tuple[int, int], stride: int) -> str:
        """Add two convolutions with a connection that skips them."""
        _, outward = channels
        first = self.node("Relu", [self.convolution(x, channels, 3, stride)])
        second = self.convolution(first, (outward, outward), 3, 1)
        past = x if channels == (outward, outward) and stride == 1 else self.convolution(x, channels, 1, stride)
        return self.node("Relu", [self.node("Add", [second, past])])


def main() -> None:
    """Write it."""
    graph = _Graph()
    x = graph.node("Relu", [graph.convolution("x", (3, _CHANNELS[0]), 7, 2)])
    x = graph.node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    inward = _CHANNELS[0]
    for outward in _CHANNELS:
        x = graph.block(x, (inward, outward), 1 if outward == inward else 2)
        x = graph.block(x, (outward, outward), 1)
        inward = outward
    x = graph.node("Flatten", [graph.node("GlobalAveragePool", [x])])
    last = [x, graph.weight((inward, _CLASSES), float(np.sqrt(1 / inward))), graph.weight((_CLASSES,), 0.0)]
    graph.nodes.append(helper.make_node("Gemm", last, ["y"]))
    model = helper.make_model(
        helper.make_graph(
            graph.nodes,
            "resnet18",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 224, 224])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", _CLASSES])],
            graph.weights,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(model)
    onnx.save(model, sys.argv[1])


if __name__ == "__main__":
    main()
