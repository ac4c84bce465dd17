"""Reports of a running server about itself and its models."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pytriton.exceptions import PyTritonRuntimeError
from pytriton.models.manager import ModelManager
from pytriton.server.control import ServerControl
from pytriton.server.local import LocalServer
from pytriton.server.remote import RemoteServer
from pytriton.utils.suggestions import nearest

NOT_RUNNING = "The server is not running: call run() or serve() first."


class ServerReport:
    """A server's report of itself and of its models; `Triton.report` returns it.

    Args:
        models: The models that are bound.
        server: Returns the server; None if it is not running.

    Examples:
        >>> triton.report.ready_models()  # doctest: +SKIP
        [('Double', 1)]
    """

    def __init__(self, models: ModelManager, server: Callable[[], LocalServer | RemoteServer | None]) -> None:
        self._models = models
        self._server = server

    @property
    def version(self) -> str | None:
        """The version of the server, like ``2.51.0``; None before it runs."""
        server = self._server()
        return None if server is None or server.version is None else str(server.version)

    @property
    def restarts(self) -> int:
        """Number of restarts after the server exited unexpectedly."""
        server = self._server()
        return server.restarts if isinstance(server, LocalServer) else 0

    def ready_models(self) -> list[tuple[str, int]]:
        """Returns the names and versions of all models of the server that are ready."""
        server = self._server()
        states = None if server is None else server.control.states()
        return [model for model, state in (states or {}).items() if state == "READY"]

    def configuration(self, model_name: str, model_version: int | None = None) -> Mapping[str, Any]:
        """Returns a model's configuration as the server reports it, the JSON form of ``config.pbtxt``.

        Args:
            model_name: The model's name.
            model_version: Its version; None is the latest.

        Raises:
            PyTritonClientModelUnavailableError: The model is not ready.
            PyTritonClientInferenceServerError: The server is not running.
        """
        return self._from_server(lambda control: control.model_config(model_name, model_version), model_name)

    def statistics(self, model_name: str | None = None, model_version: int | None = None) -> Mapping[str, Any]:
        """Returns the statistics of a model, or of all, as the server reports them: ``{"model_stats": [...]}``.

        Args:
            model_name: The model's name; None is every model.
            model_version: Its version; None is every version.

        Raises:
            PyTritonClientModelUnavailableError: The model is not ready.
            PyTritonClientInferenceServerError: The server is not running.
        """
        return self._from_server(lambda control: control.statistics(model_name, model_version), model_name)

    def description(self, model_name: str) -> str:
        """Returns the docstring of the function that a model is bound to; empty if it has none."""
        return next((model.description for model in self._models if model.spec.name == model_name), "")

    def instances(self, model_name: str) -> tuple[int, int] | None:
        """Returns the number of instances of a bound model, and the number of restarts of their processes.

        Args:
            model_name: The model's name.

        Returns:
            Both numbers; None if no model of that name is bound.
        """
        bound = [model for model in self._models if model.spec.name == model_name]
        return (sum(model.instances for model in bound), sum(model.restarts for model in bound)) if bound else None

    def _from_server(self, report: Callable[[ServerControl], Mapping[str, Any]], name: str | None) -> Mapping[str, Any]:
        from pytriton.client.core.failures import server_error
        from pytriton.client.exceptions import Failure, PyTritonClientModelUnavailableError

        server = self._server()
        if server is None:
            raise server_error(NOT_RUNNING, Failure.UNREACHABLE)
        try:
            return report(server.control)
        except PyTritonRuntimeError as error:
            near = None if name is None else nearest(name, [model for model, _ in self.ready_models()])
            meant = f"; did you mean {near!r}?" if near not in (None, name) else ""
            raise PyTritonClientModelUnavailableError(f"Model {name!r} is not ready: {error}{meant}") from None
        except OSError as error:
            raise server_error(f"The server does not respond: {error}.", Failure.UNREACHABLE) from error
