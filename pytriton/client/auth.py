"""The header that carries an access token."""

from __future__ import annotations

from collections.abc import Mapping

from pytriton.client.exceptions import PyTritonClientValueError
from pytriton.constants import TRITON_ACCESS_HEADER

__all__ = ["TRITON_ACCESS_HEADER", "create_auth_headers", "extract_access_token_from_headers"]

# Triton's front end for gRPC looks for restricted keys under this prefix.
_GRPC_PREFIX = "triton-grpc-protocol-"
_PREFIXES = {"http": "", "https": "", "grpc": _GRPC_PREFIX, "grpcs": _GRPC_PREFIX}


def create_auth_headers(access_token: str | None, protocol: str) -> dict[str, str]:
    """Returns the headers for endpoints that require a server's token.

    Args:
        access_token: The server's token.
        protocol: ``"http"`` or ``"grpc"``, or a URL's scheme, such as ``"grpcs"``.

    Returns:
        The headers.

    Raises:
        PyTritonClientValueError: There is no token, or no such protocol.

    Examples:
        >>> create_auth_headers("secret", "http")
        {'triton-access-token': 'secret'}
    """
    if not access_token:
        raise PyTritonClientValueError(
            f"access_token is {access_token!r}; give the server's token, which Triton.get_access_token() returns."
        )
    if protocol not in _PREFIXES:
        raise PyTritonClientValueError(f"protocol is {protocol!r}; use 'http' or 'grpc'.")
    return {f"{_PREFIXES[protocol]}{TRITON_ACCESS_HEADER}": access_token}


def extract_access_token_from_headers(headers: Mapping[str, str] | None) -> str | None:
    """Returns the access token from the headers of either protocol.

    Args:
        headers: Headers of a request; names are case-insensitive.

    Returns:
        The token, or None.

    Examples:
        >>> extract_access_token_from_headers({"Triton-Access-Token": "secret"})
        'secret'
    """
    for name, value in (headers or {}).items():
        if name.lower().removeprefix(_GRPC_PREFIX) == TRITON_ACCESS_HEADER:
            return value
    return None
