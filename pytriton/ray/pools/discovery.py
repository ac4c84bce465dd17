"""Service discovery for Prometheus: where the metrics of all replicas are, over HTTP or in a file."""

from __future__ import annotations

import http
import http.server
import json
import logging
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pytriton.exceptions import PyTritonRuntimeError
from pytriton.ray.pools.pool import Pool, pools
from pytriton.utils.replacement import replace_file

LOGGER = logging.getLogger(__name__)

Targets = Callable[[], list[dict[str, Any]]]

_FILE_INTERVAL_S = 5.0
_REQUEST_TIMEOUT_S = 10.0


def targets(pool: str | None = None) -> list[dict[str, Any]]:
    """Returns where Prometheus finds the metrics of a pool's replicas.

    Args:
        pool: The pool's name; by default, all pools of the cluster.
    """
    names = pools() if pool is None else [pool]
    return [target for name in names for target in Pool(name).targets()]


class DiscoveryServer:
    """Serves targets to Prometheus' ``http_sd_configs``, from its start to its stop.

    While the targets are unavailable, it responds with status 503, and Prometheus keeps those it knows.

    Args:
        host: The address to listen at.
        port: The port; 0 chooses a free one.
        read: Returns the targets.

    Raises:
        PyTritonRuntimeError: The address is in use or does not belong to this machine.
    """

    def __init__(self, host: str, port: int, read: Targets = targets) -> None:
        try:
            self._server = _Server((host, port), read)
        except (OSError, OverflowError) as error:
            raise PyTritonRuntimeError(
                f"The targets cannot be served at {host}, port {port}: {error}. Choose another port or host."
            ) from error
        self._thread = threading.Thread(target=self._server.serve_forever, name="pytriton-ray-discovery", daemon=True)

    @property
    def url(self) -> str:
        """The URL at which it listens."""
        host, port = self._server.server_address[:2]
        return f"http://[{host!s}]:{port}/" if ":" in str(host) else f"http://{host!s}:{port}/"

    def start(self) -> None:
        """Starts responding."""
        self._thread.start()

    def is_alive(self) -> bool:
        """Returns whether it responds."""
        return self._thread.is_alive()

    def stop(self) -> None:
        """Stops, and closes the port."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, address: tuple[str, int], read: Targets) -> None:
        self.read = read
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, _Handler)


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server
    timeout = _REQUEST_TIMEOUT_S

    def do_GET(self) -> None:
        """Responds with the targets."""
        if self.path != "/":
            self._respond(http.HTTPStatus.NOT_FOUND, {"error": "The targets are at /."})
            return
        try:
            found = self.server.read()
        except Exception as error:
            LOGGER.warning("The targets cannot be read: %r", error)
            self._respond(http.HTTPStatus.SERVICE_UNAVAILABLE, {"error": "The Ray cluster does not respond."})
            return
        self._respond(http.HTTPStatus.OK, found)

    def log_message(self, *_: object) -> None:
        """Does not log requests."""

    def _respond(self, status: http.HTTPStatus, content: object) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def keep_file(path: Path, ending: threading.Event, read: Targets = targets) -> None:
    """Writes targets to a file for Prometheus' ``file_sd_configs``, and keeps it current until an event is set.

    The file is replaced atomically, and only if its content changes.

    Args:
        path: The file.
        ending: The event.
        read: Returns the targets.

    Raises:
        PyTritonRuntimeError: The file cannot be written.
    """
    written = None
    while not ending.is_set():
        try:
            text = json.dumps(read(), indent=2) + "\n"
        except Exception as error:  # the cluster may respond later
            LOGGER.warning("The targets cannot be read: %r", error)
        else:
            if text != written:
                _replace(path, text)
                written = text
        ending.wait(_FILE_INTERVAL_S)


def _replace(path: Path, text: str) -> None:
    try:
        replace_file(path, text.encode(), lambda draft: draft.chmod(0o644))
    except OSError as error:
        raise PyTritonRuntimeError(f"{str(path)!r} cannot be written: {error.strerror}.") from error
