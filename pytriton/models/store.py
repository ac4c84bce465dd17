"""Stores, which transfer a model's configuration and files to the server."""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import logging
import os
import pathlib
import shutil
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from pytriton.exceptions import PyTritonRuntimeError
from pytriton.model_config.model_spec import ModelSpec
from pytriton.model_config.pbtxt import model_config_pbtxt
from pytriton.model_config.triton_config import triton_model_config
from pytriton.server.control import ServerControl

LOGGER = logging.getLogger(__name__)

_MARK = "pytriton_files"  # a parameter of the configuration: the hash of the model's files


class StoreError(PyTritonRuntimeError):
    """The files of a model cannot be written; the server was not contacted."""


class ModelStore(Protocol):
    """Transfers models to the server."""

    def put(self, spec: ModelSpec, versions: Sequence[int], files: Mapping[str, bytes]) -> None:
        """Stores a model's configuration and files, and loads or reloads the model.

        Args:
            spec: The specification that all versions of the model share.
            versions: The versions to serve.
            files: The files' contents by their path in the model's folder.

        Raises:
            StoreError: The files cannot be written.
            PyTritonRuntimeError: The server cannot load the model.
        """

    def unload(self, name: str, timeout_s: float | None = None) -> None:
        """Starts to unload a model, unless another process has replaced it; see `ServerControl.unload`.

        Raises:
            PyTritonRuntimeError: The server cannot, or not in time.
        """

    def remove(self, name: str) -> None:
        """Unloads a model, and removes its files; returns when it accepts no more requests.

        Raises:
            PyTritonRuntimeError: The server cannot unload it.
        """


class FolderStore:
    """A model repository on disk; a server that is not started yet loads all of it when it starts."""

    def __init__(
        self,
        repository: pathlib.Path,
        control: ServerControl,
        is_started: Callable[[], bool],
        *,
        builds_batches: bool = False,
    ) -> None:
        """Writes to ``repository``, for a server in which the backend can build batches or not."""
        self._repository = repository
        self._control = control
        self._is_started = is_started
        self._builds_batches = builds_batches

    def put(self, spec: ModelSpec, versions: Sequence[int], files: Mapping[str, bytes]) -> None:
        """See `ModelStore`."""
        folder = self._repository / spec.name
        config = model_config_pbtxt(spec, versions=versions, builds_batches=self._builds_batches)
        contents = {**files, "config.pbtxt": config.encode()}
        is_new = not folder.exists()
        try:
            for name, content in contents.items():
                _write(folder / name, content)
        except OSError as error:
            if is_new:  # an incomplete model only wastes space
                shutil.rmtree(folder, ignore_errors=True)
            also = "free some space, or " if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
            raise StoreError(
                f"The files of model {spec.name!r} cannot be written to {str(folder)!r} ({error.strerror}); {also}name "
                "another folder by workspace= or by the environment variable PYTRITON_HOME."
            ) from error
        if self._is_started():
            self._control.load(spec.name)

    def unload(self, name: str, timeout_s: float | None = None) -> None:
        """See `ModelStore`."""
        self._control.unload(name, timeout_s)

    def remove(self, name: str) -> None:
        """See `ModelStore`."""
        if self._is_started():
            self._control.unload(name)
        shutil.rmtree(self._repository / name, ignore_errors=True)


def _write(path: pathlib.Path, content: bytes) -> None:
    """Writes a file, unless it has that content already: a server can be restarted while the disk is full."""
    path.parent.mkdir(parents=True, exist_ok=True)
    # A link would let whoever made it choose what is overwritten.
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600), "r+b") as file:
        if file.read(len(content) + 1) != content:
            file.seek(0)
            file.truncate()
            file.write(content)


class UploadStore:
    """Uploads models through the server's repository API, for a server with another process's repository."""

    def __init__(self, control: ServerControl) -> None:
        """Creates a store that uploads through ``control``."""
        self._control = control
        self._marks: dict[str, str] = {}  # of the models that it has loaded

    def put(self, spec: ModelSpec, versions: Sequence[int], files: Mapping[str, bytes]) -> None:
        """See `ModelStore`."""
        # Workaround for Triton (unchanged-models): a model whose configuration is the same counts as unchanged.
        mark = hashlib.sha256(b"".join(files.values())).hexdigest()
        config = json.dumps(triton_model_config(spec, {_MARK: mark}, versions))
        if spec.name not in self._marks and self._control.is_loaded(spec.name):
            LOGGER.warning("The server already has a model %r, of another process: it is replaced.", spec.name)
        self._control.load(spec.name, config, files)
        self._marks[spec.name] = mark
        if not self._control.is_loaded(spec.name):
            # The server has just unloaded the model of that name of a killed process, and this one with it.
            self._control.load(spec.name, config, files)

    def unload(self, name: str, timeout_s: float | None = None) -> None:
        """See `ModelStore`."""
        if self._is_replaced(name):
            LOGGER.warning("Another process has replaced model %r: the server keeps it.", name)
        else:
            self._control.unload(name, timeout_s)

    def remove(self, name: str) -> None:
        """See `ModelStore`."""
        self.unload(name)

    def _is_replaced(self, name: str) -> bool:
        try:
            parameters = self._control.model_config(name).get("parameters", {})
        except (PyTritonRuntimeError, OSError, http.client.HTTPException):
            return False  # it is not served, or the server does not respond
        mark = parameters.get(_MARK, {}).get("string_value")
        return bool(mark != self._marks.get(name))
