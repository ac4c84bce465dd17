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
from pytriton.client.core.deadlines import Deadline, check_timeout
from pytriton.client.core.failures import is_response, malformed, server_error
from pytriton.client.core.inputs import Array
from pytriton.client.core.readiness import (
    PATIENT,
    Patience,
    check_protocol,
    is_ready,
    probe_timeout_s,
    wait_until_ready,
)
from pytriton.client.core.requests import (
    EncodedRequest,
    Options,
    check_token,
    make_request,
    response_of,
    tensor_of,
    tensors_of,
    wanted_of,
)
from pytriton.client.core.sansio import Sleep, Steps, T
from pytriton.client.core.servers import Balancer, Server
from pytriton.client.core.settings import Settings
from pytriton.client.exceptions import (
    Failure,
    PyTritonClientInferenceServerError,
    PyTritonClientModelUnavailableError,
    PyTritonClientTimeoutError,
)
from pytriton.client.retry import RetryPolicy
from pytriton.client.url import TritonUrl
from pytriton.model_config.triton_model_config import TritonModelConfig
from pytriton.proxy.telemetry.propagation import RequestSpan, start_request_span

_PROBE_TIMEOUT_S = 2.0
_NOTHING: Mapping[str, Any] = MappingProxyType({})
_ONCE = RetryPolicy(attempts=1)
_RESTART_PAUSE_S = 0.05
# A request over which the connection broke may be what ends the server.
_MAX_LOST = 3
_RESTARTING = (Failure.UNREACHABLE, Failure.LOST)
# Another server may be used at once: nothing was executed.
_ELSEWHERE = (Failure.UNREACHABLE, Failure.NOT_SERVED, Failure.BUSY)


