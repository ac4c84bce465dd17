"""Queries a server's executable for its flags, which differ from version to version."""

from __future__ import annotations

import functools
import logging
import os
import re
import subprocess
from collections.abc import Collection, Sequence

from pytriton.exceptions import PyTritonBadParameterError, PyTritonRuntimeError
from pytriton.server.config import TritonConfig
from pytriton.server.files import ServerFiles

LOGGER = logging.getLogger(__name__)

_TIMEOUT_S = 20.0
_FLAG = re.compile(r"^\s+--([a-z][a-z0-9-]+)", re.MULTILINE)
_CLIENT_SHM = "allow-client-shm"
_RESTRICTIONS = ("http-restricted-api", "grpc-restricted-protocol")
NEWER_FIELDS = (
    "allow_client_shm",
    "http_max_input_size",
    "grpc_infer_thread_count",
    "grpc_max_response_pool_size",
)
"""Fields of `TritonConfig` whose flags the bundled server does not have."""


def flags_of(files: ServerFiles) -> frozenset[str]:
    """Returns the names of a server's flags, without dashes; runs each executable once.

    Empty if the server does not list them.
    """
    status = files.executable.stat()
    return _ask(str(files.executable), str(files.libraries), status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=16)
def _ask(executable: str, libraries: str, _date_ns: int, _size: int) -> frozenset[str]:
    path = ":".join(filter(None, [libraries, os.environ.get("LD_LIBRARY_PATH", "")]))
    try:
        done = subprocess.run(
            [executable, "--help"],
            env={**os.environ, "LD_LIBRARY_PATH": path},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,  # it exits with status 1 even on success
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        LOGGER.warning("%s --help cannot be run: %s", executable, error)
        return frozenset()
    return frozenset(_FLAG.findall(done.stdout))


def fitting_flags(flags: Sequence[str], known: Collection[str], config: TritonConfig, server: str) -> list[str]:
    """Leaves out the flags that a server does not have.

    Args:
        flags: Arguments of the server, ``--name=value``.
        known: The names of the flags that it has; if empty, they are unknown, and all are assumed to exist.
        config: The user's settings.
        server: The server's folder, for messages.

    Returns:
        The flags that the server has. Those of this package that it lacks are left out with a warning.

    Raises:
        PyTritonBadParameterError: The server lacks the flag of a setting.
        PyTritonRuntimeError: It lacks a flag that restricts its endpoints.
    """
    fitting = []
    for flag in flags:
        name = flag.removeprefix("--").partition("=")[0]
        if name in known or not known:
            fitting.append(flag)
            continue
        field = name.replace("-", "_")
        if name in _RESTRICTIONS:
            raise PyTritonRuntimeError(
                f"The server in {server} has no flag --{name}, so its endpoints cannot be restricted; use a newer "
                "server, or TritonSecurityConfig(restricted_endpoints=[]) to leave them open."
            )
        if getattr(config, field, None) is None:
            LOGGER.warning("The server in %s has no flag --%s, which is left out.", server, name)
        elif name != _CLIENT_SHM:
            raise PyTritonBadParameterError(
                f"TritonConfig.{field} is {getattr(config, field)!r}, but the server in {server} has no flag --{name}; "
                "leave it out, or use a newer server."
            )
        elif not config.allow_client_shm:
            raise PyTritonBadParameterError(
                f"TritonConfig.allow_client_shm is False, but the server in {server} is older than 2.69 and always "
                "allows shared memory of clients; restrict it by the token (TritonSecurityConfig.restricted_endpoints "
                "has 'shared-memory' by default)."
            )
    return fitting
