"""The tracer of this process, for the spans of requests."""

from __future__ import annotations

import atexit
import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING
from urllib.parse import quote

from pytriton.exceptions import PyTritonBadParameterError

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Tracer

LOGGER = logging.getLogger(__name__)

_INSTRUMENTATION = "pytriton"
_ENDPOINT = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PROTOCOL = "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL"
_GENERAL_PROTOCOL = "OTEL_EXPORTER_OTLP_PROTOCOL"
_HTTP = "http/protobuf"
_RESOURCE = "OTEL_RESOURCE_ATTRIBUTES"
# Triton's settings for sending spans, and the corresponding OpenTelemetry variables, which worker processes read.
_BATCHING = {
    "opentelemetry,bsp_max_queue_size": "OTEL_BSP_MAX_QUEUE_SIZE",
    "opentelemetry,bsp_schedule_delay": "OTEL_BSP_SCHEDULE_DELAY",
    "opentelemetry,bsp_max_export_batch_size": "OTEL_BSP_MAX_EXPORT_BATCH_SIZE",
}
_CLOSE_TIMEOUT_S = 2.0
_DEFAULT_URL = "http://localhost:4318/v1/traces"  # the same as Triton's

_tracer: Tracer | None = None  # of set_telemetry_tracer
_own: list[_OwnTracer] = []  # from trace_config of running servers, or from a worker process's environment


class _TelemetryValueError(PyTritonBadParameterError, ValueError):
    """A bad parameter; also a ValueError, which scripts for nvidia-pytriton catch."""


class _OwnTracer:
    """A tracer with a provider that this module creates.

    Args:
        url: The OTLP receiver's URL.
        resource: The resource of its spans.
        environment: The environment variables for worker processes.
    """

    def __init__(self, url: str, resource: Resource, environment: Mapping[str, str]) -> None:
        self._provider = _provider(url, resource, environment, shutdown_on_exit=False)
        self.environment = environment
        self.tracer: Tracer = self._provider.get_tracer(_INSTRUMENTATION)

    def close(self) -> None:
        """Sends pending spans within a short time limit, since a receiver may not respond."""
        if self not in _own:
            return
        _own.remove(self)
        atexit.unregister(self.close)
        closing = threading.Thread(target=self._provider.shutdown, name="pytriton-telemetry", daemon=True)
        closing.start()
        closing.join(_CLOSE_TIMEOUT_S)


def set_telemetry_tracer(tracer: Tracer) -> None:
    """Sets the tracer for the spans of this process: those of inference callables, of calls and of clients.

    Without one, they come from OpenTelemetry's global tracer provider or, if the program sets none, from a tracer for
    ``TritonConfig(trace_config=...)``.

    Args:
        tracer: The tracer.

    Raises:
        PyTritonBadParameterError: A tracer has been set already; this is a ``ValueError``.

    Examples:
        >>> from opentelemetry.sdk.trace import TracerProvider
        >>> set_telemetry_tracer(TracerProvider().get_tracer("my-service"))  # doctest: +SKIP
    """
    global _tracer
    if _tracer is not None:
        raise _TelemetryValueError("A telemetry tracer has been set already; set_telemetry_tracer is called once.")
    _tracer = tracer


def get_telemetry_tracer() -> Tracer | None:
    """Returns the tracer that `set_telemetry_tracer` has set; None if there is none."""
    return _tracer


def raise_if_no_telemetry() -> None:
    """Checks that OpenTelemetry's SDK and its OTLP exporter are installed.

    Raises:
        ModuleNotFoundError: One of them is not; install ``pytriton[telemetry]``.
    """
    try:
        import opentelemetry.exporter.otlp.proto.http.trace_exporter
        import opentelemetry.sdk.trace  # noqa: F401
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"Spans need a package that is not installed ({error}); install it with pip install 'pytriton[telemetry]'",
            name=error.name,
        ) from error


def parse_trace_config(trace_config_list: Sequence[str]) -> tuple[str, Resource]:
    """Reads the receiver and the resource of spans from ``TritonConfig(trace_config=...)``.

    Args:
        trace_config_list: Settings in the form of Triton's ``--trace-config``.

    Returns:
        The URL of the OTLP receiver, and an OpenTelemetry resource with the specified attributes.

    Raises:
        PyTritonBadParameterError: The mode is not ``opentelemetry``, or there is no URL; this is a ``ValueError``.
        ModuleNotFoundError: OpenTelemetry is not installed; install ``pytriton[telemetry]``.

    Examples:
        >>> url, resource = parse_trace_config(
        ...     [
        ...         "mode=opentelemetry",
        ...         "opentelemetry,url=http://localhost:4318/v1/traces",
        ...         "opentelemetry,resource=service.name=digits",
        ...     ]
        ... )  # doctest: +SKIP
    """
    if not is_opentelemetry(trace_config_list):
        raise _TelemetryValueError(
            f"trace_config is {list(trace_config_list)!r}; spans need mode=opentelemetry among its settings."
        )
    url = _url_of(trace_config_list)
    if url is None:
        raise _TelemetryValueError(
            f"trace_config is {list(trace_config_list)!r}; spans need opentelemetry,url=http://HOST:PORT/v1/traces."
        )
    return url, _resource_of(_attributes_of(trace_config_list))


