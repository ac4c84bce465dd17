"""The transport over an existing HTTP client of tritonclient."""

from __future__ import annotations

import http
import http.client
import json
from typing import Any

from pytriton.client.core import failures
from pytriton.client.core.http.transport import context_of
from pytriton.client.core.port_probe import other_protocol
from pytriton.client.exceptions import PyTritonClientInferenceServerError, PyTritonClientValueError
from pytriton.client.tls import TLSConfig
from pytriton.client.url import TritonUrl
from pytriton.utils.signals import comes_from_handler

_HEALTH = "v2/health/ready"


class GivenHttpTransport:
    """Calls tritonclient's own blocking client, in the thread that created it, and leaves it open.

    Args:
        url: The server's URL, for messages.
        client: The client.
    """

    def __init__(self, url: TritonUrl, client: Any) -> None:
        """Stores the arguments."""
        self.url = url
        self._client = client

    def other_protocol(self) -> PyTritonClientInferenceServerError | None:
        """See `Transport.other_protocol`."""
        return other_protocol(self.url)

    def load(self) -> None:
        """Does nothing: tritonclient was imported to create the client."""

    def call(self, method: str, timeout_s: float, *args: Any, **kwargs: Any) -> Any:
        """Calls a method of the client; see `Transport.call`."""
        import gevent

        timeout = gevent.Timeout.start_new(timeout_s)
        try:
            return self._send(method, *args, **kwargs)
        except gevent.Timeout as expired:
            if expired is not timeout:
                raise  # one of the program itself
            raise failures.timed_out(self.url.with_scheme, timeout_s) from None
        except Exception as error:
            if comes_from_handler(error):
                raise
            raise _translated(self.url.with_scheme, error, timeout_s) from error
        finally:
            timeout.close()

    def close(self) -> None:
        """Does nothing: the client belongs to its creator."""

    def _send(self, method: str, *args: Any, **kwargs: Any) -> Any:
        result = getattr(self._client, method)(*args, **kwargs)
        if result is False and method == "is_server_ready":
            response = self._client._get(_HEALTH, kwargs.get("headers"), None)
            _check_not_restricted(response.status_code, response.read())
        return result


def connect(url: TritonUrl, tls: TLSConfig, network_timeout_s: float) -> Any:
    """Creates tritonclient's blocking client.

    Args:
        url: The server's URL.
        tls: TLS settings.
        network_timeout_s: The time limit for connecting, and for each part of a response.
    """
    import tritonclient.http

    options: dict[str, Any] = {}
    if url.secure:
        import gevent.ssl

        # Not ssl.create_default_context: its sockets block, so that gevent could not interrupt a call.
        context = context_of(tls, gevent.ssl)
        options = {"ssl": True, "insecure": not tls.verify, "ssl_context_factory": lambda **_: context}
    return tritonclient.http.InferenceServerClient(
        url.without_scheme,
        connection_timeout=network_timeout_s,
        network_timeout=network_timeout_s,
        **options,
    )


def _check_not_restricted(status: int, body: bytes) -> None:
    """Raises the error of a server that requires a token; tritonclient would report it as not ready."""
    from tritonclient.utils import InferenceServerException

    if status == http.HTTPStatus.FORBIDDEN:
        raise InferenceServerException(json.loads(body)["error"], str(status))


def _translated(url: str, error: Exception, timeout_s: float) -> Exception:
    from tritonclient.utils import InferenceServerException

    if isinstance(error, InferenceServerException):
        return _failure_of(url, error)
    if isinstance(error, TimeoutError):
        return failures.timed_out(url, timeout_s)
    if isinstance(error, http.client.HTTPException | ConnectionResetError | BrokenPipeError):
        return failures.lost(url, error)
    if isinstance(error, OSError):
        return failures.unreachable(url, error)
    if isinstance(error, failures.NOT_DECODED):
        return failures.malformed(url, error)
    return error


def _failure_of(url: str, error: Any) -> Exception:
    status, message, body = error.status(), str(error.message()), error.debug_details()
    if status is None:  # raised by tritonclient itself
        return PyTritonClientValueError(message)
    if body is not None:
        return failures.unexpected_response(url, status, body)
    return failures.http_failure(url, status, message)
