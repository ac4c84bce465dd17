"""Access control of the server's endpoints: which require a token, and the headers that carry it."""

from __future__ import annotations

import dataclasses
import secrets
from collections.abc import Iterable, Mapping

from pytriton.constants import TRITON_ACCESS_HEADER
from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.server.config import TritonConfig

VALID_TRITON_ENDPOINTS = {
    "health",
    "metadata",
    "inference",
    "shared-memory",
    "model-config",
    "model-repository",
    "statistics",
    "trace",
    "logging",
}
"""The endpoints that Triton can restrict, over HTTP and gRPC alike."""

DEFAULT_PROTECTED_ENDPOINTS = ["shared-memory", "model-repository", "statistics", "trace", "logging"]
"""The endpoints that require the token unless `TritonSecurityConfig` names others."""

_TOKEN_BYTES = 32
_FLAGS = {"http_restricted_api": "--http-restricted-api", "grpc_restricted_protocol": "--grpc-restricted-protocol"}


@dataclasses.dataclass
class TritonSecurityConfig:
    """The server's endpoints that require a token, and the token.

    Attributes:
        access_token: The token: printable ASCII without spaces. A random one by default, if an endpoint requires it.
        restricted_endpoints: The endpoints that require it, out of `VALID_TRITON_ENDPOINTS`;
            `DEFAULT_PROTECTED_ENDPOINTS` by default. With an empty list, none does.

    Raises:
        PyTritonValidationError: There is no such endpoint, or the token cannot be sent in a header.

    Examples:
        >>> config = TritonSecurityConfig(access_token="my-secret", restricted_endpoints=["model-repository"])
    """

    access_token: str | None = None
    restricted_endpoints: list[str] | None = None

    def __post_init__(self) -> None:
        if self.restricted_endpoints is None:
            self.restricted_endpoints = list(DEFAULT_PROTECTED_ENDPOINTS)
        if isinstance(self.restricted_endpoints, str) or not isinstance(self.restricted_endpoints, Iterable):
            raise PyTritonValidationError(
                f"TritonSecurityConfig.restricted_endpoints is {self.restricted_endpoints!r}; use a list, such as "
                "['model-repository']."
            )
        unknown = [each for each in self.restricted_endpoints if each not in VALID_TRITON_ENDPOINTS]
        if unknown:
            raise PyTritonValidationError(
                f"TritonSecurityConfig.restricted_endpoints has {', '.join(map(repr, unknown))}, which the server does "
                f"not have; use {', '.join(sorted(VALID_TRITON_ENDPOINTS))}."
            )
        if self.access_token is None and self.restricted_endpoints:
            self.access_token = secrets.token_urlsafe(_TOKEN_BYTES)
        if self.access_token is not None and not _is_token(self.access_token):
            raise PyTritonValidationError(
                "TritonSecurityConfig.access_token cannot be sent in a header; use printable ASCII without spaces."
            )


def _is_token(token: object) -> bool:
    return isinstance(token, str) and token.isascii() and token.isprintable() and bool(token) and " " not in token


class AccessControl:
    """A server's restrictions: those by its token, and those of its other settings.

    Endpoints that ``TritonConfig.http_restricted_api`` or ``grpc_restricted_protocol`` restricts keep the header named
    there.

    Args:
        security: The endpoints that require the token.
        config: The server's other settings.

    Raises:
        PyTritonBadParameterError: One of these settings does not have the form that Triton requires.
    """

    def __init__(self, security: TritonSecurityConfig, config: TritonConfig) -> None:
        """Generates a token if none is given."""
        self.token = security.access_token or secrets.token_urlsafe(_TOKEN_BYTES)
        endpoints = list(dict.fromkeys(security.restricted_endpoints or ()))
        self._http = _Restriction.parsed(config.http_restricted_api, "http_restricted_api")
        self._grpc = _Restriction.parsed(config.grpc_restricted_protocol, "grpc_restricted_protocol")
        self._endpoints = {
            "http_restricted_api": [each for each in endpoints if each not in self._http.endpoints],
            "grpc_restricted_protocol": [each for each in endpoints if each not in self._grpc.endpoints],
        }

    def flags(self) -> list[str]:
        """Returns the arguments of tritonserver that restrict its endpoints to holders of the token."""
        return [
            f"{flag}={','.join(self._endpoints[setting])}:{TRITON_ACCESS_HEADER}={self.token}"
            for setting, flag in _FLAGS.items()
            if self._endpoints[setting]
        ]

    def http_headers(self) -> dict[str, str]:
        """Returns the headers that open every endpoint over HTTP."""
        return {**self._http.headers, TRITON_ACCESS_HEADER: self.token}

    def grpc_headers(self) -> dict[str, str]:
        """Returns the headers that open every endpoint over gRPC, without Triton's prefix."""
        return {**self._grpc.headers, TRITON_ACCESS_HEADER: self.token}


@dataclasses.dataclass(frozen=True)
class _Restriction:
    """Parses ``<endpoint>,<endpoint>:<header>=<value>``."""

    endpoints: frozenset[str]
    headers: Mapping[str, str]

    @classmethod
    def parsed(cls, text: str | None, setting: str) -> _Restriction:
        if text is None:
            return cls(frozenset(), {})
        endpoints, colon, header = text.partition(":")
        name, equals, value = header.partition("=")
        names = frozenset(endpoints.split(","))
        if not (colon and equals and name and names <= VALID_TRITON_ENDPOINTS):
            raise PyTritonBadParameterError(
                f"TritonConfig.{setting} is {text!r}; use <endpoint>,<endpoint>:<header>=<value>, with endpoints out "
                f"of {', '.join(sorted(VALID_TRITON_ENDPOINTS))}."
            )
        return cls(names, {name: value})