def read_config(message: Any, url: str, version: str) -> TritonModelConfig:
    """Reads a model's configuration from the response of the server at `url`.

    Raises:
        PyTritonClientInferenceServerError: It is none.
    """
    try:
        return TritonModelConfig.from_dict(message, version or None)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise malformed(url, f"its model configuration has {error!r}") from error


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
        transport_to: Makes the transport to a server.
        sleep: How to pause, in seconds.
        check_model: Raises an error if the client does not support the model.
        config: The model's configuration, if known.
    """

    def __init__(
        self,
        settings: Settings,
        transport_to: Callable[[TritonUrl], Any],
        sleep: Sleep,
        check_model: Callable[[TritonModelConfig], None],
        config: TritonModelConfig | None,
    ) -> None:
        """Sends nothing yet."""
        self.settings = settings
        self.model = settings.model()
        check_token(settings.access_token)
        self.servers = [
            Server(transport_to(url), create_auth_headers(settings.access_token, url.protocol), settings.shared_memory)
            for url in settings.urls()
        ]
        self.config = config
        self.prepared = False
        self._is_outdated = config is None
        self._balancer = Balancer(self.servers)
        self._sleep = sleep
        self._check_model = check_model
        self._checked: TritonModelConfig | None = None
        self._sizes: shared_memory.OutputSizes | None = None
        self._has_responded = False  # a server, to this client
        # Fast path: most clients have one server, without retries or shared memory.
        self._is_plain = len(self.servers) == 1 and settings.retry is None and not settings.shared_memory

    @property
    def current_config(self) -> TritonModelConfig | None:
        """The model's configuration; None if it is unknown, or outdated because the model was reloaded."""
        return None if self._is_outdated else self.config

    def wait_until_ready(
        self,
        timeout_s: float,
        *,
        model: bool = True,
        started: float | None = None,
        patience: Patience = PATIENT,
    ) -> Steps[None]:
        """Waits for a server, and for the model if requested; see `readiness.wait_until_ready`."""
        timeout_s = check_timeout("timeout_s", timeout_s)
        self._load_libraries()
        wanted = self.model if model else None
        return wait_until_ready(self.servers, wanted, timeout_s, self._sleep, started, patience)

    def prepare(self, started: float | None = None) -> Steps[TritonModelConfig]:
        """Prepares for the first request within ``init_timeout_s``: waits for the model, and gets its configuration.

        Args:
            started: When that began, a moment of `time.monotonic`; now by default.
        """
        self._load_libraries()
        started = time.monotonic() if started is None else started
        timeout_s = self.settings.init_timeout_s
        if self.settings.ensure_model_is_ready:
            patience = Patience(model=False, server=self.settings.waits_for_server)
            yield from self.wait_until_ready(timeout_s, started=started, patience=patience)
            self._has_responded = True
        if self._is_outdated:
            deadline = Deadline(timeout_s, f"Asking for model {self.model[0]!r}", started)
            try:
                self.config = yield from self._across_restarts(
                    lambda _: self.with_failover(lambda server: self._fetch_config(server, deadline), deadline),
                    deadline.remaining_s(),
                )
                self._is_outdated, self._sizes = False, None
                self._has_responded = True
            except PyTritonClientInferenceServerError as error:
                if error.failure is Failure.NOT_SERVED:
                    raise PyTritonClientModelUnavailableError(error.message) from error
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
        """Sends a request by a function, in a span of its own if this process uses OpenTelemetry."""
        traced, span = self.traced(request)
        return send(request) if span is None else _in_span(send(traced), span)

    def traced(self, request: EncodedRequest) -> tuple[EncodedRequest, RequestSpan | None]:
        """Starts the span of a request; returns the request with its context, and the span.

        There is none if nothing in this process uses OpenTelemetry, or the request's headers have a context already.
        """
        if "traceparent" in request.headers:
            return request, None
        url = self.servers[0].transport.url
        span = start_request_span(self.model[0], {"server.address": url.hostname, "server.port": url.port})
        if span is None:
            return request, None
        return dataclasses.replace(request, headers={**request.headers, **span.headers}), span

    def _infer(self, request: EncodedRequest) -> Steps[dict[str, Array]]:
        if self._is_plain:
            timeout_s = request.timeout_s or self.settings.inference_timeout_s
            return self._across_restarts(lambda left_s: self._send(self.servers[0], request, left_s), timeout_s)
        return self.send(lambda server, deadline: self._send_by(server, request, deadline), self.deadline_of(request))

    def send(self, send: Callable[[Server, Deadline], Steps[T]], deadline: Deadline) -> Steps[T]:
        """Sends a request by a function to one server after another, as often as `infer` does.

        Args:
            send: Sends the request to a server.
            deadline: By when.
        """

        def attempt() -> Steps[T]:
            return self.with_failover(lambda server: send(server, deadline), deadline)

        if self.settings.retry is not None:
            return self.with_retries(attempt, deadline)
        return self._across_restarts(lambda _: attempt(), deadline.timeout_s)

    def deadline_of(self, request: EncodedRequest, timeout_s: float | None = None) -> Deadline:
        """Returns the deadline of a request, counted from now."""
        timeout_s = timeout_s or request.timeout_s or self.settings.inference_timeout_s
        return Deadline(timeout_s, f"Inference of model {self.model[0]!r}")

    def load(self, config: str | None, files: Mapping[str, bytes] | None) -> Steps[None]:
        """Loads or reloads the model on every server."""
        for server in self.servers:
            yield server.call("load_model", self.settings.init_timeout_s, self.model[0], config=config, files=files)
        self._is_outdated, self.prepared = True, False

    def unload(self) -> Steps[None]:
        """Unloads the model on every server."""
        for server in self.servers:
            yield server.call("unload_model", self.settings.init_timeout_s, self.model[0])
        self.prepared = False

    def forget_config(self) -> None:
        """Has the next `prepare` get the model's configuration again."""
        self._is_outdated = True

    def close(self, sleep: Sleep) -> Steps[None]:
        """Unregisters shared memory from the servers.

        Args:
            sleep: How to pause, in seconds.
        """
        for server in self.servers:
            if server.regions is not None:
                yield from server.regions.close(server, sleep)

    def _across_restarts(self, send: Callable[[float], Steps[T]], timeout_s: float) -> Steps[T]:
        """Sends a request, and sends it again for a while if the server is being restarted.

        A server that has never responded to this client is not waited for.

        Args:
            send: Sends the request; takes the seconds that are left.
            timeout_s: How long that may take in all.
        """
        try:
            response = yield from send(timeout_s)
            self._has_responded = True
            return response
        except PyTritonClientInferenceServerError as error:
            restart_s = self.settings.restart_timeout_s
            if not (self._has_responded and restart_s > 0 and error.failure in _RESTARTING):
                raise
            failed = error
        started = time.monotonic()
        lost = 0
        while True:
            lost += failed.failure is Failure.LOST
            waited_s = time.monotonic() - started
            if lost > _MAX_LOST or waited_s + _RESTART_PAUSE_S > min(restart_s, timeout_s):
                raise failed
            yield functools.partial(self._sleep, _RESTART_PAUSE_S)
            try:
                return (yield from send(timeout_s - waited_s - _RESTART_PAUSE_S))
            except PyTritonClientInferenceServerError as error:
                # The models of other processes are loaded shortly after the server is ready again.
                if error.failure not in (*_RESTARTING, Failure.NOT_SERVED):
                    raise
                failed = error

    def with_retries(self, attempt: Callable[[], Steps[Any]], deadline: Deadline) -> Steps[Any]:
        """Repeats an attempt until it succeeds, as often as the retry policy allows."""
        policy = self.settings.retry or _ONCE
        number = 1
        while True:
            try:
                return (yield from attempt())
            except PyTritonClientInferenceServerError as error:
                number += 1
                if number > policy.attempts or not policy.allows(error):
                    raise
                pause_s = policy.pause_before(number)
                if pause_s >= deadline.remaining_s():
                    raise
            yield functools.partial(self._sleep, pause_s)

    def with_failover(self, send: Callable[[Server], Steps[Any]], deadline: Deadline) -> Steps[Any]:
        """Sends to the next server, or to another one if that is unreachable or busy, or its model is not ready.

        Args:
            send: Sends the request to a server.
            deadline: By when.
        """
        if len(self.servers) == 1:
            return (yield from send(self.servers[0]))
        failed: PyTritonClientInferenceServerError | None = None
        for server in self._balancer.candidates():
            if server.was_left_out:
                probe_s = probe_timeout_s(deadline, len(self.servers), _PROBE_TIMEOUT_S)
                if not (yield from is_ready(server, self.model, probe_s)):
                    server.mark_down()
                    continue
                server.mark_up()
            try:
                return (yield from send(server))
            except PyTritonClientTimeoutError:
                server.mark_down()
                raise
            except PyTritonClientInferenceServerError as error:
                if not is_response(error) or error.failure is Failure.NOT_SERVED:
                    server.mark_down()
                if error.failure not in _ELSEWHERE:
                    raise
                failed = error
        urls = ", ".join(server.url for server in self.servers)
        raise failed or server_error(f"None of the servers at {urls} has {self.model[0]!r} ready.", Failure.UNREACHABLE)

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
        if server.regions is not None:
            return self._send_through_memory(server, request, deadline)
        return self._send(server, request, deadline.left_s())

    def _send(self, server: Server, request: EncodedRequest, timeout_s: float) -> Steps[dict[str, Array]]:
        tensors, wanted = tensors_of(request, server.library), wanted_of(request, server.library)
        result = yield self._inference(server, request, tensors, wanted, timeout_s)
        return self.response(server, result, request)

    def _send_through_memory(
        self, server: Server, request: EncodedRequest, deadline: Deadline
    ) -> Steps[dict[str, Array]]:
        assert self.config is not None
        assert server.regions is not None
        known_sizes = self._sizes = self._sizes or shared_memory.OutputSizes(self.config)
        library = server.library
        names = request.outputs or [spec.name for spec in self.config.outputs]
        sizes = known_sizes.expected(request)
        is_registered_again = False
        while True:
            with shared_memory.RegionLease(server, server.regions) as lease:
                try:
                    inputs = yield from lease.take_inputs(request, deadline.left_s())
                    wanted = yield from lease.take_outputs(names, sizes, deadline.left_s())
                    tensors = [
                        inputs.get(spec.name) or tensor_of(spec, array, library) for spec, array in request.arrays
                    ]
                    wanted = wanted or wanted_of(request, library)
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
        self, server: Server, request: EncodedRequest, tensors: list[Any], wanted: list[Any] | None, timeout_s: float
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
            result: tritonclient's ``InferResult``.
            request: The request.
            elsewhere: How to get outputs whose content is not in the response.
        """
        try:
            return response_of(result, server.transport.outputs_of, request.single, elsewhere)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError, struct.error) as error:
            raise malformed(server.url, f"its response cannot be read: {error!r}") from error
