"""The transport over an existing gRPC client of tritonclient."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytriton.client.core import failures
from pytriton.client.core.grpc.transport import NOT_FOUND, translated
from pytriton.client.core.port_probe import other_protocol
from pytriton.client.exceptions import PyTritonClientInferenceServerError
from pytriton.client.url import TritonUrl
from pytriton.utils.signals import comes_from_handler

# Responses that are converted to dictionaries, as over HTTP, and the part of the response that is used.
_READ_AS_JSON: Mapping[str, Callable[[Any], Any]] = {
    "get_model_config": lambda response: response["config"],
    "get_model_repository_index": lambda response: response.get("models", []),
}


class GivenGrpcTransport:
    """Calls tritonclient's own blocking client, and leaves it open; for everything except inference.

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
        from tritonclient.utils import InferenceServerException

        read = _READ_AS_JSON.get(method)
        if read is not None:
            kwargs["as_json"] = True
        try:
            response = getattr(self._client, method)(*args, client_timeout=timeout_s, **kwargs)
        except InferenceServerException as error:
            status, message = error.status(), str(error.message())
            if method == "is_model_ready" and status == NOT_FOUND:
                return False
            raise failures.grpc_failure(self.url.with_scheme, status, message, timeout_s) from error
        except Exception as error:
            if comes_from_handler(error):
                raise
            raise translated(self.url.with_scheme, error, timeout_s) from error
        return response if read is None else read(response)

    def close(self) -> None:
        """Does nothing: the client belongs to its creator."""


def connect(url: TritonUrl) -> Any:
    """Creates tritonclient's blocking client for the server at a URL."""
    import tritonclient.grpc

    from pytriton.client.core.grpc.channel import channel_options

    return tritonclient.grpc.InferenceServerClient(
        url.without_scheme, ssl=url.secure, channel_args=channel_options(url)
    )
