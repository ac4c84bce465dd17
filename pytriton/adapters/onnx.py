"""The adapter for ONNX models, executed by ONNX Runtime."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pytriton.adapters.common import InferFunc, decode, import_library, infer_func_of
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.common import MAX_INT32, check_integer
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor
from pytriton.models.definition import ModelDefinition
from pytriton.process.instance import ProcessInstance
from pytriton.proxy.transport.cpu_limit import cpu_count
from pytriton.proxy.types import Array

_STRING = "tensor(string)"
_DTYPES = {
    "tensor(float16)": "float16",
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(bool)": "bool",
    _STRING: "bytes",
    **{f"tensor({sign}int{bits})": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
_CPU = "CPUExecutionProvider"
_DEFAULT_PROVIDERS = ("CUDAExecutionProvider", _CPU)  # not TensorRT, which compiles for minutes


def onnx_model(
    model: Any,
    *,
    batching: bool | None = None,
    max_batch_size: int = 64,
    threads: int | None = None,
    providers: Sequence[Any] | None = None,
    session_options: Any = None,
    processes: int = 0,
) -> ModelDefinition:
    """Serves an ONNX model with ONNX Runtime; its inputs and outputs are those of the file.

    Args:
        model: The path of a file, its content as bytes, or an ``onnxruntime.InferenceSession``.
        batching: Whether the first dimension is the batch. By default it is if its size is variable in all inputs and
            outputs, and has the same name in all inputs.
        max_batch_size: Samples that a batch may have.
        threads: Threads that compute a batch. By default, ONNX Runtime decides; in a container with a CPU limit, there
            are as many as the limit has processors. Processes share the cores equally.
        providers: Execution providers of ONNX Runtime, the preferred one first. By default CUDA, where it is available,
            and the CPU.
        session_options: An ``onnxruntime.SessionOptions``, for all other settings.
        processes: Number of processes, each of which loads the model. By default, the model runs in this process.

    Raises:
        PyTritonBadParameterError: The model cannot be loaded, it has a tensor of a type that Triton lacks, or an
            argument has an invalid value.
        ImportError: ONNX Runtime is not installed.

    Examples:
        >>> triton.bind("ResNet", onnx_model("resnet.onnx", threads=4))  # doctest: +SKIP
    """
    check_integer("onnx_model: processes", processes, 0, MAX_INT32)
    source = str(Path(model).absolute()) if isinstance(model, str | os.PathLike) else model
    if isinstance(source, _onnxruntime().InferenceSession):
        unused = {"threads": threads, "providers": providers, "session_options": session_options}
        _check_unset("a session", **unused, processes=processes or None)
        session = source
    elif processes:
        _check_unset("processes", session_options=session_options)
        threads = max(1, cpu_count() // processes) if threads is None else threads
        session = _load(source, threads, _checked_providers(providers) and [_CPU], None)  # to read its declarations
    else:
        session = _load(source, threads, providers, session_options)
    batches = _has_batch(session) if batching is None else batching
    infer_func: Any = _infer_func(session, batches)
    if processes:
        infer_func = [ProcessInstance(_load_infer_func, args=(source, threads, providers, batches))] * processes
    return ModelDefinition(
        infer_func,
        [_tensor("input", each, batches) for each in session.get_inputs()],
        [_tensor("output", each, batches) for each in session.get_outputs()],
        ModelConfig(batching=batches, max_batch_size=max_batch_size),
    )


def _onnxruntime() -> Any:
    return import_library("onnx_model", "onnxruntime", package="onnxruntime", extra="onnx")


def _check_unset(beside: str, **arguments: Any) -> None:
    for name, value in arguments.items():
        if value is not None:
            raise PyTritonBadParameterError(
                f"onnx_model: {name} cannot be combined with {beside}; leave one of them out, or bind a "
                "ProcessInstance whose factory creates the session."
            )


def _load(source: Any, threads: int | None, providers: Sequence[Any] | None, options: Any) -> Any:
    """Creates a session."""
    runtime = _onnxruntime()
    if not isinstance(source, str | bytes):
        raise PyTritonBadParameterError(
            f"onnx_model got an object of type {type(source).__name__}; pass the path of an ONNX file, its content as "
            "bytes, or an onnxruntime.InferenceSession."
        )
    if isinstance(source, str) and not Path(source).is_file():
        raise PyTritonBadParameterError(f"onnx_model: {source!r} is not a file; pass the path of an ONNX file.")
    if threads is not None:
        check_integer("onnx_model: threads", threads, 1, MAX_INT32)
        _check_unset("threads", session_options=options)
    is_limited = cpu_count() < len(os.sched_getaffinity(0))  # which ONNX Runtime does not notice
    if threads is not None or (is_limited and options is None):
        options = runtime.SessionOptions()
        options.intra_op_num_threads = threads or cpu_count()
        if is_limited:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # which uses up the limit
    try:
        return runtime.InferenceSession(source, sess_options=options, providers=_checked_providers(providers))
    except Exception as error:
        shown = repr(source) if isinstance(source, str) else f"the {len(source)} bytes"
        raise PyTritonBadParameterError(f"onnx_model cannot load {shown}: {error}; check the model.") from error


def _checked_providers(providers: Sequence[Any] | None) -> list[Any]:
    """Returns the providers to use, checked: ONNX Runtime itself silently skips one that it lacks."""
    available = _onnxruntime().get_available_providers()
    if providers is None:
        return [each for each in _DEFAULT_PROVIDERS if each in available]
    for each in providers:
        name = each if isinstance(each, str) else each[0]
        if name not in available:
            raise PyTritonBadParameterError(
                f"onnx_model: the installed ONNX Runtime has no provider {name!r}, but {', '.join(available)}; choose "
                "one of these, or install the build of ONNX Runtime that has it, such as onnxruntime-gpu."
            )
    return list(providers)


def _has_batch(session: Any) -> bool:
    """Returns whether the first dimension of all tensors is the batch."""
    inputs = [each.shape for each in session.get_inputs()]
    outputs = [each.shape for each in session.get_outputs()]
    names = {shape[0] for shape in inputs if shape and isinstance(shape[0], str)}
    return len(names) <= 1 and all(shape and _size(shape[0]) == -1 for shape in inputs + outputs)


def _size(dimension: object) -> int:
    """Returns the size of a dimension; ONNX Runtime represents a variable one by its name or None."""
    return dimension if isinstance(dimension, int) and dimension > 0 else -1


def _tensor(kind: str, argument: Any, batching: bool) -> Tensor:
    """Declares an input or an output."""
    dtype = _DTYPES.get(argument.type)
    if dtype is None:
        raise PyTritonBadParameterError(
            f"onnx_model: {kind} {argument.name!r} is of type {argument.type}, which cannot be served; export the "
            "model with tensors of NumPy's types, one from scikit-learn with options={'zipmap': False}."
        )
    shape = tuple(map(_size, argument.shape))
    if batching and shape[:1] != (-1,):
        raise PyTritonBadParameterError(
            f"onnx_model: batching=True, but {kind} {argument.name!r} has the fixed shape {shape}; export the model "
            "with a dynamic first dimension, or leave batching=True out."
        )
    return Tensor(shape[1:] if batching else shape, dtype, argument.name)


def _load_infer_func(
    source: str | bytes, threads: int | None, providers: Sequence[Any] | None, batching: bool
) -> InferFunc:
    return _infer_func(_load(source, threads, providers, None), batching)


def _infer_func(session: Any, batching: bool) -> InferFunc:
    texts = [each.name for each in session.get_inputs() if each.type == _STRING]
    names = [each.name for each in session.get_outputs()]

    def infer(**arrays: Array) -> dict[str, Array]:
        for name in texts:
            arrays[name] = decode(arrays[name])
        return dict(zip(names, session.run(names, arrays), strict=True))

    description = session.get_modelmeta().description or "An ONNX model."
    return infer_func_of(infer, description, batching)
