"""The server's models: the folder of this one, and loading and unloading of others."""

from __future__ import annotations

from collections.abc import Mapping

from pytriton.exceptions import PyTritonError
from pytriton.python_backend.errors import TritonModelException
from pytriton.python_backend.server import server_client
from pytriton.python_backend.texts import text_of

_FILE = "file:"
_NAME = "a model's name"
_folder = ""


def load_model(model_name: str, config: str = "", files: Mapping[str, bytes] | None = None) -> None:
    """Loads or reloads a model; the server must run with ``--model-control-mode=explicit``.

    Args:
        model_name: Its name.
        config: Its configuration as JSON, instead of the one in the repository.
        files: The contents of its folder, by ``"file:<version>/<name>"``, instead of those in the repository.

    Raises:
        TritonModelException: The server could not do so.
    """
    contents = {path[len(_FILE) :] if path.startswith(_FILE) else path: data for path, data in (files or {}).items()}
    try:
        server_client().load_model(text_of(model_name, _NAME), text_of(config, "a configuration"), contents or None)
    except PyTritonError as error:
        raise TritonModelException(str(error)) from error


def unload_model(model_name: str, unload_dependents: bool = False) -> None:
    """Unloads a model.

    Args:
        model_name: Its name.
        unload_dependents: Also unload the models that an ensemble is composed of.

    Raises:
        TritonModelException: The server could not do so.
    """
    try:
        server_client().unload_model(text_of(model_name, _NAME), unload_dependents)
    except PyTritonError as error:
        raise TritonModelException(str(error)) from error


def is_model_ready(model_name: str, model_version: str = "") -> bool:
    """Returns whether a model is ready.

    Args:
        model_name: Its name.
        model_version: Its version; empty for the one that the server chooses.

    Raises:
        TritonModelException: The server reported an error.
    """
    try:
        return server_client().is_model_ready(text_of(model_name, _NAME), int(model_version or -1))
    except (PyTritonError, ValueError) as error:
        raise TritonModelException(str(error)) from error


def get_model_dir() -> str:
    """Returns the folder of the served version: ``<repository>/<model>/<version>``."""
    return _folder


def set_model_dir(folder: str) -> None:
    """Sets what `get_model_dir` returns."""
    global _folder
    _folder = folder