def build_proxy_tracer_from_triton_config(trace_config: Sequence[str]) -> Tracer:
    """Builds a tracer that sends spans to the same receiver as Triton with ``TritonConfig(trace_config=...)``.

    Args:
        trace_config: The settings.

    Returns:
        A tracer with its own provider, which sends spans in batches, and the rest when the program exits.

    Raises:
        PyTritonBadParameterError: See `parse_trace_config`.
        ModuleNotFoundError: See `parse_trace_config`.

    Examples:
        >>> trace_config = ["mode=opentelemetry", "opentelemetry,url=http://localhost:4318/v1/traces"]
        >>> tracer = build_proxy_tracer_from_triton_config(trace_config)  # doctest: +SKIP
        >>> set_telemetry_tracer(tracer)  # doctest: +SKIP
    """
    return _provider(*parse_trace_config(trace_config), _batching_of(trace_config)).get_tracer(_INSTRUMENTATION)


def is_opentelemetry(trace_config: Sequence[str] | None) -> bool:
    """Returns whether settings of Triton's tracing select OpenTelemetry."""
    return any(_key_and_value(each) == ("mode", "opentelemetry") for each in trace_config or ())


def use_trace_config(trace_config: Sequence[str] | None) -> Callable[[], None]:
    """Makes this process and its children send spans like Triton, unless the program configures that itself.

    Args:
        trace_config: Triton's settings; nothing happens if they do not select OpenTelemetry.

    Returns:
        A function that undoes this, and sends pending spans.

    Raises:
        ModuleNotFoundError: OpenTelemetry is not installed; install ``pytriton[telemetry]``.
    """
    if trace_config is None or not is_opentelemetry(trace_config):
        return lambda: None
    url = _url_of(trace_config) or _DEFAULT_URL
    attributes = _attributes_of(trace_config)
    batching = _batching_of(trace_config)
    described = ",".join(f"{name}={quote(value)}" for name, value in attributes.items())
    own = _OwnTracer(
        url, _resource_of(attributes), {_ENDPOINT: url, _PROTOCOL: _HTTP, _RESOURCE: described, **batching}
    )
    _own.append(own)
    atexit.register(own.close)
    return own.close


def telemetry_environment() -> Mapping[str, str]:
    """Returns the OpenTelemetry variables for worker processes that are not set yet; mostly none."""
    if not _own:
        return {}
    environment = {name: each for name, each in _own[-1].environment.items() if name not in os.environ}
    if _ENDPOINT not in environment:  # set by the user, with another protocol
        environment.pop(_PROTOCOL, None)
    return environment


def use_environment() -> None:
    """Lets this worker process send spans if OpenTelemetry is installed and its variables name a receiver."""
    url = os.environ.get(_ENDPOINT)
    if not url:
        return
    protocol = os.environ.get(_PROTOCOL) or os.environ.get(_GENERAL_PROTOCOL) or _HTTP
    if protocol != _HTTP:
        LOGGER.warning(
            "Spans are not sent: only %s works, but %s or %s is %r.", _HTTP, _PROTOCOL, _GENERAL_PROTOCOL, protocol
        )
        return
    with contextlib.suppress(ImportError):
        _own.append(_OwnTracer(url, _resource_of({}), {}))


def current_tracer() -> Tracer | None:
    """Returns the tracer for a span that begins now; None while nothing in this process uses OpenTelemetry."""
    if _tracer is not None:
        return _tracer
    if _own and not _is_provider_set():
        return _own[-1].tracer
    if "opentelemetry.trace" not in sys.modules:
        return None
    return _global_tracer()


def flush() -> None:
    """Sends pending spans, for a process that exits without running exit handlers."""
    for own in list(_own):
        own.close()


@functools.lru_cache(maxsize=1)
def _global_tracer() -> Tracer:
    from opentelemetry.trace import get_tracer

    return get_tracer(_INSTRUMENTATION)  # follows the global provider, even if that is set later


def _is_provider_set() -> bool:
    """Returns whether the program has set OpenTelemetry's global tracer provider."""
    if "opentelemetry.trace" not in sys.modules:
        return False
    from opentelemetry import trace

    return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


def _provider(
    url: str, resource: Resource, batching: Mapping[str, str], *, shutdown_on_exit: bool = True
) -> TracerProvider:
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    provider = TracerProvider(resource=resource, shutdown_on_exit=shutdown_on_exit)
    numbers = [int(batching[name]) if name in batching else None for name in _BATCHING.values()]
    exporter = OTLPSpanExporter(endpoint=_with_scheme(url))
    provider.add_span_processor(BatchSpanProcessor(exporter, *numbers))
    return provider


def _resource_of(attributes: Mapping[str, str]) -> Resource:
    """Returns a resource with these attributes, and those from OpenTelemetry's variables."""
    raise_if_no_telemetry()
    from opentelemetry.sdk.resources import Resource

    return Resource.create(attributes)


def _with_scheme(url: str) -> str:
    return url if "://" in url else f"http://{url}"  # as in Triton


def _key_and_value(setting: str) -> tuple[str, str]:
    key, _, value = setting.partition("=")
    return key.strip(), value.strip()


def _url_of(trace_config: Sequence[str]) -> str | None:
    settings = dict(map(_key_and_value, trace_config))
    return settings.get("opentelemetry,url")


def _batching_of(trace_config: Sequence[str]) -> dict[str, str]:
    settings = dict(map(_key_and_value, trace_config))
    return {variable: settings[name] for name, variable in _BATCHING.items() if settings.get(name, "").isdecimal()}


def _attributes_of(trace_config: Sequence[str]) -> dict[str, str]:
    resources = [value for key, value in map(_key_and_value, trace_config) if key == "opentelemetry,resource"]
    return dict(map(_key_and_value, resources))
