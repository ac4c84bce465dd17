"""The command line and the environment variables of the server."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import shutil
from collections.abc import Sequence

import zmq

import pytriton.python_backend
from pytriton import json_logs
from pytriton.proxy.telemetry.tracer import telemetry_environment
from pytriton.server import workarounds
from pytriton.server.capabilities import NEWER_FIELDS, fitting_flags, flags_of
from pytriton.server.config import TritonConfig, overlaid, server_flags
from pytriton.server.files import ServerFiles
from pytriton.server.memory import default_memory_limit
from pytriton.server.security import AccessControl
from pytriton.server.version import ServerVersion
from pytriton.utils.interpreter import own_interpreter

# Triton.stop waits for requests in flight before it ends the server, which then takes up to a second. It must not wait
# again for clients that keep idle connections open.
_SERVER_EXIT_TIMEOUT_S = 0
# Makes the server write a message of several lines as one, as it does by default; models print to the same output.
_ESCAPES = "TRITON_SERVER_ESCAPE_LOG_MESSAGES"
# Flags with the values of headers that open endpoints, and with the password of a cache.
_SECRET = re.compile("--(http-restricted-api|grpc-restricted-protocol)=|--cache-config=.*password")


def command_line(
    files: ServerFiles,
    config: TritonConfig,
    access: AccessControl,
    workspace: pathlib.Path,
    bound: Sequence[str] = (),
    *,
    tolerant: bool = False,
) -> list[str]:
    """Returns the server's command line: its program, and its flags.

    Args:
        files: Where the server's files are.
        config: Its settings.
        access: The access control of its endpoints.
        workspace: The folder with the model repository.
        bound: Models that the server loads before it is ready.
        tolerant: Start even if one of them cannot be loaded.

    Raises:
        PyTritonBadParameterError: The server lacks the flag of a setting.
        PyTritonRuntimeError: It lacks a flag that restricts its endpoints.
    """
    has_gpu = pathlib.Path("/dev/nvidiactl").exists() or pathlib.Path("/dev/dxg").exists()
    defaults = TritonConfig(
        exit_timeout_secs=_SERVER_EXIT_TIMEOUT_S,
        allow_gpu_metrics=None if has_gpu else False,
        # The gate knows when the models are loaded. A strict server is not ready while a model is bound later, nor
        # after one that cannot be loaded.
        strict_readiness=False,
    )
    settings = overlaid(defaults, dataclasses.replace(config, exit_on_error=False) if tolerant else config)
    flags = [
        f"--model-repository={workspace / 'models'}",
        *server_flags(settings),
        "--model-control-mode=explicit",
        f"--backend-directory={files.backends(workspace / 'backends', config.backend_directory)}",
        f"--repoagent-directory={files.repository_agents}",
    ]
    if config.cache_directory is None:
        flags.append(f"--cache-directory={files.caches}")
    if not has_gpu:
        flags.append("--pinned-memory-pool-byte-size=0")
    flags += [*access.flags(), *(f"--load-model={name}" for name in bound)]
    return [str(files.executable), *_fitting(flags, files, config)]


def without_secrets(command: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Moves the values of flags that may contain secrets to environment variables, from which the guard reads them.

    ``ps`` shows command lines to every user of the machine, but not environments. Counterpart of ``guard/arguments.h``.

    Args:
        command: A command line.

    Returns:
        The command line to show, and the variables.
    """
    shown: list[str] = []
    secrets: dict[str, str] = {}
    for argument in command:
        if _SECRET.match(argument):
            name, _, value = argument.partition("=")
            variable = f"PYTRITON_SECRET_{len(secrets)}"
            secrets[variable] = value
            argument = f"{name}=@{variable}"
        shown.append(argument)
    return shown, secrets


def environment_variables(
    files: ServerFiles, config: TritonConfig, workspace: pathlib.Path, version: ServerVersion | None
) -> dict[str, str]:
    """Returns the server's environment: this process's, and what the proxy and the backend "python" need.

    Args:
        files: Where the server's files are.
        config: Its settings.
        workspace: The folder in which the backend "python" keeps its files; those of an earlier server are removed.
        version: The server's version, if it is known.
    """
    variables = {**telemetry_environment(), **json_logs.environment(), **os.environ}
    own_libraries = variables.get("LD_LIBRARY_PATH", "")
    library_path = [str(files.libraries), own_libraries]
    libzmq = _libzmq_path()
    if libzmq is not None:
        variables["PYTRITON_LIBZMQ"] = libzmq
        folder_of_libzmq = pathlib.Path(libzmq).parent
        if folder_of_libzmq.name == "pyzmq.libs":  # where it does not look for its own libraries before pyzmq 26.2
            library_path.append(str(folder_of_libzmq))
    variables["LD_LIBRARY_PATH"] = ":".join(filter(None, library_path))
    limit = default_memory_limit() if config.memory_limit is None else config.memory_limit
    variables["PYTRITON_MEMORY_LIMIT"] = str(limit)
    if config.log_file is None:
        variables[_ESCAPES] = "1"
    variables[workarounds.VARIABLE] = workarounds.needed(version)
    # The interpreter and settings with which the backend "python" starts worker processes.
    folder = workspace / "python"
    shutil.rmtree(folder, ignore_errors=True)  # of a server that was killed
    folder.mkdir(mode=0o700)
    variables["PYTRITON_BACKEND_FOLDER"] = str(folder)
    variables["PYTRITON_HOST"] = str(pathlib.Path(pytriton.python_backend.__file__).with_name("bootstrap.py"))
    variables["PYTRITON_LIBRARY_PATH"] = own_libraries
    interpreter = own_interpreter()
    if interpreter is not None:
        variables["PYTRITON_PYTHON"] = interpreter
    return variables


def _fitting(flags: list[str], files: ServerFiles, config: TritonConfig) -> list[str]:
    """Leaves out the flags that the server does not have; the bundled one has all but those of newer servers."""
    if files.is_bundled and all(getattr(config, name) is None for name in NEWER_FIELDS):
        return flags
    return fitting_flags(flags, flags_of(files), config, str(files.root))


def _libzmq_path() -> str | None:
    """Returns the path of the ZeroMQ library that pyzmq has loaded; the backend opens the same."""
    zmq.zmq_version()
    for line in os.fsdecode(pathlib.Path("/proc/self/maps").read_bytes()).splitlines():
        path = line.split(maxsplit=5)[-1]
        if "libzmq" in path.rsplit("/", 1)[-1]:
            return path
    return None
