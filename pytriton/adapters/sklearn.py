"""The adapter for scikit-learn's estimators."""

from __future__ import annotations

from typing import Any

import numpy as np

from pytriton.adapters.common import InferFunc, infer_func_of
from pytriton.adapters.samples import Join, import_sklearn, samples_of
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.common import MAX_INT32, check_integer
from pytriton.model_config.model_config import ModelConfig
from pytriton.model_config.tensor import Tensor
from pytriton.models.definition import ModelDefinition
from pytriton.process.instance import ProcessInstance
from pytriton.proxy.context import CALL_FRAME
from pytriton.proxy.types import Array

_METHODS = ("predict", "predict_proba")
_MOST_CLASSES = 20  # named in a description


def sklearn_model(
    estimator: Any, *, example: Any = None, dtype: Any = None, max_batch_size: int = 64, processes: int = 0
) -> ModelDefinition:
    """Serves a fitted estimator of scikit-learn, or a pipeline of them.

    Inputs:
        - ``features``: all features of a sample, as one vector.
        - ``text``: a string, if the first step is a vectorizer of text, or the example has strings.
        - One input of shape ``(1,)`` for each column, if the example is a data frame.

    Outputs:
        - ``prediction`` of a regressor, ``label`` of a classifier or a clustering.
        - ``probability``, if there is ``predict_proba``: one for each of ``classes_``, in that order. With several
          targets, ``probability_1``, ``probability_2`` and so on.

    Args:
        estimator: The estimator, after ``fit``.
        example: Samples like those for ``fit``, at least one: to learn the inputs, and, from a prediction, the outputs.
            By default a row of zeros, or a text.
        dtype: Type of ``features``; by default that of the example, or float64.
        max_batch_size: Samples that a batch may have.
        processes: Number of processes, each with a copy of the estimator. By default, it runs in this process.

    Raises:
        PyTritonBadParameterError: The estimator is not fitted or cannot predict the example, or an argument has an
            invalid value.
        ImportError: scikit-learn is not installed.

    Examples:
        >>> triton.bind("Digits", sklearn_model(LogisticRegression().fit(images, digits)))  # doctest: +SKIP
    """
    check_integer("sklearn_model: processes", processes, 0, MAX_INT32)
    _check_fitted(estimator)
    inputs, join = samples_of(estimator, example, dtype)
    samples = join(**inputs)
    outputs: dict[str, Array] = {}
    names = {}
    for method in _METHODS:
        if hasattr(estimator, method):
            arrays = _try(estimator, method, samples, is_real=example is not None)
            names[method] = _names(estimator, method, len(arrays))
            outputs |= zip(names[method], arrays, strict=True)
    create = (estimator, join, names)
    return ModelDefinition(
        [ProcessInstance(_infer_func, args=create)] * processes or _infer_func(*create),
        _tensors(inputs),
        _tensors(outputs),
        ModelConfig(max_batch_size=max_batch_size),
    )


def _check_fitted(estimator: Any) -> None:
    name = type(estimator).__name__
    try:
        import_sklearn("sklearn.utils.validation").check_is_fitted(estimator)
    except TypeError as error:
        raise PyTritonBadParameterError(
            f"sklearn_model got {estimator!r}, which is not an estimator: {error} Pass an estimator after fit()."
        ) from error
    except import_sklearn("sklearn.exceptions").NotFittedError as error:
        raise PyTritonBadParameterError(
            f"sklearn_model: this {name} is not fitted; call its method fit first."
        ) from error
    if not hasattr(estimator, "predict"):
        raise PyTritonBadParameterError(
            f"sklearn_model: {name} has no method predict; pass an estimator that has one, or bind a function with "
            "@batch."
        )


def _try(estimator: Any, method: str, samples: Any, is_real: bool) -> list[Array]:
    """Calls a method with the example."""
    try:
        return _call(estimator, method, samples)
    except Exception as error:
        sample = "the example" if is_real else "a made-up sample"
        reason = " ".join(str(error).split()).rstrip(".")
        raise PyTritonBadParameterError(
            f"sklearn_model: {type(estimator).__name__}.{method} fails for {sample}: {reason}. Pass a sample like "
            "those for fit as example, as in example=X[:1]."
        ) from error


def _call(estimator: Any, method: str, samples: Any) -> list[Array]:
    """Calls a method; returns an array for each target, whose first dimension is the batch."""
    returned = getattr(estimator, method)(samples)
    if isinstance(returned, list):
        return [np.asarray(each) for each in returned]
    array = returned.toarray() if hasattr(returned, "toarray") else np.asarray(returned)
    return [array[:, np.newaxis] if array.ndim == 1 else array]


def _names(estimator: Any, method: str, count: int) -> list[str]:
    """Names the outputs of a method."""
    name = "probability"
    if method == "predict":
        name = "prediction" if import_sklearn("sklearn.base").is_regressor(estimator) else "label"
    return [name] if count == 1 else [f"{name}_{number}" for number in range(1, count + 1)]


def _tensors(arrays: dict[str, Array]) -> list[Tensor]:
    return [Tensor(array.shape[1:], array.dtype, name) for name, array in arrays.items()]


def _infer_func(estimator: Any, join: Join, names: dict[str, list[str]]) -> InferFunc:
    def infer(**inputs: Array) -> dict[str, Array]:
        samples = join(**inputs)
        outputs: dict[str, Array] = {}
        for method in _wanted(names):
            outputs |= zip(names[method], _call(estimator, method, samples), strict=True)
        return outputs

    return infer_func_of(infer, _description(estimator))


def _wanted(names: dict[str, list[str]]) -> list[str]:
    """Returns the methods whose outputs are requested by any request of the batch."""
    wanted: set[str] = set()
    for request in CALL_FRAME.get()[0] if len(names) > 1 else ():
        of_request = getattr(request, "requested_output_names", None)
        if of_request is None:
            return list(names)
        wanted.update(of_request)
    return [method for method, outputs in names.items() if not wanted.isdisjoint(outputs)] or list(names)


def _description(estimator: Any) -> str:
    classes = getattr(estimator, "classes_", None)
    library = type(estimator).__module__.partition(".")[0]
    described = f"{type(estimator).__name__} of {'scikit-learn' if library == 'sklearn' else library}."
    if not isinstance(classes, np.ndarray) or len(classes) > _MOST_CLASSES:
        return described
    return f"{described} Its classes: {', '.join(map(str, classes))}."
