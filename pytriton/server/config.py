"""The settings of tritonserver, and the flags that carry them."""

from __future__ import annotations

import dataclasses
import logging
import operator
import os
import pathlib
import re
import types
import typing
import warnings
from collections.abc import Mapping
from typing import Any

from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.utils.suggestions import nearest
from pytriton.utils.working_folder import working_folder

LOGGER = logging.getLogger(__name__)

MAX_PORT = 65535

ENVIRONMENT_PREFIX = "PYTRITON_TRITON_CONFIG_"

_BOOLEANS = {"true": True, "1": True, "yes": True, "on": True, "false": False, "0": False, "no": False, "off": False}
_COMMON_ERRORS = ("unterminated character set", "missing ), unterminated subpattern", "unbalanced parenthesis")
_LOOKING_AROUND = re.compile(r"(?<!\\)\(\?<?[=!]")
_LIST_ITEM = re.compile(r"(?P<field>.+)_(?P<index>\d+)")


def _own() -> Any:
    """Declares a field that this package reads itself; the server has no such flag."""
    return dataclasses.field(default=None, metadata={"own": True})


@dataclasses.dataclass
class TritonConfig:
    """Settings of tritonserver. Fields that are None have the defaults named here, or else those of the server.

    Args:
        model_repository: Folder with models of your own, served beside the bound ones.
        id: Identifier of the server.
        log_verbose: Level of verbose logging; 0, the default, is off.
        log_file: File for the server's log; by default, it goes to Python's ``logging``.
        exit_timeout_secs: Seconds that the server waits for requests in flight when it stops; 25 by default.
        exit_on_error: Exit when something fails during startup, such as loading a model of `model_repository`; on by
            default. If false, the failure is logged, and the other models are served.
        strict_readiness: Report "not ready" while any model is being loaded, or after one could not be loaded; off by
            default.
        allow_http: Serve HTTP; on by default.
        http_address: Address to serve HTTP at; every address of the host by default.
        http_port: Port to serve HTTP at; 8000 by default, 0 is any free one.
        http_header_forward_pattern: Regular expression (RE2) of the HTTP headers that become request parameters; none
            by default.
        http_thread_count: Threads that handle HTTP requests.
        http_restricted_api: Endpoints that require a header, as ``<api>,<api>:<header>=<value>``.
        allow_grpc: Serve gRPC; on by default.
        grpc_address: Address to serve gRPC at; every address of the host by default.
        grpc_port: Port to serve gRPC at; 8001 by default, 0 is any free one.
        grpc_header_forward_pattern: Regular expression (RE2) of the gRPC headers that become request parameters; none
            by default.
        grpc_infer_allocation_pool_size: Request and response objects kept for reuse.
        grpc_use_ssl: Serve gRPC over TLS; off by default.
        grpc_use_ssl_mutual: Require certificates of clients, too; off by default.
        grpc_server_cert: PEM file with the server's certificate.
        grpc_server_key: PEM file with the server's key.
        grpc_root_cert: PEM file with the root certificate.
        grpc_infer_response_compression_level: ``none``, ``low``, ``medium`` or ``high``.
        grpc_keepalive_time: Milliseconds without activity until a keepalive ping is sent.
        grpc_keepalive_timeout: Milliseconds that a ping waits for its acknowledgement.
        grpc_keepalive_permit_without_calls: Send pings even without calls in flight.
        grpc_http2_max_pings_without_data: Pings that may be sent without data; 0 for no limit.
        grpc_http2_min_recv_ping_interval_without_data: Minimum milliseconds between two pings of a client without data.
        grpc_http2_max_ping_strikes: Bad pings until a connection is closed; 0 for no limit.
        grpc_restricted_protocol: Endpoints that require a header, as ``<protocol>,<protocol>:<header>=<value>``.
        allow_metrics: Serve metrics; on by default.
        allow_gpu_metrics: Include GPUs in the metrics; by default, if there are any.
        allow_cpu_metrics: Include the CPU in the metrics; on by default.
        metrics_interval_ms: Milliseconds between two measurements of CPU and GPUs.
        metrics_port: Port to serve metrics at; 8002 by default, 0 is any free one.
        metrics_address: Address to serve metrics at; that of HTTP by default.
        allow_sagemaker: Serve SageMaker's API; off by default.
        sagemaker_port: Port to serve it at.
        sagemaker_safe_port_range: Ports that other endpoints may have beside it, as ``<first>-<last>``.
        sagemaker_thread_count: Threads that handle its requests.
        allow_vertex_ai: Serve Vertex AI's API; by default, on Vertex AI only.
        vertex_ai_port: Port to serve it at.
        vertex_ai_thread_count: Threads that handle its requests.
        vertex_ai_default_model: Model for its requests that do not name one.
        metrics_config: Settings of the metrics, each ``<setting>=<value>``.
        trace_config: Settings of tracing, each ``<mode>,<setting>=<value>`` or ``<setting>=<value>``.
        cache_config: Settings of the response cache, each ``<cache>,<setting>=<value>``.
        cache_directory: Folder with the caches' libraries.
        buffer_manager_thread_count: Threads that copy tensors within the server.
        backend_config: Settings of backends, each ``<backend>,<setting>=<value>``.
        allow_client_shm: Let clients register shared memory. By default, servers from 2.69 on do not; older ones always
            do.
        http_max_input_size: Bytes that the body of an HTTP request may have, also after decompression; for servers that
            have the flag, whose default is 64 MiB.
        grpc_infer_thread_count: Threads that handle gRPC requests; for servers that have the flag.
        grpc_max_response_pool_size: Responses kept for reuse; for servers that have the flag.
        restart: Restart the server when it exits unexpectedly; on by default. Bound functions and their processes are
            not affected.
        restart_limit: Restarts within ten minutes after which the server stays down; 120 by default.
        drain_secs: Seconds at the start of a stop, during which the server reports that it is not ready but still
            accepts requests, so that load balancers can notice; 0 by default.
        memory_limit: Bytes of the server's own memory at which it is restarted, before the system runs out of memory;
            by default 80 % of what the machine or the container has. 0 for no limit.
        backend_directory: Folder with backends in addition to those of the server.

    Raises:
        PyTritonBadParameterError: A port is out of range, or a value does not have its field's type.
        PyTritonValidationError: Both HTTP and gRPC are off.

    Examples:
        >>> config = TritonConfig(http_port=9000, cache_config=["local,size=1048576"])
    """

    model_repository: pathlib.Path | None = None
    id: str | None = None
    log_verbose: int | None = None
    log_file: pathlib.Path | None = None
    exit_timeout_secs: int | None = None
    exit_on_error: bool | None = None
    strict_readiness: bool | None = None
    allow_http: bool | None = None
    http_address: str | None = None
    http_port: int | None = None
    http_header_forward_pattern: str | None = None
    http_thread_count: int | None = None
    http_restricted_api: str | None = None
    allow_grpc: bool | None = None
    grpc_address: str | None = None
    grpc_port: int | None = None
    grpc_header_forward_pattern: str | None = None
    grpc_infer_allocation_pool_size: int | None = None
    grpc_use_ssl: bool | None = None
    grpc_use_ssl_mutual: bool | None = None
    grpc_server_cert: pathlib.Path | None = None
    grpc_server_key: pathlib.Path | None = None
    grpc_root_cert: pathlib.Path | None = None
    grpc_infer_response_compression_level: str | None = None
    grpc_keepalive_time: int | None = None
    grpc_keepalive_timeout: int | None = None
    grpc_keepalive_permit_without_calls: bool | None = None
    grpc_http2_max_pings_without_data: int | None = None
    grpc_http2_min_recv_ping_interval_without_data: int | None = None
    grpc_http2_max_ping_strikes: int | None = None
    grpc_restricted_protocol: str | None = None
    allow_metrics: bool | None = None
    allow_gpu_metrics: bool | None = None
    allow_cpu_metrics: bool | None = None
    metrics_interval_ms: int | None = None
    metrics_port: int | None = None
    metrics_address: str | None = None
    allow_sagemaker: bool | None = None
    sagemaker_port: int | None = None
    sagemaker_safe_port_range: str | None = None
    sagemaker_thread_count: int | None = None
    allow_vertex_ai: bool | None = None
    vertex_ai_port: int | None = None
    vertex_ai_thread_count: int | None = None
    vertex_ai_default_model: str | None = None
    metrics_config: list[str] | None = None
    trace_config: list[str] | None = None
    cache_config: list[str] | None = None
    cache_directory: str | None = None
    buffer_manager_thread_count: int | None = None
    backend_config: list[str] | None = None
    allow_client_shm: bool | None = None
    http_max_input_size: int | None = None
    grpc_infer_thread_count: int | None = None
    grpc_max_response_pool_size: int | None = None
    restart: bool | None = _own()
    restart_limit: int | None = _own()
    drain_secs: int | None = _own()
    memory_limit: int | None = _own()
    backend_directory: pathlib.Path | None = _own()  # noqa: RUF009  (it returns a field)

    def __post_init__(self) -> None:
        """Converts text such as ``"8000"`` and ``"false"``, and checks types, ports and regular expressions."""
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if value is not None:
                setattr(self, field.name, _typed(value, field.name))
            if field.name.endswith("_port"):
                check_port(field.name, getattr(self, field.name))
            if field.name.endswith("_forward_pattern") and value is not None:
                _check_pattern(field.name, str(value))
        check_front_ends(self)

    def to_dict(self) -> dict[str, Any]:
        """Returns all fields by name; unset ones are None."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, config: dict[str, Any]) -> TritonConfig:
        """Creates a configuration from a dictionary, for example from a file.

        A key that is not a field is ignored, with a warning.

        Args:
            config: Values by field name; text stands for any type (``"8000"``, ``"true"``).

        Returns:
            The configuration.

        Raises:
            PyTritonBadParameterError: A value does not have its field's type.
        """
        if not isinstance(config, Mapping):
            raise PyTritonBadParameterError(f"TritonConfig.from_dict got {config!r}; give it a dictionary.")
        values = {}
        for name, value in config.items():
            if name not in _FIELD_TYPES:
                _warn_of_unknown(f"TritonConfig has no field {name!r}, which is ignored", str(name), "")
            elif value is not None:
                values[name] = _converted(value, _FIELD_TYPES[name], f"TritonConfig.{name}")
        return cls(**values)

    @classmethod
    def from_env(cls) -> TritonConfig:
        """Creates a configuration from environment variables.

        The field ``http_port`` is read from ``PYTRITON_TRITON_CONFIG_HTTP_PORT``; the items of a list, such as
        ``cache_config``, from ``PYTRITON_TRITON_CONFIG_CACHE_CONFIG_0``, ``…_1`` and so on. An empty variable
        is ignored. A variable with that prefix that is not a field is ignored with a warning.

        Returns:
            The configuration.

        Raises:
            PyTritonBadParameterError: A value does not have its field's type.
        """
        values: dict[str, Any] = {}
        items: dict[str, dict[int, str]] = {}
        for variable, text in os.environ.items():
            if not variable.startswith(ENVIRONMENT_PREFIX) or not text:
                continue
            name = variable[len(ENVIRONMENT_PREFIX) :].lower()
            item = _LIST_ITEM.fullmatch(name)
            if name in _FIELD_TYPES:
                values[name] = _converted(text, _FIELD_TYPES[name], f"Environment variable {variable}")
            elif item and _FIELD_TYPES.get(item["field"]) is list:
                items.setdefault(item["field"], {})[int(item["index"])] = text
            else:
                _warn_of_unknown(
                    f"Environment variable {variable} names no field of TritonConfig and is ignored",
                    name,
                    ENVIRONMENT_PREFIX,
                )
        for name, by_index in items.items():
            values[name] = values.get(name, []) + [by_index[index] for index in sorted(by_index)]
        return cls(**values)


def check_front_ends(config: TritonConfig) -> None:
    """Checks that clients can reach the server, over HTTP or gRPC.

    Raises:
        PyTritonValidationError: Both are off.
    """
    if config.allow_http is False and config.allow_grpc is False:
        raise PyTritonValidationError(
            "TritonConfig.allow_http and TritonConfig.allow_grpc are both False, so no client could reach the server; "
            "allow one of them."
        )


def check_port(setting: str, port: Any) -> None:
    """Checks a port.

    Args:
        setting: The field's name.
        port: Its value; None is its default.

    Raises:
        PyTritonBadParameterError: It is not a number from 0 to 65535.
    """
    if port is not None and (isinstance(port, bool) or not isinstance(port, int) or not 0 <= port <= MAX_PORT):
        raise PyTritonBadParameterError(f"TritonConfig.{setting} is {port!r}; use a port from 1 to {MAX_PORT}, or 0.")


def _check_pattern(setting: str, pattern: str) -> None:
    """Refuses a regular expression that RE2 cannot parse, with which the server would forward nothing.

    It finds errors in the syntax that Python and RE2 share, and lookarounds, which only Python has.
    """
    problem = "it has a lookaround" if _LOOKING_AROUND.search(pattern) else ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except re.error as error:
        if error.msg in _COMMON_ERRORS or (error.pos == 0 and error.msg == "nothing to repeat"):
            problem = str(error)
    if problem:
        raise PyTritonBadParameterError(
            f"TritonConfig.{setting} is {pattern!r}, which is not a regular expression of RE2, the server's library "
            f"({problem}); use one such as 'x-.*'."
        )


def overlaid(config: TritonConfig, over: TritonConfig) -> TritonConfig:
    """Returns ``config``, overridden by the fields that are set in ``over``.

    Examples:
        >>> overlaid(TritonConfig(http_port=8000, grpc_port=8001), TritonConfig(http_port=9000)).http_port
        9000
    """
    return dataclasses.replace(config, **{name: value for name, value in over.to_dict().items() if value is not None})


def with_absolute_paths(config: TritonConfig) -> TritonConfig:
    """Returns a configuration whose paths still lead to the same files if the program changes its working directory.

    Examples:
        >>> with_absolute_paths(TritonConfig(log_file="/tmp/log", http_port=8000)).log_file
        PosixPath('/tmp/log')
    """
    folder = working_folder()
    paths = {name: getattr(config, name) for name, type_ in _FIELD_TYPES.items() if type_ is pathlib.Path}
    # Unlike Path.expanduser, this leaves the name of an unknown user to the checks of each setting.
    expanded = {name: os.path.expanduser(path) for name, path in paths.items() if path is not None}  # noqa: PTH111
    return dataclasses.replace(config, **{name: folder / path for name, path in expanded.items()})


# As the server's front ends take IPv6 addresses.
_IPV6_FORMATS = {"http_address": "ipv6:{}", "metrics_address": "ipv6:{}", "grpc_address": "[{}]"}


def server_flags(config: TritonConfig) -> list[str]:
    """Converts a configuration to arguments of tritonserver.

    Args:
        config: The settings; those that are None are omitted.

    Returns:
        One ``--name=value`` for each setting, and one for each item of a list. A False `grpc_use_ssl_mutual` is
        omitted: it is the default, and the flag alone would turn TLS on.

    Examples:
        >>> server_flags(TritonConfig(http_port=8000, allow_grpc=False))
        ['--http-port=8000', '--allow-grpc=false']
    """
    flags = []
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        # Workaround for Triton (mutual-tls-flag): it turns TLS on whenever it sees the flag, even with `false`.
        if value is None or field.metadata or (field.name == "grpc_use_ssl_mutual" and not value):
            continue
        if field.name in _IPV6_FORMATS and ":" in value:
            value = _IPV6_FORMATS[field.name].format(value)
        for item in value if isinstance(value, (list, tuple)) else [value]:
            text = str(item).lower() if isinstance(item, bool) else str(item)
            flags.append(f"--{field.name.replace('_', '-')}={text}")
    return flags


def _field_type(annotation: Any) -> type:
    """Returns `int` of `int | None`, and `list` of `list[str] | None`."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        (annotation,) = (member for member in typing.get_args(annotation) if member is not types.NoneType)
    found: type = typing.get_origin(annotation) or annotation
    return found


