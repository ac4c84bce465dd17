"""Tensors on the command line: read from words, printed, and saved."""

from __future__ import annotations

import contextlib
import json
import zipfile
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from pytriton.cli.command import as_utf_8
from pytriton.client.exceptions import PyTritonClientValueError

Array = np.ndarray[Any, np.dtype[Any]]


def read_assignment(word: str, of_bytes: Container[str] = ()) -> tuple[str, Any]:
    """Reads a word such as ``x=[1,2]``, ``x=@array.npy`` or ``text=hello``.

    Args:
        word: The word. After the first ``=`` come ``@`` and the name of a ``.npy`` file, or JSON, or text. Text that
            begins with ``@`` or looks like JSON is written as JSON: ``'"@here"'``.
        of_bytes: Names of the inputs that accept text and bytes: for them, JSON without strings, such as ``123``, is
            text, and a file is read as bytes, except a ``.npy`` file with strings.

    Returns:
        The name, and an array, or a value of Python's own.

    Raises:
        PyTritonClientValueError: It has another form, or the file cannot be read.

    Examples:
        >>> read_assignment("x=[[1, 2]]")
        ('x', [[1, 2]])
        >>> read_assignment("text=hello")
        ('text', 'hello')
        >>> read_assignment("text=123", of_bytes=["text"])
        ('text', '123')
    """
    name, equals, text = word.partition("=")
    if not equals or not name:
        raise PyTritonClientValueError(f"{word!r} is not a tensor; write name=@array.npy, name='[[1,2]]' or name=text.")
    name = as_utf_8(name)
    if text.startswith("@"):
        path = Path(text[1:])
        return name, _bytes_of_file(name, path) if name in of_bytes else _array_of_file(name, path)
    text = as_utf_8(text)
    value = read_value(text)
    return name, text if name in of_bytes and not _is_text(value) else value


def read_value(text: str) -> Any:
    """Parses JSON; anything else is text."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _is_text(value: Any) -> bool:
    """Returns whether a value of JSON is a string, or a list of such values."""
    return isinstance(value, str) or (isinstance(value, list) and bool(value) and all(map(_is_text, value)))


def printable(array: Array) -> Any:
    """Converts an array for JSON: bytes become text, in which invalid UTF-8 is replaced, and NaN and infinity null."""
    if array.dtype.kind in "OS":
        elements = [element.decode(errors="replace") for element in array.ravel().tolist()]
        return np.array(elements, dtype=object).reshape(array.shape).tolist()
    if array.dtype.kind == "V":  # ml_dtypes' bfloat16
        array = array.astype(np.float32)
    if array.dtype.kind == "f" and not (finite := np.isfinite(array)).all():  # which JSON does not have
        array = array.astype(object)
        array[~finite] = None
    return array.tolist()


def check_suffix(path: Path) -> None:
    """Checks the extension of a path for `save`.

    Raises:
        PyTritonClientValueError: It is another one.
    """
    if path.suffix not in (".npz", ".npy"):
        raise PyTritonClientValueError(f"Outputs cannot be saved to {str(path)!r}; name a file .npz, or for one .npy.")


def save(path: Path, response: Mapping[str, Array]) -> None:
    """Writes arrays to a file.

    Args:
        path: The path of a ``.npz`` file, for any number of arrays, or a ``.npy`` file, for a single one.
        response: The arrays by name.

    Raises:
        PyTritonClientValueError: The file cannot be written, has another extension, or there are several arrays for a
            ``.npy``.
    """
    arrays = {name: _without_objects(name, array) for name, array in response.items()}
    try:
        if path.suffix == ".npz":
            _save_archive(path, arrays)
        elif path.suffix == ".npy" and len(arrays) == 1:
            (array,) = arrays.values()
            np.save(path, array)
        else:
            raise PyTritonClientValueError(
                f"{len(arrays)} outputs cannot be saved to {str(path)!r}; name a file .npz, or for one output .npy."
            )
    except OSError as error:
        raise PyTritonClientValueError(f"{str(path)!r} cannot be written: {error.strerror}.") from error


def _save_archive(path: Path, arrays: Mapping[str, Array]) -> None:
    """Saves arrays as `numpy.savez` does, but allows any name, even ``file``."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _bytes_of_file(name: str, path: Path) -> bytes | Array:
    if path.suffix == ".npy":
        with contextlib.suppress(PyTritonClientValueError):
            array = _array_of_file(name, path)
            if array.dtype.kind in "SU":
                return array
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(name, path, error) from error


def _unreadable(name: str, path: Path, error: OSError) -> PyTritonClientValueError:
    return PyTritonClientValueError(f"Tensor {name!r}: {str(path)!r} cannot be read: {error.strerror}.")


def _array_of_file(name: str, path: Path) -> Array:
    try:
        loaded = np.load(path, allow_pickle=False)
    except OSError as error:
        raise _unreadable(name, path, error) from error
    except (ValueError, EOFError) as error:
        raise PyTritonClientValueError(
            f"Tensor {name!r}: {str(path)!r} holds no array as numpy.save writes it: {error}."
        ) from error
    if not isinstance(loaded, np.ndarray):
        raise PyTritonClientValueError(f"Tensor {name!r}: {str(path)!r} holds several arrays; name a .npy file.")
    return loaded


def _without_objects(name: str, array: Array) -> Array:
    """Converts objects to bytes of equal length: arrays of objects would be saved as an unsafe pickle."""
    if array.dtype.kind != "O":
        return array
    if any(element.endswith(b"\0") for element in array.ravel().tolist()):
        raise PyTritonClientValueError(f"Output {name!r} has bytes that end with zeros, which NumPy's files drop.")
    return array.astype(np.bytes_)
