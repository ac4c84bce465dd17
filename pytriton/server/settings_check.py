"""Finds mistakes in the server's settings that the server would report unclearly or ignore.

Triton itself ignores a log file that it cannot open, reports an unreadable certificate as a port in use, and ignores a
missing root certificate.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pathlib
import ssl

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config.common import MAX_INT32, MAX_INT64, check_integer
from pytriton.model_config.model_spec import ModelSpec
from pytriton.server.config import TritonConfig

LOGGER = logging.getLogger(__name__)

_METRICS_SWITCHES = ("counter_latencies", "summary_latencies", "histogram_latencies")
_METRICS_EXAMPLE = "'summary_latencies=true'"
_QUANTILES_EXAMPLE = "'summary_quantiles=0.5:0.05,0.99:0.001'"
_CACHE_EXAMPLE = "'local,size=1048576'"
_FORMS = {
    "trace_config": "<setting>=<value> or <mode>,<setting>=<value>, such as 'mode=opentelemetry'",
    "backend_config": "<backend>,<setting>=<value>, such as 'onnxruntime,default-max-batch-size=8'",
}
_MAX_INPUT_BYTES = "PYTRITON_MAX_INPUT_BYTES"
_COMPRESSION_LEVELS = ("none", "low", "medium", "high")


def check_settings(config: TritonConfig) -> None:
    """Checks the server's settings against each other, and against the files that they name.

    Ports and addresses are checked by `with_ports`.

    Args:
        config: The server's settings.

    Raises:
        PyTritonBadParameterError: A setting has an invalid value, or lacks another one that it needs.
    """
    _check_numbers(config)
    _check_log_file(config)
    _check_model_repository(config)
    _check_cache(config)
    _check_metrics(config)
    _check_forms(config)
    _check_max_input_bytes()
    if config.allow_grpc is not False and (config.grpc_use_ssl or config.grpc_use_ssl_mutual):
        _check_tls(config)


def check_model(spec: ModelSpec, config: TritonConfig) -> None:
    """Warns if a model uses the response cache but the server has none.

    Args:
        spec: The model.
        config: The server's settings.
    """
    if spec.response_cache and not config.cache_config:
        LOGGER.warning(
            "Model %r has ModelConfig.response_cache, but TritonConfig.cache_config is %r and the server has no cache; "
            "start it with TritonConfig(cache_config=[%s]), or drop response_cache.",
            spec.name,
            config.cache_config,
            _CACHE_EXAMPLE,
        )


def _check_max_input_bytes() -> None:
    """Checks the guard's limit, of which the guard would read only the digits at the beginning: 2 bytes of ``2G``."""
    text = os.environ.get(_MAX_INPUT_BYTES, "")
    if text and not (text.isascii() and text.isdecimal() and 1 <= int(text) <= MAX_INT64):
        raise PyTritonBadParameterError(
            f"The environment variable {_MAX_INPUT_BYTES} is {text!r}; give a number of bytes, such as 2147483648."
        )


def _check_numbers(config: TritonConfig) -> None:
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.type == "int | None" and value is not None and not field.name.endswith("_port"):
            most = MAX_INT64 if field.name in ("memory_limit", "http_max_input_size") else MAX_INT32
            least = 1 if field.name == "metrics_interval_ms" else 0  # at 0, it would keep a processor busy
            check_integer(f"TritonConfig.{field.name}", value, least, most)


def _check_log_file(config: TritonConfig) -> None:
    if config.log_file is None:
        return
    path = pathlib.Path(config.log_file)
    try:
        is_new = not (path.is_symlink() or path.exists())
        if is_new or path.is_file() or path.is_dir():  # opening it might disturb a pipe or a device
            os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600))
        if is_new:
            path.unlink()
    except OSError as error:
        raise PyTritonBadParameterError(
            f"TritonConfig.log_file is {str(path)!r}, which cannot be written ({error.strerror}); name a file in a "
            "folder that exists and that you may write to."
        ) from error


def _check_model_repository(config: TritonConfig) -> None:
    if config.model_repository is None:
        return
    try:
        models = [each for each in os.scandir(config.model_repository) if each.is_dir() and each.name[0] != "."]
    except OSError as error:
        raise PyTritonBadParameterError(
            f"TritonConfig.model_repository is {str(config.model_repository)!r}, which cannot be read as a folder "
            f"({error.strerror}); name a folder that has a folder for each model."
        ) from error
    if models and all(each.name.isdecimal() and (pathlib.Path(each) / "model.py").is_file() for each in models):
        raise PyTritonBadParameterError(
            f"TritonConfig.model_repository is {str(config.model_repository)!r}, which is the folder of a model, with "
            "its versions; name the folder above it."
        )
    if not models:
        LOGGER.warning(
            "TritonConfig.model_repository is %r, which has no model; each has a folder there.",
            str(config.model_repository),
        )