_FIELD_TYPES: Mapping[str, type] = {
    name: _field_type(annotation) for name, annotation in typing.get_type_hints(TritonConfig).items()
}


def _typed(value: Any, name: str) -> Any:
    """Returns the value of a field, converted from text if necessary."""
    wanted, what = _FIELD_TYPES[name], f"TritonConfig.{name}"
    if wanted is int:
        return _integer(value, name)
    if wanted is bool:
        return value if isinstance(value, bool) else _converted(value, bool, what)
    if wanted is list and not isinstance(value, str | list | tuple):
        raise PyTritonBadParameterError(f"{what} is {value!r}; use a list of text, each like '<setting>=<value>'.")
    if wanted is str and isinstance(value, list | tuple | Mapping | bytes):
        raise PyTritonBadParameterError(f"{what} is {value!r}; use text.")
    if wanted is pathlib.Path and not _is_path(value):
        raise PyTritonBadParameterError(f"{what} is {value!r}; use a path.")
    return value


def _is_path(value: Any) -> bool:
    """Returns whether it is a path; an empty one, often of a variable that is not set, would be the working folder."""
    return isinstance(value, (str, os.PathLike)) and bool(os.fspath(value))


def _integer(value: Any, name: str) -> Any:
    """Returns an integer field, converted from text if necessary; its range is checked later."""
    if name == "log_verbose" and isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
        return int(value)
    if isinstance(value, float) and value.is_integer() and not name.endswith("_port"):
        return int(value)
    if not isinstance(value, bool) and hasattr(value, "__index__"):
        return operator.index(value)
    if name.endswith("_port"):
        return value
    raise PyTritonBadParameterError(f"TritonConfig.{name} is {value!r}; use an integer.")


def _converted(value: Any, wanted: type, what: str) -> Any:
    if wanted is list and not isinstance(value, Mapping):
        return [str(item) for item in value] if isinstance(value, (list, tuple)) else [str(value)]
    if wanted is pathlib.Path and _is_path(value):
        return pathlib.Path(value)
    if wanted is str and not isinstance(value, (list, tuple, dict)):
        return str(value)
    if wanted is bool:
        boolean = _BOOLEANS.get(str(value).strip().lower())
        if boolean is None:
            raise PyTritonBadParameterError(f"{what} is {value!r}; use true or false.")
        return boolean
    if wanted is int and not isinstance(value, (bool, float)):
        try:
            return int(value)
        except (TypeError, ValueError):
            pass
    kind = {int: "an integer", str: "text", pathlib.Path: "a path", list: "a list of text"}[wanted]
    raise PyTritonBadParameterError(f"{what} is {value!r}; use {kind}.")


def _warn_of_unknown(problem: str, name: str, prefix: str) -> None:
    near = nearest(name, _FIELD_TYPES)
    meant = f"{prefix}{near.upper()}" if prefix and near else near
    LOGGER.warning("%s%s", problem, f"; did you mean {meant}?" if meant else ".")
