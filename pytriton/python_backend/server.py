"""Access to the server whose model this process serves."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytriton.exceptions import PyTritonError
from pytriton.python_backend.errors import TritonModelException

if TYPE_CHECKING:
    from pytriton.proxy.services.client import ServerClient


def server_client() -> ServerClient:
    """Returns the client of the server for the current call.

    Raises:
        TritonModelException: This process has no server.
    """
    from pytriton.proxy.services.client import current_client

    try:
        return current_client()
    except PyTritonError as error:
        raise TritonModelException(
            "there is no server to send requests to from here: do so in the model's process, not in one that it has "
            "started"
        ) from error
