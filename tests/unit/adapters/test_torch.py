"""PyTorch modules: how they are called, the inputs and outputs that are found, and refused arguments."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install '.[torch]'")

from pytriton.adapters import torch_model  # noqa: E402
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError  # noqa: E402
from pytriton.model_config import ModelConfig, Tensor  # noqa: E402

X_IN = [Tensor((3,), np.float32, "x")]
Y_OUT = [Tensor((2,), np.float32, "y")]
ONES = np.ones((4, 3), np.float32)


class Returns(torch.nn.Module):
    """Computes what a function of two inputs returns."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, left, right):
        return self.function(left, right)


Pair = collections.namedtuple("Pair", ["total", "difference"])


@dataclasses.dataclass
class Result:
    total: torch.Tensor
    difference: torch.Tensor


KINDS = {
    "dictionary": lambda a, b: {"total": a + b, "difference": a - b},
    "named tuple": lambda a, b: Pair(a + b, a - b),
    "dataclass": lambda a, b: Result(a + b, a - b),
}


def served(definition, **inputs):
    (response,) = definition.infer_func([inputs])
    return response


def test_lists_declare_inputs_and_outputs():
    linear = torch.nn.Linear(3, 2)

    definition = torch_model(linear, X_IN, Y_OUT, max_batch_size=8)

    assert (definition.inputs, definition.outputs) == (X_IN, Y_OUT)
    assert definition.config == ModelConfig(max_batch_size=8)
    assert served(definition, x=ONES)["y"].tolist() == linear(torch.from_numpy(ONES)).tolist()


def test_example_declares_inputs_and_outputs():
    linear = torch.nn.Linear(3, 2)

    definition = torch_model(linear, example=torch.zeros(1, 3))

    assert definition.inputs == [Tensor((3,), np.float32, "input")]  # as Linear.forward calls it
    assert definition.outputs == [Tensor((2,), np.float32, "OUTPUT_1")]
    assert served(definition, input=ONES)["OUTPUT_1"].tolist() == linear(torch.from_numpy(ONES)).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_outputs_have_the_names_given_by_the_module(kind):
    definition = torch_model(Returns(KINDS[kind]), example=(torch.zeros(1, 2), torch.zeros(1, 2)))

    assert definition.inputs == [Tensor((2,), np.float32, name) for name in ("left", "right")]
    assert definition.outputs == [Tensor((2,), np.float32, name) for name in ("total", "difference")]
    two = np.full((1, 2), 2, np.float32)
    assert served(definition, left=two, right=two)["difference"].tolist() == [[0, 0]]


@pytest.mark.parametrize("sequence", [tuple, list])
def test_outputs_of_a_sequence_are_named_by_their_position(sequence):
    module = Returns(lambda a, b: sequence([a + b, a - b]))

    definition = torch_model(module, example=(torch.zeros(1, 2), torch.zeros(1, 2)))

    assert [tensor.name for tensor in definition.outputs] == ["OUTPUT_1", "OUTPUT_2"]


def test_declared_names_go_by_position_for_a_tuple():
    inputs = [Tensor((1,), np.float32), Tensor((1,), np.float32)]
    outputs = [Tensor((1,), np.float32, "total"), Tensor((1,), np.float32)]

    response = served(
        torch_model(Returns(lambda a, b: (a + b, a - b)), inputs, outputs),
        INPUT_1=np.array([[5]], np.float32),
        INPUT_2=np.array([[3]], np.float32),
    )

    assert {name: array.item() for name, array in response.items()} == {"total": 8, "OUTPUT_2": 2}


def test_inputs_in_another_order_are_passed_by_name():
    inputs = [Tensor((1,), np.float32, "right"), Tensor((1,), np.float32, "left")]
    definition = torch_model(Returns(lambda a, b: a - b), inputs, [Tensor((1,), np.float32, "y")])

    response = served(definition, right=np.array([[3]], np.float32), left=np.array([[5]], np.float32))

    assert response["y"].item() == 2


