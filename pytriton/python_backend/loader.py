"""Loads ``model.py``: imports it, completes its configuration, and creates its inference callable."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import inspect
import json
import os
import pathlib
import sys
from types import ModuleType
from typing import Any

from pytriton.proxy.wire.control import CommandMessage
from pytriton.proxy.worker.loaded_model import LoadedModel, reference_to
from pytriton.python_backend import c_python_backend_utils, models, triton_python_backend_utils
from pytriton.python_backend.config import ModelConfig
from pytriton.python_backend.declaration import signature_of
from pytriton.python_backend.errors import TritonModelException
from pytriton.python_backend.execution import Concurrent, ServedModel, callable_of, select_device
from pytriton.python_backend.readiness import ReadinessCheck

_CLASS = "TritonPythonModel"
_FILE = "model.py"
_IMPORTABLE = str(pathlib.Path(__file__).with_name("importable"))
"""A folder with the modules that worker processes have, for the processes that a model starts."""

_imported: dict[pathlib.Path, ModuleType] = {}


def complete(command: CommandMessage) -> str:
    """Completes a model's configuration.

    Args:
        command: A COMPLETE_CONFIG command with the incomplete configuration and the model's folder.

    Returns:
        The complete configuration as JSON; unchanged if the model has no ``auto_complete_config``.

    Raises:
        TritonModelException: There is no such model, or it did not return a configuration.
        Exception: Whatever the model raises.
    """
    command = _with_absolute_paths(command)
    model_class = _class_of(command)
    if not hasattr(model_class, "auto_complete_config"):
        return command.config
    completed = model_class.auto_complete_config(ModelConfig(command.config))
    if not isinstance(completed, ModelConfig):
        raise TritonModelException(
            f"auto_complete_config of model {command.model!r} returned {type(completed).__name__}: return the "
            "ModelConfig that it was given"
        )
    return json.dumps(completed.as_dict())


def load(command: CommandMessage) -> LoadedModel:
    """Initializes a model, and creates its inference callable.

    Args:
        command: A LOAD command with the configuration and the model's folder.

    Raises:
        TritonModelException: There is no such model, or it lacks ``execute``.
        Exception: Whatever the model raises.
    """
    command = _with_absolute_paths(command)
    model_class = _class_of(command)
    signature = signature_of(command.config, command.version)
    device = int(command.device_id or 0) if command.instance_kind == "GPU" else None
    if device is not None:
        select_device(device)
    execute = getattr(model_class, "execute", None)  # an instance may have its own
    is_coroutine = execute is not None and inspect.iscoroutinefunction(inspect.unwrap(execute))
    loop = _set_event_loop() if is_coroutine else None
    instance = model_class()
    if hasattr(instance, "initialize"):
        instance.initialize(
            {
                "model_config": command.config,
                "model_instance_kind": command.instance_kind,
                "model_instance_device_id": command.device_id,
                "model_repository": command.repository,
                "model_version": str(command.version),
                "model_name": command.model,
                "model_instance_name": command.instance,
            }
        )

    if not hasattr(instance, "execute"):
        raise TritonModelException(f"{_CLASS} in {_path_of(command)} has no method 'execute': write one")

    def finalize() -> None:
        if hasattr(instance, "finalize"):
            instance.finalize()

    served = ServedModel(instance, signature, device, command.instance)
    infer_func = callable_of(served, may_use_senders=_mentions_senders(command))
    is_ready = _readiness_check(instance, command.model)
    if not isinstance(infer_func, Concurrent):
        loop = None  # a function that wraps the coroutine may run it there itself
    elif loop is None:
        loop = _set_event_loop()
    return LoadedModel(infer_func, signature, finalize, is_ready, loop, reference_to(instance))


def _readiness_check(instance: Any, model: str) -> ReadinessCheck | None:
    try:
        is_ready = instance.is_ready
    except Exception:  # there is none, or it is a property of another meaning
        return None
    return ReadinessCheck(is_ready, model)


def _mentions_senders(command: CommandMessage) -> bool:
    """Returns whether a model, or a module that it has imported from its folder, has the word ``get_response_sender``.

    Whether a model uses senders shows only in a call, and how it is called must be known before.
    """
    path = _path_of(command)
    files = {path} | {
        pathlib.Path(file)
        for module in list(sys.modules.values())
        if isinstance(file := getattr(module, "__file__", None), str) and file.startswith(f"{path.parent}{os.sep}")
    }
    return any(b"get_response_sender" in file.read_bytes() for file in files if file.is_file())


def _with_absolute_paths(command: CommandMessage) -> CommandMessage:
    """Returns the command with paths that stay valid if the model calls ``os.chdir``."""
    return dataclasses.replace(
        command, repository=_absolute(command.repository), backend=command.backend and _absolute(command.backend)
    )


@functools.cache
def _absolute(path: str) -> str:
    return str(pathlib.Path(path).absolute())  # relative to the folder in which the process first got the path


def _set_event_loop() -> Any:
    """Creates the model's event loop, which ``asyncio.get_event_loop()`` returns from now on."""
    import asyncio

    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    return loop


