"""Examines an installation: versions, the machine, ports, and requests to a model over HTTP and gRPC."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import platform
import re
import sys
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from pytriton import __version__
from pytriton.client import ModelClient
from pytriton.constants import DEFAULT_GRPC_PORT, DEFAULT_HTTP_PORT, DEFAULT_METRICS_PORT
from pytriton.decorators import batch
from pytriton.exceptions import PyTritonError
from pytriton.model_config import Tensor
from pytriton.proxy.transport.cpu_limit import cpu_limit
from pytriton.server.capabilities import flags_of
from pytriton.server.config import TritonConfig
from pytriton.server.files import ServerFiles, find_server
from pytriton.server.memory import default_memory_limit
from pytriton.server.ports import is_free
from pytriton.server.running_servers import running_servers
from pytriton.server.version import version_of
from pytriton.server.vulnerabilities import summary
from pytriton.server.workarounds import Workaround
from pytriton.triton import Triton

_MODEL = "Check"
_HOST = "127.0.0.1"
_TIMEOUT_S = 30.0
_VARIABLE = re.compile(r"(PY)?TRITON")


class Finding(NamedTuple):
    """The result of examining one subject.

    Attributes:
        subject: The subject, in a word or two.
        text: What was found.
        passed: Whether it is as it should be.
    """

    subject: str
    text: str
    passed: bool = True


def examine(
    server_path: str | os.PathLike[str] | None = None,
    *,
    log_file: pathlib.Path | None = None,
    send_requests: bool = True,
) -> Iterator[Finding]:
    """Examines the installation, the machine and the server.

    Args:
        server_path: The folder of a server of your own, in place of the bundled one.
        log_file: File for the log of the server that is started.
        send_requests: Whether to start the server, on free ports, and to send requests to a model.

    Yields:
        One finding for each subject, as soon as it is known.

    Raises:
        PyTritonBadParameterError: There is no server in the folder.

    Examples:
        >>> [finding.subject for finding in examine(send_requests=False) if not finding.passed]
        []
    """
    files = find_server(server_path)
    yield from _installation()
    yield from _server(files)
    yield Finding("Ports", _ports())
    if send_requests:
        yield from _requests(server_path, log_file)


def _installation() -> Iterator[Finding]:
    yield Finding("PyTriton", __version__)
    yield Finding("Python", f"{platform.python_version()}, {sys.executable}")
    yield Finding("System", platform.platform())
    yield Finding("Machine", f"{_cpus()}, {default_memory_limit() / 2**30:.1f} GiB of memory for the server")
    yield Finding("Packages", ", ".join(_requirements()))
    # Their values may be secrets.
    yield Finding("Variables", ", ".join(sorted(filter(_VARIABLE.match, os.environ))) or "none of PyTriton's")


def _cpus() -> str:
    count, limit = len(os.sched_getaffinity(0)), cpu_limit()
    return f"{count} CPUs" + ("" if limit is None or limit >= count else f" (limited to {limit:g})")


def _requirements() -> Iterator[str]:
    """Returns the packages that this one requires, each with its version."""
    for requirement in importlib.metadata.requires("pytriton") or ():
        if "extra ==" not in requirement:
            name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
            yield f"{name} {importlib.metadata.version(name)}"


def _server(files: ServerFiles) -> Iterator[Finding]:
    version = version_of(files.root)
    kind = "bundled" if files.is_bundled else "not bundled"
    yield Finding("Server", f"Triton {version or 'of an unknown version'} ({kind}), {files.root}")
    if version is not None:
        yield Finding("Vulnerabilities", summary(version) or "none that are known")
    yield Finding("Workarounds", ", ".join(each.key for each in Workaround if each.is_needed(version)) or "none")
    yield Finding("Flags", str(len(flags_of(files))))


def _ports() -> str:
    """Describes Triton's usual ports; one that is in use is not an error: another server may run."""
    ports = [DEFAULT_HTTP_PORT, DEFAULT_GRPC_PORT, DEFAULT_METRICS_PORT]
    described = [f"{port} is {'free' if is_free(port) else 'taken'}" for port in ports]
    own = [url for server in running_servers() for url in server.urls[:1]]
    return ", ".join(described) + (f"; you run a server at {' and '.join(own)}" if own else "")


@batch
def _double(x: Any) -> dict[str, Any]:
    return {"y": x * 2}


def _requests(server_path: str | os.PathLike[str] | None, log_file: pathlib.Path | None) -> Iterator[Finding]:
    """Starts a server and sends it requests."""
    config = TritonConfig(
        http_port=0, grpc_port=0, http_address=_HOST, grpc_address=_HOST, allow_metrics=False, log_file=log_file
    )
    start = time.perf_counter()
    try:
        with Triton(config=config, server_path=server_path) as triton:
            tensors = {name: [Tensor(name=name, shape=(-1,), dtype=np.float32)] for name in "xy"}
            triton.bind(_MODEL, _double, inputs=tensors["x"], outputs=tensors["y"])
            yield Finding("Start", f"the server serves a model after {time.perf_counter() - start:.1f} s")
            yield _request("HTTP", f"http://{_HOST}:{triton.config.http_port}")
            yield _request("gRPC", f"grpc://{_HOST}:{triton.config.grpc_port}")
    except PyTritonError as error:
        yield Finding("Start", f"failed: {error.message}", passed=False)


def _request(subject: str, url: str) -> Finding:
    sent = np.array([1, 2, 3], np.float32)
    try:
        with ModelClient(url, _MODEL, init_timeout_s=_TIMEOUT_S, inference_timeout_s=_TIMEOUT_S) as client:
            client.infer_sample(sent)  # the first one opens the connection
            start = time.perf_counter()
            received = client.infer_sample(sent)["y"]
            duration = time.perf_counter() - start
    except PyTritonError as error:
        return Finding(subject, f"failed: {error.message}", passed=False)
    if received.tolist() != [2, 4, 6]:
        return Finding(subject, f"failed: the response to [1, 2, 3] is {received.tolist()}, not [2, 4, 6]", False)
    return Finding(subject, f"a request takes {duration * 1000:.1f} ms")