def test_example_may_name_its_tensors():
    definition = torch_model(
        Returns(lambda a, b: a - b), example={"right": torch.zeros(1, 1), "left": torch.ones(1, 1)}
    )

    assert [tensor.name for tensor in definition.inputs] == ["right", "left"]
    response = served(definition, right=np.array([[3]], np.float32), left=np.array([[5]], np.float32))
    assert response["OUTPUT_1"].item() == 2


def test_values_that_are_not_tensors_are_dropped():
    module = Returns(lambda a, b: {"total": a + b, "loss": None, "cache": object()})

    definition = torch_model(module, example=(torch.zeros(1, 1), torch.zeros(1, 1)))

    assert [tensor.name for tensor in definition.outputs] == ["total"]


def test_module_evaluates_without_gradients():
    modes = []
    module = Returns(lambda a, b: modes.append((module.training, torch.is_inference_mode_enabled())) or a)

    torch_model(module, example=(torch.zeros(1, 1), torch.zeros(1, 1)))

    assert modes == [(False, True)]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_module_may_compute_in_another_type(dtype):
    linear = torch.nn.Linear(3, 2)

    definition = torch_model(linear, example=torch.zeros(1, 3), dtype=dtype)

    assert linear.weight.dtype == dtype
    assert definition.inputs[0].datatype.name == "FP32"
    assert definition.outputs[0].datatype.name == ("FP64" if dtype == torch.float64 else "FP32")
    assert np.isfinite(served(definition, input=ONES)["OUTPUT_1"]).all()


def test_integers_stay_integers():
    embedding = torch.nn.Embedding(5, 2).half()

    definition = torch_model(embedding, example=torch.zeros(1, 4, dtype=torch.int64), dtype=torch.float16)

    assert definition.inputs[0].datatype.name == "INT64"
    assert definition.outputs == [Tensor((4, 2), np.float32, "OUTPUT_1")]


def test_results_are_converted_to_the_declared_precision():
    definition = torch_model(torch.nn.Linear(3, 2), X_IN, [Tensor((2,), np.float16, "y")])

    assert served(definition, x=ONES)["y"].dtype == np.float16


def test_floats_do_not_become_integers():
    definition = torch_model(torch.nn.Linear(3, 2), X_IN, [Tensor((2,), np.int64, "y")])

    assert served(definition, x=ONES)["y"].dtype == np.float32  # which the server's check refuses


def test_exported_program_is_served():
    dynamic = ({0: torch.export.Dim.AUTO},)
    exported = torch.export.export(torch.nn.Linear(3, 2), (torch.zeros(2, 3),), dynamic_shapes=dynamic).module()

    definition = torch_model(exported, example=torch.zeros(1, 3))

    assert served(definition, input=ONES)["OUTPUT_1"].shape == (4, 2)


def test_traced_module_is_served():
    traced = torch.jit.trace(torch.nn.Linear(3, 2).eval(), torch.zeros(2, 3))

    definition = torch_model(traced, example=torch.zeros(1, 3))

    assert definition.outputs[0].shape == (2,)
    assert definition.infer_func([{definition.inputs[0].name: ONES}])[0]["OUTPUT_1"].shape == (4, 2)


@pytest.mark.slow
def test_module_is_compiled():
    linear = torch.nn.Linear(3, 2)

    definition = torch_model(linear, example=torch.zeros(1, 3), compile=True)

    assert definition.inputs[0].name == "input"
    assert served(definition, input=ONES)["OUTPUT_1"] == pytest.approx(linear(torch.from_numpy(ONES)).detach().numpy())


def test_description_names_the_modules_class():
    assert torch_model(torch.nn.Linear(3, 2), X_IN, Y_OUT).infer_func.__doc__ == "The PyTorch module Linear."


