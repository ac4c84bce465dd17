"""Write the network that the benchmark's contenders compute as an ONNX file: the file's path is the argument."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

_LAYERS = (64, 256, 256, 10)


def main() -> None:
    """Write it."""
    random = np.random.default_rng(0)
    nodes, weights, last = [], [], "x"
    for number, (rows, columns) in enumerate(itertools.pairwise(_LAYERS)):
        is_last = number == len(_LAYERS) - 2
        weight = (random.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"w{number}"))
        weights.append(numpy_helper.from_array(np.zeros(columns, np.float32), f"b{number}"))
        output = "y" if is_last else f"g{number}"
        nodes.append(helper.make_node("Gemm", [last, f"w{number}", f"b{number}"], [output]))
        if not is_last:
            last = f"h{number}"
            nodes.append(helper.make_node("Relu", [output], [last]))
    graph = helper.make_graph(
        nodes,
        "network",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", _LAYERS[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", _LAYERS[-1]])],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, sys.argv[1])


if __name__ == "__main__":
    main()
