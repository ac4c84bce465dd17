"""Which pages may have a browser send requests, and under which names of hosts."""

from __future__ import annotations

import http
from collections.abc import Sequence

from pytriton.gateway.errors import RequestError
from pytriton.gateway.request import Request

_OWN = ("same-origin", "none")  # "none" is a person: a bookmark, or what was typed
_MAX_SHOWN = 100


class OriginPolicy:
    """Refuses requests that pages of other sites have a browser send, and requests to other hosts.

    A browser sends simple requests, such as a form or ``text/plain``, to any host without asking first.

    Args:
        origins: Of the sites whose pages may send requests; ``*`` is any.
        hosts: Names that the gateway has, where ``*.example.com`` stands for all below; empty is any.
    """

    def __init__(self, origins: Sequence[str], hosts: Sequence[str]) -> None:
        self._origins = frozenset(origins_of(origins))
        self._hosts = frozenset(host.lower() for host in hosts if not host.startswith("*."))
        self._domains = tuple(host[1:].lower() for host in hosts if host.startswith("*."))
        self._checks_hosts = bool(hosts) and "*" not in hosts

    def check_host(self, request: Request) -> None:
        """Checks the host that a request is for, which a page that lets its own name point here cannot change.

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
        """Checks where a request comes from; what is no browser says nothing of it.

        Raises:
            RequestError: A page of another site had it sent.
        """
        origin = request.header("origin").lower()
        if not origin or "*" in self._origins or origin in self._origins:
            return
        if request.header("sec-fetch-site") in _OWN:
            return
        if origin != "null" and origin.partition("://")[2] == request.header("host").lower():
            return
        raise RequestError(
            http.HTTPStatus.FORBIDDEN,
            f"A page of {origin[:_MAX_SHOWN]!r} had this request sent, and is not in GatewayConfig.cors_origins.",
        )


def origins_of(given: Sequence[str]) -> list[str]:
    """Returns origins as browsers send them."""
    return [origin.rstrip("/").lower() for origin in given]


def _name_of(host: str) -> str:
    """Returns a host without its port."""
    if host.startswith("["):
        return host.partition("]")[0].lower() + "]"
    return host.partition(":")[0].lower().rstrip(".")
