"""A client's session: configuration, requests, retries and failover, independent of blocking or asyncio."""

from __future__ import annotations

import dataclasses
import functools
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from pytriton.client.auth import create_auth_headers
from pytriton.client.core import shared_memory
from pytriton.client.core.attempts import Attempts
from pytriton.client.core.background import InBackground
from pytriton.client.core.deadlines import Deadline, check_timeout
from pytriton.client.core.failures import is_response, malformed
from pytriton.client.core.inputs import Array
from pytriton.client.core.readiness import check_protocol, wait_for_addresses, wait_until_ready
from pytriton.client.core.requests import (
    EncodedRequest,
    Options,
    check_load,
    check_token,
    make_request,
    response_of,
    tensor_of,
    tensors_of,
    wanted_of,
)
from pytriton.client.core.sansio import Sleep, Steps, T
from pytriton.client.core.server_set import ChangingServerSet, ServerSet
from pytriton.client.core.servers import Server
from pytriton.client.core.settings import DEFAULT_INIT_TIMEOUT_S, Settings
from pytriton.client.core.tensors import InferInput, InferRequestedOutput
from pytriton.client.core.wait_policy import WAIT_FOR_ALL, WaitPolicy
from pytriton.client.exceptions import (
    Failure,
    PyTritonClientInferenceServerError,
    PyTritonClientModelUnavailableError,
)
from pytriton.client.url import TritonUrl
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.proxy.telemetry.propagation import RequestSpan, start_request_span

_NOTHING: Mapping[str, Any] = MappingProxyType({})


def read_config(message: Any, url: str, version: str) -> TritonModelConfig:
    """Reads a model's configuration from the response of the server at `url`.

    Raises:
        PyTritonClientInferenceServerError: It is not a configuration.
    """
    try:
        return TritonModelConfig.from_dict(message, version or None)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise malformed(url, f"{message!r} instead of a model's configuration ({error!r})") from None


def _address_of(server: Server) -> Mapping[str, Any]:
    url = server.transport.url
    return {"server.address": url.hostname, "server.port": url.port}


def _in_span(steps: Steps[T], span: RequestSpan) -> Steps[T]:
    try:
        response = yield from steps
    except BaseException as error:
        span.end(error)
        raise
    span.end()
    return response