def _version_folder(command: CommandMessage) -> pathlib.Path:
    return pathlib.Path(command.repository) / str(command.version)


def _path_of(command: CommandMessage) -> pathlib.Path:
    if command.backend:
        return pathlib.Path(command.backend) / _FILE
    name = json.loads(command.config).get("default_model_filename") or _FILE
    return _version_folder(command) / name


def _class_of(command: CommandMessage) -> Any:
    path = _path_of(command)
    module = _imported.get(path)
    if module is None:
        module = _imported[path] = _import(path, command)
    model_class = getattr(module, _CLASS, None)
    if model_class is None:
        raise TritonModelException(f"{path} has no class {_CLASS!r}: write one")
    return model_class


def _import(path: pathlib.Path, command: CommandMessage) -> ModuleType:
    if not path.is_file():
        raise TritonModelException(f"model {command.model!r} has no file {path}")
    sys.modules["triton_python_backend_utils"] = triton_python_backend_utils
    sys.modules["c_python_backend_utils"] = c_python_backend_utils
    models.set_model_dir(str(_version_folder(command)))
    sys.path.insert(_end_of_standard_library(), str(path.parent))
    sys.path.append(command.repository)
    if _IMPORTABLE not in sys.path:
        sys.path.append(_IMPORTABLE)
    # To a server that watches the repository, a folder of bytecode would look like a change of the model.
    sys.dont_write_bytecode, write = True, sys.dont_write_bytecode
    try:
        # A backend's folder often has the name of the library that it wraps, and a package of that name would hide it.
        prefix = "" if command.backend else f"{_import_package(_version_folder(command))}."
        return _execute(prefix + path.stem, path)
    finally:
        sys.dont_write_bytecode = write


def _end_of_standard_library() -> int:
    """Returns where in the import path installed packages begin: a model's `utils` precedes one that is installed."""
    folder = str(pathlib.Path(os.__file__).parent)
    places = [index for index, each in enumerate(sys.path) if each in (folder, f"{folder}/lib-dynload")]
    return max(places, default=-1) + 1


def _import_package(folder: pathlib.Path) -> str:
    """Makes a version's folder a package, named after the version, for the model's relative imports."""
    init = folder / "__init__.py"
    if init.is_file():
        _execute(folder.name, init, [str(folder)])
    else:
        package = ModuleType(folder.name)
        package.__path__ = [str(folder)]
        sys.modules[folder.name] = package
    return folder.name


def _execute(name: str, path: pathlib.Path, submodule_folders: list[str] | None = None) -> ModuleType:
    specification = importlib.util.spec_from_file_location(name, path, submodule_search_locations=submodule_folders)
    if specification is None or specification.loader is None:
        raise TritonModelException(f"{path} is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(specification)
    try:
        specification.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
