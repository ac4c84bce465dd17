"""Checks which pages may send requests from a browser, and to which host names."""

from __future__ import annotations

import http
from collections.abc import Sequence

from pytriton.gateway.errors import RequestError
from pytriton.gateway.request import Request

_OWN = ("same-origin", "none")  # "none": the user opened a bookmark, or typed the address
_MAX_SHOWN = 100


class OriginPolicy:
    """Refuses requests that a browser sends for pages of other sites, and requests to other host names.

    A browser sends simple requests, such as a form or ``text/plain``, to any host without asking it first.

    Args:
        origins: Origins whose pages may send requests; ``*`` for any.
        hosts: Host names of the gateway; ``*.example.com`` for all subdomains. Empty for any name.
    """

    def __init__(self, origins: Sequence[str], hosts: Sequence[str]) -> None:
        self._origins = frozenset(origins_of(origins))
        self._hosts = frozenset(_as_in_header(host) for host in hosts if not host.startswith("*."))
        self._domains = tuple(host[1:].lower() for host in hosts if host.startswith("*."))
        self._checks_hosts = bool(hosts) and "*" not in hosts

    def check_host(self, request: Request) -> None:
        """Checks the host name of a request, which shows when a page's own name points here (DNS rebinding).

        Raises:
            RequestError: It is not one of the gateway's.
        """
        if not self._checks_hosts:
            return
        host = _name_of(request.header("host"))
        if host not in self._hosts and not (self._domains and host.endswith(self._domains)):
            raise RequestError(
                http.HTTPStatus.MISDIRECTED_REQUEST,
                f"The request is for host {host[:_MAX_SHOWN]!r}, which is not in GatewayConfig.allowed_hosts.",
            )

    def check_origin(self, request: Request) -> None:
        """Checks which page sent a request, by headers that only browsers send.

        Raises:
            RequestError: It was sent by a page of another site.
        """
        origin, site = request.header("origin").lower(), request.header("sec-fetch-site")
        if "*" in self._origins or origin in self._origins or site in _OWN or not (origin or site):
            return
        if origin not in ("", "null") and origin.partition("://")[2] == request.header("host").lower():
            return
        if origin:
            message = (
                f"The request was sent by a page of {origin[:_MAX_SHOWN]!r}, which is not in "
                "GatewayConfig.cors_origins."
            )
        else:  # as of a page that does not ask for the response, with `no-cors`
            message = (
                "The request was sent by a page of another site, without its Origin (Sec-Fetch-Site is "
                f"{site[:_MAX_SHOWN]!r}): send it with CORS, from an origin in GatewayConfig.cors_origins."
            )
        raise RequestError(http.HTTPStatus.FORBIDDEN, message)


def origins_of(given: Sequence[str]) -> list[str]:
    """Returns origins as browsers send them."""
    return [origin.rstrip("/").lower() for origin in given]


def _as_in_header(host: str) -> str:
    """Returns a host as requests name it: an IPv6 address in brackets."""
    return f"[{host}]".lower() if host.count(":") > 1 and not host.startswith("[") else host.lower()


def _name_of(host: str) -> str:
    """Returns a host without its port."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower().rstrip(".")