class Session:
    """A client's servers, and the configuration of its model.

    Args:
        settings: The client's settings.
        transport_to: Creates the transport to a server.
        sleep: How to pause, in seconds.
        check_model: Raises an error if the client does not support the model.
        config: The model's configuration, if known.
        in_background: Runs steps in the background, such as disconnecting from a server.
    """

    def __init__(
        self,
        settings: Settings,
        transport_to: Callable[[TritonUrl], Any],
        sleep: Sleep,
        check_model: Callable[[TritonModelConfig], None],
        config: TritonModelConfig | None,
        in_background: InBackground,
    ) -> None:
        """Sends nothing yet, and requests no addresses."""
        self.settings = settings
        self.model = settings.model()
        check_token(settings.access_token)
        self.server_set = self._make_server_set(transport_to, sleep, in_background)
        self.config = config
        self.prepared = False
        self._is_outdated = config is None
        self._sleep = sleep
        self._check_model = check_model
        self._checked: TritonModelConfig | None = None
        self._sizes: shared_memory.OutputSizes | None = None
        self.attempts = Attempts(settings, self.model, self.server_set, sleep)
        # Fast path: most clients always have one server, without retries or shared memory.
        self._plain = self.attempts.only if settings.retry is None and not settings.shared_memory else None
        self._address = _address_of(self.servers[0]) if self.servers else {}

    @property
    def servers(self) -> Sequence[Server]:
        """The servers that were last known."""
        return self.server_set.present

    @property
    def current_config(self) -> TritonModelConfig | None:
        """The model's configuration; None if it is unknown, or outdated because the model was reloaded."""
        return None if self._is_outdated else self.config

    def wait_until_ready(
        self,
        timeout_s: float | None,
        *,
        model: bool = True,
        started: float | None = None,
        policy: WaitPolicy = WAIT_FOR_ALL,
    ) -> Steps[None]:
        """Waits for a server, and for the model if requested; see `readiness.wait_until_ready`."""
        timeout_s = DEFAULT_INIT_TIMEOUT_S if timeout_s is None else check_timeout("timeout_s", timeout_s)
        self._load_libraries()
        wanted = self.model if model else None
        return wait_until_ready(self.server_set, wanted, timeout_s, self._sleep, started, policy)

    def prepare(self, started: float | None = None) -> Steps[TritonModelConfig]:
        """Prepares for the first request within ``init_timeout_s``: waits for the model, and gets its configuration.

        Args:
            started: When that began, a `time.monotonic`; now by default.
        """
        self._load_libraries()
        started = time.monotonic() if started is None else started
        timeout_s = self.settings.init_timeout_s
        if self.server_set.changes:
            yield from self._wait_for_addresses(started)
        if self.settings.ensure_model_is_ready:
            policy = self._wait_policy()
            yield from self.wait_until_ready(timeout_s, started=started, policy=policy)
            self.attempts.has_responded = True
        if self._is_outdated:
            deadline = Deadline(timeout_s, f"Preparing for model {self.model[0]!r}", started)
            try:
                self.config = yield from self.attempts.across_restarts(
                    lambda _: self.attempts.with_failover(
                        lambda server: self._fetch_config(server, deadline), deadline
                    ),
                    deadline.remaining_s(),
                )
                self._is_outdated, self._sizes = False, None
                self.attempts.has_responded = True
            except PyTritonClientInferenceServerError as error:
                if error.failure is Failure.NOT_SERVED:
                    raise PyTritonClientModelUnavailableError(error.message) from None
                raise
        self.prepared = True
        assert self.config is not None
        return self.config

    def request(
        self, positional: Sequence[Any], named: dict[str, Any], options: Options | None, batch: bool
    ) -> EncodedRequest:
        """Checks a request; `prepare` has run before.

        Raises:
            PyTritonClientError: The request does not fit the model, or the client does not.
        """
        config = self.config
        assert config is not None
        if self._checked is not config:
            self._check_model(config)
            self._checked = config
        return make_request(config, positional, named, options, batch=batch, convert=self.settings.convert_dtypes)

    def infer(self, request: EncodedRequest) -> Steps[dict[str, Array]]:
        """Sends a request and returns its response.

        Makes as many attempts as the retry policy allows. Without one, it sends the request again while the server is
        being restarted.
        """
        return self.in_span(request, self._infer)

    def in_span(self, request: EncodedRequest, send: Callable[[EncodedRequest], Steps[T]]) -> Steps[T]:
        """Sends a request through a function, in its own span if this process uses OpenTelemetry."""
        traced, span = self.traced(request)
        return send(request) if span is None else _in_span(send(traced), span)

    def traced(self, request: EncodedRequest) -> tuple[EncodedRequest, RequestSpan | None]:
        """Starts the span of a request; returns the request with its context, and the span.

        There is none if nothing in this process uses OpenTelemetry, or the request's headers have a context already.
        """
        if "traceparent" in request.headers:
            return request, None
        span = start_request_span(self.model[0], self._address)
        if span is None:
            return request, None
        return dataclasses.replace(request, headers={**request.headers, **span.headers}, span=span), span

    def _infer(self, request: EncodedRequest) -> Steps[dict[str, Array]]:
        plain = self._plain
        if plain is not None:
            timeout_s = request.timeout_s or self.settings.inference_timeout_s
            return self.attempts.across_restarts(lambda left_s: self._send(plain, request, left_s), timeout_s)
        deadline = self.deadline_of(request)
        return self.attempts.send(lambda server, deadline: self._send_by(server, request, deadline), deadline)

    def deadline_of(self, request: EncodedRequest, timeout_s: float | None = None) -> Deadline:
        """Returns the deadline of a request, counted from now."""
        timeout_s = timeout_s or request.timeout_s or self.settings.inference_timeout_s
        return Deadline(timeout_s, f"Inference of model {self.model[0]!r}")

    def load(self, config: str | None, files: Mapping[str, bytes] | None) -> Steps[None]:
        """Loads or reloads the model on every server.

        Raises:
            PyTritonClientInputError: An argument cannot work; nothing was sent.
        """
        check_load(config, files)
        yield from self._on_every_server("load_model", config=config, files=files)
        self._is_outdated, self.prepared = True, False

    def unload(self) -> Steps[None]:
        """Unloads the model on every server."""
        yield from self._on_every_server("unload_model")
        self.prepared = False

    def forget_config(self) -> None:
        """Makes the next `prepare` fetch the model's configuration again."""
        self._is_outdated = True

    def close(self, sleep: Sleep) -> Steps[None]:
        """Unregisters shared memory from the servers.

        Args:
            sleep: How to pause, in seconds.
        """
        for server in self.server_set.end():
            if server.regions is not None:
                yield from server.regions.close(server, sleep)

    def _make_server_set(
        self, transport_to: Callable[[TritonUrl], Any], sleep: Sleep, in_background: InBackground
    ) -> ServerSet:
        settings = self.settings

        def server_at(url: TritonUrl) -> Server:
            token = settings.access_token
            headers = create_auth_headers(token, url.protocol) if token else {}
            return Server(transport_to(url), headers, settings.shared_memory)

        if settings.addresses is not None:
            return ChangingServerSet(settings.addresses, server_at, sleep, in_background)
        return ServerSet([server_at(url) for url in settings.urls()])

    def _wait_for_addresses(self, started: float | None = None) -> Steps[None]:
        deadline = Deadline(self.settings.init_timeout_s, "Waiting for a server", started)
        yield from wait_for_addresses(self.server_set, deadline, self._sleep)
        self._load_libraries()

    def _wait_policy(self) -> WaitPolicy:
        policy = WaitPolicy(gives_up_early=not self.settings.waits_for_server)
        if not self.server_set.changes:
            return policy
        # An address may belong to a server that has just exited.
        return policy._replace(unreachable_s=max(policy.unreachable_s, self.settings.restart_timeout_s))

    def _on_every_server(self, method: str, **kwargs: Any) -> Steps[None]:
        """Calls a method of the API with the model's name, on all servers."""
        yield from self._wait_for_addresses()
        for server in self.server_set.look():
            if self.server_set.hold(server):
                try:
                    yield server.call(method, self.settings.init_timeout_s, self.model[0], **kwargs)
                finally:
                    self.server_set.release(server)

    def _load_libraries(self) -> None:
        """Imports libraries in advance, so that this does not count against a timeout."""
        for server in self.servers:
            server.transport.load()

    def _fetch_config(self, server: Server, deadline: Deadline) -> Steps[TritonModelConfig]:
        try:
            message = yield server.call("get_model_config", deadline.left_s(), *self.model)
        except PyTritonClientInferenceServerError as error:
            yield from check_protocol(server, error)
            raise
        return read_config(message, server.url, self.model[1])

    def _send_by(self, server: Server, request: EncodedRequest, deadline: Deadline) -> Steps[dict[str, Array]]:
        if request.span is not None:
            request.span.sent_to(server.transport.url.hostname, server.transport.url.port)
        if server.regions is not None:
            return self._send_through_memory(server, request, deadline)
        return self._send(server, request, deadline.left_s())

    def _send(self, server: Server, request: EncodedRequest, timeout_s: float) -> Steps[dict[str, Array]]:
        tensors, wanted = tensors_of(request), wanted_of(request)
        result = yield self._inference(server, request, tensors, wanted, timeout_s)
        return self.response(server, result, request)

    def _send_through_memory(
        self, server: Server, request: EncodedRequest, deadline: Deadline
    ) -> Steps[dict[str, Array]]:
        assert self.config is not None
        assert server.regions is not None
        known_sizes = self._sizes = self._sizes or shared_memory.OutputSizes(self.config)
        names = request.outputs or [spec.name for spec in self.config.outputs]
        sizes = known_sizes.expected(request)
        is_registered_again = False
        while True:
            with shared_memory.RegionLease(server, server.regions) as lease:
                try:
                    inputs = yield from lease.take_inputs(request, deadline.left_s())
                    wanted = yield from lease.take_outputs(names, sizes, deadline.left_s())
                    tensors = [inputs.get(spec.name) or tensor_of(spec, array) for spec, array in request.arrays]
                    wanted = wanted or wanted_of(request)
                    inference = self._inference(server, request, tensors, wanted, deadline.left_s())
                    lease.is_used = True
                    result = yield inference
                except PyTritonClientInferenceServerError as error:
                    lease.is_used = not is_response(error)
                    if shared_memory.is_forgotten(error) and not is_registered_again:
                        is_registered_again = True
                        server.regions.forget_all()
                    elif shared_memory.is_outgrown(error) and sizes:
                        known_sizes.outgrown(error, sizes)
                        sizes = {}
                    else:
                        raise
                    continue
                lease.is_used = False
                response = self.response(server, result, request, lease.outputs())
            known_sizes.learn(request, response)
            return response

    def _inference(
        self,
        server: Server,
        request: EncodedRequest,
        tensors: list[InferInput],
        wanted: list[InferRequestedOutput] | None,
        timeout_s: float,
    ) -> Callable[[], Any]:
        name, version = self.model
        return functools.partial(
            server.transport.call,
            "infer",
            timeout_s,
            name,
            tensors,
            version,
            wanted,
            headers=server.headers(request.headers),
            **request.settings,
        )

    def response(
        self, server: Server, result: Any, request: EncodedRequest, elsewhere: Mapping[str, Any] = _NOTHING
    ) -> dict[str, Array]:
        """Reads a response.

        Args:
            server: The server that sent it.
            result: The transport's ``InferResult``.
            request: The request.
            elsewhere: How to get outputs whose content is not in the response.
        """
        try:
            return response_of(result, request.single, elsewhere)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error) as error:
            raise malformed(server.url, f"its response cannot be read: {error!r}") from None
