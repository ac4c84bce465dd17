"""The adapter for PyTorch's modules."""

from __future__ import annotations

import contextlib
import itertools
import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.adapters.common import InferFunc, import_library, infer_func_of
from pytriton.adapters.torch_call import ModuleCall, array_of, converted, dtype_of, parameters_of
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor
from pytriton.models.definition import ModelDefinition
from pytriton.proxy.types import Array

_MOST_SHOWN = 60  # characters


def torch_model(
    module: Any,
    inputs: Sequence[Tensor] | None = None,
    outputs: Sequence[Tensor] | None = None,
    *,
    example: Any = None,
    device: Any = None,
    dtype: Any = None,
    compile: bool = False,
    max_batch_size: int = 64,
) -> ModelDefinition:
    """Serves a PyTorch module, in evaluation and inference mode; the first dimension of all tensors is the batch.

    The inputs and outputs are those of the two lists, or are learned from an example. Inputs are passed to ``forward``
    by name if it has parameters of these names, and by position otherwise. Outputs are taken from a dictionary or a
    dataclass by name, and from a tuple by position.

    Args:
        module: The module. It is switched to evaluation mode, and moved to the device.
        inputs: The inputs, in order.
        outputs: The outputs, in order.
        example: Instead of both lists: a tensor, or a tuple or dictionary of tensors, for one call of the module. All
            its sizes except the batch are fixed. float16 and bfloat16 results are sent as float32.
        device: Where the module runs, such as ``cuda``; by default where it is.
        dtype: Type to which the module's parameters and its floating-point inputs are converted, such as
            ``torch.float16``; by default they stay as they are.
        compile: Whether to call ``torch.compile``.
        max_batch_size: Samples that a batch may have.

    Raises:
        PyTritonBadParameterError: The module fails for the example, or an argument has an invalid value.
        ImportError: PyTorch is not installed.

    Examples:
        >>> triton.bind("Net", torch_model(net, example=torch.zeros(1, 3, 224, 224)))  # doctest: +SKIP
    """
    torch = import_library("torch_model", "torch", package="torch", extra="torch")
    if not isinstance(module, torch.nn.Module):
        remedy = "pass a module"
        if isinstance(module, Mapping):  # what torch.load returns for a file of weights
            remedy = "create the module, call its load_state_dict with this, and pass the module"
        raise PyTritonBadParameterError(f"torch_model got {_shown(module)}, which is not a torch.nn.Module; {remedy}.")
    if (example is None) == (inputs is None or outputs is None) or (example is not None and (inputs or outputs)):
        raise PyTritonBadParameterError(
            "torch_model takes both inputs and outputs, or an example instead; pass one of the two, such as "
            "example=torch.zeros(1, 3, 224, 224)."
        )
    module = _prepare(torch, module, device, dtype, compile)
    device = _device_of(torch, module) if device is None else device
    config = ModelConfig(max_batch_size=max_batch_size, gpu_tensors=torch.device(device).type == "cuda")
    if example is not None:
        arrays = _arrays(torch, module, example, rows=min(2, max_batch_size))
        call = ModuleCall(torch, module, list(arrays), device, dtype)
        inputs, outputs = _tensors(arrays), _tensors(_probe(call, arrays))
    assert inputs is not None
    assert outputs is not None
    for tensor in inputs:
        dtype_of(torch, "input", tensor)
    call = ModuleCall(torch, module, _names(inputs, "INPUT"), device, dtype)
    return ModelDefinition(_infer_func(call, outputs), inputs, outputs, config)


def _shown(value: Any) -> str:
    text = reprlib.repr(value)
    return text if len(text) <= _MOST_SHOWN else f"an object of type {type(value).__name__}"


def _device_of(torch: Any, module: Any) -> Any:
    tensors = itertools.chain(module.parameters(), module.buffers())
    return next((tensor.device for tensor in tensors), torch.device("cpu"))


