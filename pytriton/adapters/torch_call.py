"""Calls of a PyTorch module, from arrays to arrays."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.model_config.tensor import Tensor
from pytriton.proxy.tensors.gpu_tensor import GpuTensor
from pytriton.proxy.types import Array


class ModuleCall:
    """Calls a module with arrays.

    Args:
        torch: PyTorch.
        module: The module.
        names: The names of the inputs, in order. They are passed to ``forward`` by name if it has such parameters in
            another order, and otherwise by position.
        device: Where the module runs.
        dtype: Type to which floating-point inputs are converted, or None.
    """

    def __init__(self, torch: Any, module: Any, names: Sequence[str], device: Any, dtype: Any) -> None:
        self.torch = torch
        """PyTorch."""
        self._module = module
        self._names = names
        self._by_name = _takes_by_name(module, names)
        self.description = type(getattr(module, "_orig_mod", module)).__name__
        """The name of the module's class."""
        self._device = device
        self._dtype = dtype

    def __call__(self, arrays: Mapping[str, Array]) -> dict[Any, Any]:
        """Returns the tensors that the module returns, by their names or by their positions."""
        tensors = [self._tensor(arrays[name]) for name in self._names]
        with self.torch.inference_mode():
            if self._by_name:
                returned = self._module(**dict(zip(self._names, tensors, strict=True)))
            else:
                returned = self._module(*tensors)
        return self._results(returned)

    def _tensor(self, array: Array) -> Any:
        tensor = self.torch.from_dlpack(array) if isinstance(array, GpuTensor) else self.torch.from_numpy(array)
        dtype = self._dtype if tensor.is_floating_point() else None
        # Asynchronous: reading the results waits for the copy, and the batch's memory is kept until then.
        return tensor.to(self._device, dtype, non_blocking=self.torch.device(self._device).type == "cuda")

    def _results(self, returned: Any) -> dict[Any, Any]:
        tensor = self.torch.Tensor
        if isinstance(returned, tensor):
            return {0: returned}
        if dataclasses.is_dataclass(returned) and not isinstance(returned, Mapping):  # transformers' are both
            returned = vars(returned)
        if hasattr(returned, "_asdict"):
            returned = returned._asdict()
        if isinstance(returned, Mapping):
            return {name: value for name, value in returned.items() if isinstance(value, tensor)}
        if isinstance(returned, tuple | list):
            return dict(enumerate(value for value in returned if isinstance(value, tensor)))
        raise PyTritonValidationError(
            f"the module returned an object of type {type(returned).__name__}; return a tensor, or a tuple or a "
            "dictionary of tensors"
        )


def parameters_of(module: Any) -> list[str]:
    """Returns the names of the parameters of a module's ``forward``, in order; none if they are unknown."""
    return [each.name for each in _forward(module) if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]


def _takes_by_name(module: Any, names: Sequence[str]) -> bool:
    """Returns whether inputs of these names, in this order, must be passed to ``forward`` by name."""
    parameters = _forward(module)
    named = set(parameters_of(module))
    by_position = [each.name for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    takes_any_name = any(each.kind is each.VAR_KEYWORD for each in parameters)
    fits = set(names) <= named or (takes_any_name and (not by_position or not named.isdisjoint(names)))
    return fits and list(names) != by_position[: len(names)]


def _forward(module: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(getattr(module, "_orig_mod", module).forward).parameters.values())
    except (TypeError, ValueError):
        return []


def dtype_of(torch: Any, kind: str, tensor: Tensor) -> Any:
    """Returns PyTorch's type of a declared tensor.

    Args:
        torch: PyTorch.
        kind: Whether it is an input or an output, for the error message.
        tensor: The tensor.

    Raises:
        PyTritonBadParameterError: NumPy or PyTorch lacks it.
    """
    name = tensor.datatype.name
    if tensor.datatype.numpy is None or name == "BYTES":
        raise PyTritonBadParameterError(
            f"torch_model: {kind} {tensor.name!r} is {name}, of which no array can become a tensor of PyTorch; declare "
            "a number, such as float32."
        )
    return getattr(torch, tensor.datatype.numpy.name)


def array_of(tensor: Any, dtype: Any) -> Array:
    """Returns a tensor as an array.

    Args:
        tensor: The tensor.
        dtype: As in `converted`.
    """
    array: Array = converted(tensor, dtype).cpu().numpy()
    return array


def converted(tensor: Any, dtype: Any) -> Any:
    """Returns a tensor of the type that is declared.

    Args:
        tensor: The tensor.
        dtype: The floating-point type to which it is converted if it has another one; None to leave it as it is.
    """
    if dtype not in (None, tensor.dtype) and dtype.is_floating_point and tensor.is_floating_point():
        return tensor.to(dtype)
    return tensor