def test_output_that_the_module_does_not_return_is_named():
    module = Returns(lambda a, b: {"total": a})
    definition = torch_model(module, [Tensor((1,), np.float32), Tensor((1,), np.float32)], [Tensor((1,), float, "sum")])

    with pytest.raises(PyTritonValidationError, match="the module returned 'total', and no output 'sum'"):
        served(definition, INPUT_1=np.ones((1, 1)), INPUT_2=np.ones((1, 1)))


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (abs, {"example": torch.zeros(1)}, "is not a torch.nn.Module"),
        (torch.nn.Linear, {"example": torch.zeros(1)}, "is not a torch.nn.Module"),
        (torch.nn.Linear(3, 2), {}, "takes both inputs and outputs, or an example"),
        (torch.nn.Linear(3, 2), {"inputs": X_IN}, "takes both inputs and outputs, or an example"),
        (torch.nn.Linear(3, 2), {"inputs": X_IN, "example": torch.zeros(1, 3)}, "both inputs and outputs, or an exa"),
        (torch.nn.Linear(3, 2), {"example": torch.zeros(1, 5)}, "fails for the example, as a batch of 2: .*shapes"),
        (torch.nn.Linear(3, 2).half(), {"example": torch.zeros(1, 3)}, "fails for the example.*dtype="),
        (torch.nn.Linear(3, 2), {"example": ONES}, "the example has array"),
        (torch.nn.Linear(3, 2), {"example": [[1.0]]}, "the example has"),
        (torch.nn.Linear(3, 2), {"example": torch.tensor(1.0)}, "the example has tensor"),
        (torch.nn.Flatten(0), {"example": torch.zeros(1, 3)}, r"result 0 .* shape \(6,\) for a batch of 2"),
        (torch.nn.Linear(3, 2), {"inputs": [Tensor((1,), bytes, "x")], "outputs": Y_OUT}, "input 'x' is BYTES"),
        (torch.nn.Linear(3, 2), {"inputs": X_IN, "outputs": [Tensor((1,), bytes, "y")]}, "output 'y' is BYTES"),
        (torch.nn.Linear(3, 2), {"example": torch.zeros(1, 3), "max_batch_size": 0}, "max_batch_size is 0"),
        (
            torch.nn.Linear(3, 2),
            {"example": torch.zeros(1, 3), "device": "nowhere"},
            "to device='nowhere', dtype=None: ",
        ),
    ],
)
def test_mistakes_are_named_at_once(module, arguments, message):
    with pytest.raises(PyTritonBadParameterError, match=message):
        torch_model(module, **arguments)


def test_weights_without_their_module_are_refused_in_a_sentence():
    weights = torch.nn.Linear(100, 100).state_dict()
    with pytest.raises(PyTritonBadParameterError, match=r"create the module, call its load_state_dict") as refused:
        torch_model(weights, example=torch.zeros(1, 100))
    assert len(str(refused.value)) < 300


def test_an_array_as_the_example_is_refused_in_a_sentence():
    with pytest.raises(PyTritonBadParameterError, match=r"such as torch.from_numpy\(array\)") as refused:
        torch_model(torch.nn.Linear(100, 100), example={"x": np.zeros((100, 100), np.float32)})
    assert len(str(refused.value)) < 300


class KeywordOnly(torch.nn.Module):
    def forward(self, *, x):
        return {"y": x + 1}


class AnyKeywords(torch.nn.Module):
    def forward(self, ids=None, **others):
        return {"y": ids + others["mask"]}


@pytest.mark.parametrize(
    ("module", "example"),
    [
        (KeywordOnly(), {"x": torch.ones(1, 2)}),
        (KeywordOnly(), torch.ones(1, 2)),
        (AnyKeywords(), {"ids": torch.ones(1, 2), "mask": torch.ones(1, 2)}),
    ],
)
def test_inputs_are_passed_by_name_where_they_cannot_be_by_position(module, example):
    definition = torch_model(module, example=example)
    sent = {tensor.name: np.ones((1, 2), np.float32) for tensor in definition.inputs}
    assert served(definition, **sent)["y"].tolist() == [[2, 2]]