def _prepare(torch: Any, module: Any, device: Any, dtype: Any, compile: bool) -> Any:
    try:
        if device is not None or dtype is not None:  # otherwise, its parts may stay on several devices
            module.to(device=device, dtype=dtype)
    except Exception as error:
        raise PyTritonBadParameterError(
            f"torch_model cannot move the module to device={device!r}, dtype={dtype!r}: {error}; choose others, or "
            "leave them out."
        ) from error
    with contextlib.suppress(NotImplementedError):  # an exported program cannot be switched
        module.eval()
    return torch.compile(module) if compile else module


def _arrays(torch: Any, module: Any, example: Any, rows: int) -> dict[str, Array]:
    """Returns the first sample of the example, repeated, as arrays by the names of the inputs."""
    tensors = [example] if isinstance(example, torch.Tensor) else example
    if not isinstance(tensors, Mapping):
        names = parameters_of(module)[: len(tensors)]
        if len(names) < len(tensors):
            names = [f"INPUT_{number}" for number in range(1, len(tensors) + 1)]
        tensors = dict(zip(names, tensors, strict=True))
    for name, tensor in tensors.items():
        if not isinstance(tensor, torch.Tensor) or not tensor.ndim or not len(tensor):
            raise PyTritonBadParameterError(
                f"torch_model: the example has {_shown(tensor)} for input {name!r}; pass a tensor whose first "
                "dimension is the batch, such as torch.from_numpy(array)."
            )
    return {name: _array(torch, torch.cat([tensor[:1]] * rows)) for name, tensor in tensors.items()}


def _array(torch: Any, tensor: Any) -> Array:
    """Returns a tensor as an array, one of half precision as float32."""
    is_half = tensor.dtype in (torch.float16, torch.bfloat16)
    return array_of(tensor.detach(), torch.float32 if is_half else None)


def _probe(call: ModuleCall, arrays: dict[str, Array]) -> dict[str, Array]:
    """Calls the module with the example; returns the outputs by their names."""
    rows = len(next(iter(arrays.values())))
    try:
        results = call(arrays)
    except Exception as error:
        raise PyTritonBadParameterError(
            f"torch_model: the module fails for the example, as a batch of {rows}: {error}; pass another example, "
            "dtype= if its parameters are of another type, or max_batch_size=1 if it takes no batches."
        ) from error
    for key, tensor in results.items():
        if tensor.shape[:1] != (rows,):
            raise PyTritonBadParameterError(
                f"torch_model: result {key!r} of the module has shape {tuple(tensor.shape)} for a batch of {rows}; "
                "return results whose first dimension is the batch."
            )
    return {
        key if isinstance(key, str) else f"OUTPUT_{key + 1}": _array(call.torch, tensor)
        for key, tensor in results.items()
    }


def _tensors(arrays: dict[str, Array]) -> list[Tensor]:
    return [Tensor(array.shape[1:], array.dtype, name) for name, array in arrays.items()]


def _names(tensors: Sequence[Tensor], prefix: str) -> list[str]:
    """Returns the names of tensors, as `Triton.bind` completes them."""
    return [tensor.name or f"{prefix}_{number}" for number, tensor in enumerate(tensors, start=1)]


def _infer_func(call: ModuleCall, outputs: Sequence[Tensor]) -> InferFunc:
    dtypes = [dtype_of(call.torch, "output", tensor) for tensor in outputs]
    wanted = list(zip(_names(outputs, "OUTPUT"), range(len(outputs)), dtypes, strict=True))

    def infer(**arrays: Array) -> dict[str, Any]:
        results = call(arrays)
        found = {}
        for name, position, dtype in wanted:
            tensor = results.get(name, results.get(position))
            if tensor is None:
                raise PyTritonValidationError(
                    f"the module returned {', '.join(map(repr, results)) or 'no tensor'}, and no output {name!r}; name "
                    "the outputs as the module does"
                )
            # If a tensor on a GPU must be copied, the worker does so.
            found[name] = converted(tensor, dtype) if tensor.is_cuda else array_of(tensor, dtype)
        return found

    return infer_func_of(infer, f"The PyTorch module {call.description}.")
