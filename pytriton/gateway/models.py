"""The models that the gateway serves, wherever their server runs."""

from __future__ import annotations

import contextlib
import http
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from typing import Any, Protocol

from pytriton.client.core.inputs import Array
from pytriton.client.exceptions import PyTritonClientError
from pytriton.gateway.errors import RequestError, translated
from pytriton.gateway.sample_codec import SampleCodec
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.proxy.services.messages import InferenceCall

_MAX_NAME = 256
_MAX_DIGITS = 18


class Reply(Protocol):
    """A response of a model."""

    model: str
    version: int

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Response parameters."""

    @property
    def outputs(self) -> dict[str, Array]:
        """The outputs by name."""


class Client(Protocol):
    """Sends requests to one model."""

    @property
    def model_config(self) -> TritonModelConfig:
        """The model's configuration."""

    async def refresh(self) -> None:
        """Updates the configuration if it may have changed."""

    def call(self, arrays: Mapping[str, Array]) -> InferenceCall:
        """Returns a request with inputs that have been checked."""

    async def infer_call(self, call: InferenceCall, timeout_s: float) -> Reply:
        """Sends a request, and returns the response."""

    def stream_call(self, call: InferenceCall, timeout_s: float) -> AsyncGenerator[Sequence[Reply], None]:
        """Sends a request, and yields the responses, always all that have arrived; `timeout_s` is for the next one."""


class Upstream(Protocol):
    """The server or servers behind the gateway; its methods raise `PyTritonClientError`."""

    async def start(self) -> None:
        """Starts it if necessary."""

    async def client(self, name: str, version: int | None) -> Client:
        """Returns a client of a model that is ready."""

    async def ready_models(self) -> list[tuple[str, int]]:
        """Returns the names and versions of all models that are ready."""

    async def is_ready(self) -> bool:
        """Returns whether it accepts requests."""

    async def configuration(self, name: str, version: int | None) -> Mapping[str, Any]:
        """Returns a model's configuration as Triton reports it."""

    async def statistics(self, name: str | None, version: int | None) -> Mapping[str, Any]:
        """Returns Triton's statistics of a model, or of all models."""

    async def version(self) -> str:
        """Returns Triton's version; empty if it is unknown."""

    def description(self, name: str) -> str:
        """Returns the description of a model by its author."""

    def instances(self, name: str) -> tuple[int | None, int | None]:
        """Returns the number of a model's instances, and how often they were restarted; None if it is unknown."""

    def restarts(self) -> int | None:
        """Returns how often the server was restarted; None if it is unknown."""

    async def close(self) -> None:
        """Closes connections."""


class Source(Protocol):
    """What a model is told about the request to the gateway that it is called for: its id, and forwarded headers."""

    id: str
    forwarded: dict[str, str]


class Model:
    """One model, or one version of it.

    Args:
        client: Its client.
        timeout_s: How long a response may take.
    """

    def __init__(self, client: Client, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._codec: SampleCodec | None = None

    @property
    def config(self) -> TritonModelConfig:
        """Its configuration.

        Raises:
            RequestError: It is not ready.
        """
        try:  # without _translated(), which takes microseconds
            return self._client.model_config
        except PyTritonClientError as error:
            raise translated(error) from error

    async def refresh(self) -> None:
        """Updates the configuration if it may have changed.

        Raises:
            RequestError: It is not ready.
        """
        try:
            await self._client.refresh()
        except PyTritonClientError as error:
            raise translated(error) from error

    @property
    def codec(self) -> SampleCodec:
        """Converts its samples.

        Raises:
            RequestError: It is not ready.
        """
        config = self.config
        if self._codec is None or self._codec.config is not config:
            self._codec = SampleCodec(config)
        return self._codec

    def call(self, arrays: Mapping[str, Array], source: Source) -> InferenceCall:
        """Returns a request with inputs that fit the model."""
        call = self._client.call(arrays)
        call.request_id = source.id
        call.parameters = source.forwarded
        return call

    async def infer(self, call: InferenceCall) -> Reply:
        """Sends a request, and returns the response.

        Raises:
            RequestError: It failed.
        """
        try:
            return await self._client.infer_call(call, self._timeout_s)
        except PyTritonClientError as error:
            raise translated(error) from error

    async def stream(self, call: InferenceCall) -> AsyncGenerator[Sequence[Reply], None]:
        """Sends a request, and yields the responses, always all that have arrived.

        Raises:
            RequestError: It failed.
        """
        stream = self._client.stream_call(call, self._timeout_s)
        try:
            async for replies in stream:
                yield replies
        except PyTritonClientError as error:
            raise translated(error) from error
        finally:
            await stream.aclose()


class Models:
    """Looks up models.

    Args:
        upstream: The server or servers of the models.
        timeout_s: How long a response may take.
    """

    def __init__(self, upstream: Upstream, timeout_s: float) -> None:
        self._upstream = upstream
        self._timeout_s = timeout_s
        self._known: dict[tuple[str, int | None], Model] = {}

    @property
    def upstream(self) -> Upstream:
        """The server or servers of the models."""
        return self._upstream

    async def find(self, name: str, version: str | None = None) -> Model:
        """Returns a model that is ready.

        Raises:
            RequestError: There is none of that name and version.
        """
        number = _number(version)
        known = self._known.get((name, number))
        if known is not None:
            await known.refresh()
            return known
        if not name or len(name) > _MAX_NAME or not name.isprintable():
            reason = "The model's name is empty, too long, or has characters that no name has."
            raise RequestError(http.HTTPStatus.NOT_FOUND, reason)
        with _translated():
            client = await self._upstream.client(name, number)
        return self._known.setdefault((name, number), Model(client, self._timeout_s))

    def is_known(self, name: str, version: str | None) -> bool:
        """Returns whether a model has been found before."""
        return (name, _number(version)) in self._known

    async def names(self) -> list[tuple[str, int]]:
        """Returns the names and versions of all models that are ready.

        Raises:
            RequestError: The server does not respond.
        """
        with _translated():
            return await self._upstream.ready_models()

    async def config(self, name: str, version: str | None) -> Mapping[str, Any]:
        """Returns the configuration of a model as the server reports it.

        Raises:
            RequestError: The model is not ready.
        """
        with _translated():
            return await self._upstream.configuration(name, _number(version))

    async def statistics(self, name: str | None, version: str | None) -> Mapping[str, Any]:
        """Returns the statistics of a model, or of all models.

        Raises:
            RequestError: The model is not ready.
        """
        with _translated():
            return await self._upstream.statistics(name, _number(version))


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except PyTritonClientError as error:
        raise translated(error) from error


def _number(version: str | None) -> int | None:
    if version is None:
        return None
    if not (version.isascii() and version.isdecimal() and len(version) <= _MAX_DIGITS):
        raise RequestError(http.HTTPStatus.NOT_FOUND, f"The version is {version[:20]!r}: give a number.")
    return int(version)
