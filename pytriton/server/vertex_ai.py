"""Vertex AI's requirements of a server: https://cloud.google.com/vertex-ai/docs/predictions/custom-container-requirements."""

from __future__ import annotations

import dataclasses
import os

from pytriton.constants import DEFAULT_VERTEX_AI_PORT, TRITON_LOCAL_IP
from pytriton.exceptions import PyTritonBadParameterError
from pytriton.server.config import TritonConfig

_MODE_VARIABLE = "AIP_MODE"
_PORT_VARIABLE = "AIP_HTTP_PORT"


def is_vertex_ai(config: TritonConfig) -> bool:
    """Returns whether to serve Vertex AI's API: because of the settings, or because Vertex AI runs the container."""
    return _in_container() if config.allow_vertex_ai is None else config.allow_vertex_ai


def with_vertex_ai(config: TritonConfig) -> TritonConfig:
    """Fills in what Vertex AI's environment variables decide.

    In its containers, the server disables HTTP and gRPC by default. HTTP then stays enabled for this host only, so that
    models can be loaded. Without Vertex AI's API, both are enabled as usual.

    Args:
        config: The server's settings.

    Returns:
        The settings, with the switches and the port for Vertex AI's API filled in.

    Raises:
        PyTritonBadParameterError: ``AIP_HTTP_PORT`` is not a number.
    """
    serves_it = is_vertex_ai(config)
    if serves_it:
        port = os.environ.get(_PORT_VARIABLE) or str(DEFAULT_VERTEX_AI_PORT)
        if not port.isdecimal():
            raise PyTritonBadParameterError(f"Environment variable {_PORT_VARIABLE} is {port!r}; use a port.")
        chosen = int(port) if config.vertex_ai_port is None else config.vertex_ai_port
        config = dataclasses.replace(config, allow_vertex_ai=True, vertex_ai_port=chosen)
    if not _in_container():
        return config
    if serves_it and config.allow_http is None and not config.allow_grpc:
        config = dataclasses.replace(
            config, allow_http=True, http_address=config.http_address or TRITON_LOCAL_IP, allow_grpc=False
        )
    return dataclasses.replace(
        config,
        allow_http=not serves_it if config.allow_http is None else config.allow_http,
        allow_grpc=not serves_it if config.allow_grpc is None else config.allow_grpc,
    )


def _in_container() -> bool:
    return os.environ.get(_MODE_VARIABLE) == "PREDICTION"
