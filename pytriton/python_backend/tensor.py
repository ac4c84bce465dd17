"""Inputs and outputs."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.datatypes import CODE_BY_DTYPE
from pytriton.proxy.cuda.driver import CudaError
from pytriton.proxy.tensors.gpu_tensor import GpuTensor
from pytriton.proxy.types import Array
from pytriton.python_backend.datatypes import OPAQUE
from pytriton.python_backend.dlpack import from_dlpack, to_capsule
from pytriton.python_backend.errors import TritonModelException
from pytriton.python_backend.texts import text_of

_TEXTS = (bytes, str, bytearray, memoryview)


class Tensor:
    """An array with a name. Tensors of requests are views of shared memory, valid for as long as they are referenced.

    Args:
        name: The name of an input or output.
        numpy_array: Its elements, of a dtype that Triton has. Bytes, strings and objects are all ``BYTES``; other
            objects are converted with ``str``.

    Raises:
        TypeError: ``name`` is not a string, or ``numpy_array`` is not an array.
        TritonModelException: Triton has no such dtype.

    Examples:
        >>> from pytriton.python_backend import triton_python_backend_utils as pb_utils
        >>> tensor = pb_utils.Tensor("OUTPUT", np.zeros((1, 2), np.float32))
        >>> tensor.name(), tensor.shape(), tensor.triton_dtype()
        ('OUTPUT', [1, 2], 11)
    """

    __slots__ = ("__weakref__", "_array", "_name")

    def __init__(self, name: str, numpy_array: Array) -> None:
        if not isinstance(name, str):
            name = text_of(name, "a tensor's name")
        if not isinstance(numpy_array, np.ndarray):
            raise TypeError(
                f"tensor {name!r} is made from {type(numpy_array).__name__}, not from a NumPy array: use np.asarray "
                "or Tensor.from_dlpack"
            )
        try:
            CODE_BY_DTYPE[numpy_array.dtype]
        except PyTritonBadParameterError as error:
            raise TritonModelException(f"tensor {name!r}: {error}") from None
        self._name = name
        self._array = numpy_array

    def name(self) -> str:
        """Returns the name."""
        return self._name

    def as_numpy(self) -> Array:
        """Returns the array; for ``BYTES``, an array of bytes objects. A tensor on a GPU is copied to memory.

        Raises:
            TritonModelException: It is BF16, and ml_dtypes is not installed; or the GPU cannot be read.
        """
        if self._array.dtype is OPAQUE:
            raise TritonModelException(
                f"tensor {self._name!r}: Tensor dtype is BF16 and cannot be converted to NumPy, which lacks it: "
                "install ml_dtypes, or use to_dlpack()"
            )
        if not isinstance(self._array, GpuTensor):
            return self._array
        try:
            return self._array.numpy()
        except CudaError as error:
            raise TritonModelException(f"tensor {self._name!r} cannot be read: {error}") from error

    def triton_dtype(self) -> int:
        """Returns the code of the datatype: 11 is FP32. See `triton_to_numpy_type`."""
        return CODE_BY_DTYPE[self._array.dtype]

    def shape(self) -> list[int]:
        """Returns the dimensions, including the batch if the model batches."""
        return list(self._array.shape)

    def is_cpu(self) -> bool:
        """Returns whether it is in host memory, not on a GPU."""
        return not isinstance(self._array, GpuTensor)

    def to_dlpack(self) -> Any:
        """Returns a DLPack capsule that shares the tensor's memory.

        Raises:
            TritonModelException: It is ``BYTES``, or it is BF16 and torch is not installed.
        """
        return self.__dlpack__()

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> Tensor:
        """Creates a tensor that shares the memory of another library's tensor, on the host or on a GPU.

        Args:
            name: The name of an input or output.
            tensor: A DLPack capsule, or an object with ``__dlpack__``: a tensor of PyTorch, JAX, CuPy, TensorFlow.

        Raises:
            TritonModelException: It is neither, or it cannot be read here.
        """
        array = from_dlpack(tensor)
        if isinstance(array, GpuTensor):
            return unchecked(text_of(name, "a tensor's name"), cast("Array", array))
        return Tensor(name, array)

    def __dlpack__(self, **arguments: Any) -> Any:
        if isinstance(self._array, GpuTensor):
            return self._array.__dlpack__(**arguments)
        return to_capsule(self._array, arguments)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._array.__dlpack_device__()

    def __repr__(self) -> str:
        return f"Tensor({self._name!r}, {self._array!r})"


def texts_of(array: Array) -> Array:
    """Converts an array for sending: objects other than bytes and strings are converted with ``str``.

    Args:
        array: An array of any dtype.
    """
    if array.dtype.kind != "O":
        return array
    items = array.ravel().tolist()
    if {*map(type, items)}.issubset(_TEXTS):
        return array
    texts = np.empty(len(items), np.object_)
    texts[:] = [item if isinstance(item, _TEXTS) else str(item) for item in items]
    return texts.reshape(array.shape)


def unchecked(name: str, array: Array) -> Tensor:
    """Creates a tensor without checks."""
    tensor = Tensor.__new__(Tensor)
    tensor._name = name
    tensor._array = array
    return tensor
