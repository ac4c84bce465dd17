"""The pages for browsers, and their assets, all of which the gateway serves itself."""

from __future__ import annotations

import functools
import http
import importlib.util
import pathlib

from pytriton.gateway.errors import RequestError
from pytriton.gateway.responses import Send, send_bytes

_OWN = pathlib.Path(__file__).parent / "assets"
_TYPES = {".js": "text/javascript", ".css": "text/css", ".html": "text/html; charset=utf-8"}
_SWAGGER = ("swagger-ui-bundle.js", "swagger-ui.css")
_HEADERS = {
    "content-security-policy": "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "media-src data:; frame-ancestors 'none'; base-uri 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


async def send_page(name: str, send: Send) -> None:
    """Sends a page.

    Raises:
        RequestError: There is none of that name.
    """
    await _send(f"{name}.html", send)


async def send_asset(name: str, send: Send) -> None:
    """Sends an asset of a page.

    Raises:
        RequestError: There is none of that name.
    """
    await _send(name, send)


async def _send(name: str, send: Send) -> None:
    path = _assets().get(name)
    if path is None:
        raise RequestError(http.HTTPStatus.NOT_FOUND, f"There is no asset {name[:100]!r}.")
    caching = {"cache-control": "no-cache" if path.suffix == ".html" else "max-age=3600"}
    await send_bytes(send, _content(path), _TYPES[path.suffix], headers=_HEADERS | caching)


@functools.cache
def _assets() -> dict[str, pathlib.Path]:
    assets = {path.name: path for path in _OWN.iterdir() if path.suffix in _TYPES}
    package = importlib.util.find_spec("fastapi_offline")  # for its copy of Swagger UI; it is not imported
    if package is not None and package.origin is not None:
        assets |= {name: pathlib.Path(package.origin).parent / "static" / name for name in _SWAGGER}
    return assets


@functools.cache
def _content(path: pathlib.Path) -> bytes:
    return path.read_bytes()
