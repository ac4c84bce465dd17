"""Samples for scikit-learn: their inputs, and their conversion for an estimator."""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pytriton.adapters.common import decode, import_library
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.datatypes import BYTES_KINDS
from pytriton.proxy.types import Array

Join = Callable[..., Any]
"""Converts inputs, given by name, to samples for an estimator. Can be pickled by reference."""


class Column(NamedTuple):
    """A column of the example.

    Attributes:
        name: Its name, of any type.
        dtype: Its type.
        missing: What the example has for a missing text, which clients send as an empty one; ``()`` if none is missing.
    """

    name: Any
    dtype: Any
    missing: tuple[Any, ...]

    @classmethod
    def of(cls, example: Any, name: Any) -> Column:
        """Describes a column of the example.

        Raises:
            PyTritonBadParameterError: Clients cannot send its values.
        """
        pandas = import_sklearn("pandas")
        values = example[name]
        if values.ndim != 1:
            raise PyTritonBadParameterError(f"sklearn_model: the example has several columns of the name {name!r}.")
        dtype, is_missing = values.dtype, values.isna()
        if dtype.kind == "m":
            raise PyTritonBadParameterError(
                f"sklearn_model: the column {name!r} has durations, which Triton does not have; convert it to numbers "
                "before fit, as .dt.total_seconds() does."
            )
        if dtype.kind != "O" or isinstance(dtype, pandas.CategoricalDtype):
            return cls(name, dtype, ())
        for value in values[~is_missing]:
            if not isinstance(value, str):
                raise PyTritonBadParameterError(
                    f"sklearn_model: the column {name!r} has the dtype {dtype} and holds {value!r}, which would arrive "
                    "as text; convert the column before fit, as .astype(float) or .astype(str) does."
                )
        return cls(name, dtype, tuple(values[is_missing][:1]))

    def first_of(self, example: Any) -> Array:
        """Returns the first value of the column as a client sends it, with a batch of one."""
        values = example[self.name]
        array = values.to_numpy()[:1, None]
        if self.missing and values.isna().iloc[0]:
            return _as_sent(np.array([[""]], object))
        if array.dtype.kind == "O" and self.dtype.kind in "biuf":  # a type of pandas, whose values may be missing
            array = values[:1].to_numpy(bool if self.dtype.kind == "b" else np.float64, na_value=0)[:, None]
        return _as_sent(array)

    def restored(self, values: Array) -> Any:
        """Returns a column of the example's type; values that are none of its categories are missing."""
        pandas = import_sklearn("pandas")
        if isinstance(self.dtype, pandas.CategoricalDtype):
            as_sent = self.dtype.categories.map(str) if values.dtype.kind == "O" else self.dtype.categories
            return pandas.Categorical.from_codes(as_sent.get_indexer(values), dtype=self.dtype)
        column = pandas.Series(values).astype(self.dtype)
        return column.mask(values == "", self.missing[0]) if self.missing else column


def samples_of(estimator: Any, example: Any, dtype: Any) -> tuple[dict[str, Array], Join]:
    """Finds the inputs of an estimator.

    Args:
        estimator: The estimator.
        example: Samples in the estimator's format, or None.
        dtype: Type of the features, or None.

    Returns:
        The first sample as clients send it, each input with a batch of one; and the function that joins inputs to
        samples.

    Raises:
        PyTritonBadParameterError: The inputs cannot be found.
    """
    if hasattr(example, "columns") and hasattr(example, "iloc"):
        columns = {str(name): Column.of(example, name) for name in example.columns}
        sent = {name: column.first_of(example) for name, column in columns.items()}
        return sent, functools.partial(_join_columns, columns)
    if example is None and _takes_text(estimator):
        example = ["text"]
    if example is None:
        example = np.zeros((1, _feature_count(estimator)), np.float64 if dtype is None else dtype)
    array = np.asarray(example, dtype)
    if array.ndim < 2 and any(map(_is_no_sample, array.ravel().tolist())):
        raise PyTritonBadParameterError(
            f"sklearn_model: the example is a {type(example).__name__} and not rows; pass rows of an array or of a "
            "data frame, as in example=X[:1] or example=pandas.DataFrame([row])."
        )
    if array.ndim == 1 and array.dtype.kind in BYTES_KINDS and len(array):
        return {"text": _as_sent(array[:1, None])}, _join_text
    if array.ndim != 2 or not len(array):
        raise PyTritonBadParameterError(
            f"sklearn_model: the example has shape {array.shape}; pass at least one sample, as an array of shape "
            "(samples, features), a list of strings or a data frame."
        )
    names = getattr(estimator, "feature_names_in_", None)
    if names is None or importlib.util.find_spec("pandas") is None:
        return {"features": _as_sent(array[:1])}, _join_features
    return {"features": _as_sent(array[:1])}, functools.partial(_join_named_features, list(names))


def import_sklearn(module: str) -> Any:
    """Imports a module of scikit-learn, or of pandas."""
    return import_library("sklearn_model", module, package=module.partition(".")[0], extra="sklearn")


def _is_no_sample(element: Any) -> bool:
    """Returns whether an element of an example is neither a text nor a row, but a feature or a row by names."""
    return isinstance(element, Mapping) or (isinstance(element, int | float) and element == element)  # NaN: no text


def _takes_text(estimator: Any) -> bool:
    """Returns whether an estimator starts with a vectorizer of text."""
    text = import_sklearn("sklearn.feature_extraction.text")
    first = getattr(estimator, "best_estimator_", estimator)
    while hasattr(first, "steps") or hasattr(first, "transformer_list"):
        first = (first.steps if hasattr(first, "steps") else first.transformer_list)[0][1]
    return isinstance(first, text.CountVectorizer | text.HashingVectorizer)


def _feature_count(estimator: Any) -> int:
    count = getattr(estimator, "n_features_in_", None)
    if count is None:
        raise PyTritonBadParameterError(
            f"sklearn_model: {type(estimator).__name__} does not have its number of features; pass a sample as "
            "example, as in example=X[:1]."
        )
    return int(count)


def _as_sent(array: Array) -> Array:
    """Converts an array to what a client sends: strings become bytes, and dates text like ``2026-01-31``."""
    if array.dtype.kind == "M":
        array = array.astype(str)
    if array.dtype.kind not in BYTES_KINDS:
        return array
    sent = np.empty(array.shape, object)
    sent.ravel()[:] = [str(element).encode() for element in array.ravel()]
    return sent


def _as_fitted(array: Array) -> Array:
    return decode(array) if array.dtype.kind == "O" else array


def _join_text(*, text: Array) -> Array:
    return decode(text).ravel()


def _join_features(*, features: Array) -> Array:
    return _as_fitted(features)


def _join_named_features(names: list[str], /, *, features: Array) -> Any:
    return import_sklearn("pandas").DataFrame(_as_fitted(features), columns=names)


def _join_columns(columns: dict[str, Column], /, **inputs: Array) -> Any:
    rows = {column.name: column.restored(_as_fitted(inputs[name]).ravel()) for name, column in columns.items()}
    return import_sklearn("pandas").DataFrame(rows)