def _check_cache(config: TritonConfig) -> None:
    given = config.cache_config or ()
    items = [given] if isinstance(given, str) else list(given)
    sizes = []
    for item in items:
        cache, _, setting = str(item).partition(",")
        name, _, value = setting.partition("=")
        if not (cache and name and value):
            raise PyTritonBadParameterError(
                f"TritonConfig.cache_config has {item!r}; use <cache>,<setting>=<value>, such as {_CACHE_EXAMPLE}."
            )
        if cache == "local":
            sizes.append(value if name == "size" else "")
    # Triton uses the last one.
    size = next((each for each in reversed(sizes) if each), "0")
    if sizes and not (size.strip().isdecimal() and int(size)):
        raise PyTritonBadParameterError(
            f"TritonConfig.cache_config is {items!r}, which gives the local cache no size; use a number of bytes above "
            f"0, such as {_CACHE_EXAMPLE}."
        )


def _check_metrics(config: TritonConfig) -> None:
    """Checks the settings of the metrics: the server ignores most values that it does not understand."""
    given = config.metrics_config or ()
    for item in [given] if isinstance(given, str) else list(given):
        setting, _, value = str(item).partition("=")
        if not (setting and value):
            wanted = f"<setting>=<value>, such as {_METRICS_EXAMPLE}"
        elif setting in _METRICS_SWITCHES and value not in ("true", "false"):
            wanted = f"true or false, such as {_METRICS_EXAMPLE}"
        elif setting == "summary_quantiles" and not all(map(_is_quantile, value.split(","))):
            wanted = f"<quantile>:<error> from 0 to 1 each, such as {_QUANTILES_EXAMPLE}"
        else:
            continue
        raise PyTritonBadParameterError(f"TritonConfig.metrics_config has {item!r}; use {wanted}.")


def _check_forms(config: TritonConfig) -> None:
    """Checks settings for which the server would otherwise print its whole usage text."""
    for name, form in _FORMS.items():
        given = getattr(config, name) or ()
        for item in [given] if isinstance(given, str) else given:
            if "=" not in str(item):
                raise PyTritonBadParameterError(f"TritonConfig.{name} has {item!r}; use {form}.")
    level = config.grpc_infer_response_compression_level
    if level is not None and level not in _COMPRESSION_LEVELS:
        raise PyTritonBadParameterError(
            f"TritonConfig.grpc_infer_response_compression_level is {level!r}; use {', '.join(_COMPRESSION_LEVELS)}."
        )


def _is_quantile(text: str) -> bool:
    try:
        numbers = [float(number) for number in text.split(":")]
    except ValueError:
        return False
    return len(numbers) == 2 and all(0 <= number <= 1 for number in numbers)


def _check_tls(config: TritonConfig) -> None:
    wanted = ["grpc_server_cert", "grpc_server_key", *(["grpc_root_cert"] if config.grpc_use_ssl_mutual else [])]
    switch = "grpc_use_ssl_mutual" if config.grpc_use_ssl_mutual else "grpc_use_ssl"
    for name in wanted:
        path = getattr(config, name)
        if path is None:
            raise PyTritonBadParameterError(
                f"TritonConfig.{switch} is True and TritonConfig.{name} is None; name the PEM file for {name}, or "
                f"drop {switch}."
            )
        try:
            pathlib.Path(path).open("rb").close()
        except OSError as error:
            raise PyTritonBadParameterError(
                f"TritonConfig.{name} is {str(path)!r}, which cannot be read ({error.strerror}); name a PEM file."
            ) from error
    _check_certificates(config)
    if config.allow_http is False:
        raise PyTritonBadParameterError(
            f"TritonConfig.{switch} is True and TritonConfig.allow_http is False, but PyTriton itself controls the "
            "server without TLS; allow HTTP, for this host alone with TritonConfig(http_address='127.0.0.1')."
        )


def _check_certificates(config: TritonConfig) -> None:
    """Reads the certificates as the server will."""
    certificate, key = str(config.grpc_server_cert), str(config.grpc_server_key)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with contextlib.suppress(ssl.SSLError):
        context.set_ciphers("ALL:@SECLEVEL=0")  # the server decides how weak they may be
    try:
        context.load_cert_chain(certificate, key, password="")  # the server has no password either
    except ssl.SSLError as error:
        raise PyTritonBadParameterError(
            f"TritonConfig.grpc_server_cert is {certificate!r} and TritonConfig.grpc_server_key is {key!r}, which TLS "
            f"cannot use{_reason(error)}; use a PEM certificate, and its own key without a password."
        ) from error
    if not config.grpc_use_ssl_mutual:
        return
    root = str(config.grpc_root_cert)
    try:
        context.load_verify_locations(root)
    except ssl.SSLError as error:
        raise PyTritonBadParameterError(
            f"TritonConfig.grpc_root_cert is {root!r}, which TLS cannot use{_reason(error)}; use a PEM file with the "
            "certificate that has signed the clients'."
        ) from error


def _reason(error: ssl.SSLError) -> str:
    return f" ({error.reason.replace('_', ' ').lower()})" if error.reason else ""
