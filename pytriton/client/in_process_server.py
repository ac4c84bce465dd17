"""The server as clients in its own process see it."""

from __future__ import annotations

from typing import NoReturn, Protocol

from pytriton.client.exceptions import PyTritonClientClosedError
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.proxy.services.client import ServerClient


class Server(Protocol):
    """The server that this process runs."""

    def services(self, timeout_s: float) -> ServerClient:
        """Returns the channel to the server; waits for a server that is being restarted.

        Raises:
            PyTritonInvalidOperationError: There is none in time, or the server is not running.
        """

    def model_config(self, name: str, version: int | None) -> TritonModelConfig:
        """Returns the configuration of a model that is ready.

        Raises:
            PyTritonClientError: The model is not ready, or the server is not running.
        """

    @property
    def generation(self) -> int:
        """A number that changes whenever a model's configuration may have changed."""


class ClosedServer(Server):
    """Replaces the server in a closed client: refuses everything.

    Args:
        model: The name of the client's model.
    """

    def __init__(self, model: str) -> None:
        self._model = model

    def services(self, timeout_s: float) -> NoReturn:
        """Raises the error of a closed client."""
        raise PyTritonClientClosedError(f"The client of model {self._model!r} is closed; create another one.")

    def model_config(self, name: str, version: int | None) -> NoReturn:
        """Raises the error of a closed client."""
        self.services(0.0)

    @property
    def generation(self) -> NoReturn:
        """Raises the error of a closed client."""
        self.services(0.0)
