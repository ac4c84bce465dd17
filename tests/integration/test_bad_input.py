"""Mistakes of the user and the machine are found early, and reported in one helpful sentence."""

from __future__ import annotations

import numpy as np
import pytest
from serving import (
    FLOATS_IN,
    FLOATS_OUT,
    LATER,
    bind_floats,
    check_message,
    double,
    free_config,
    request_json,
    running_triton,
    send_floats,
    servers,
    token_of,
)

from pytriton.decorators import batch
from pytriton.exceptions import (
    PyTritonBadParameterError,
    PyTritonModelConfigError,
    PyTritonRuntimeError,
    PyTritonValidationError,
)
from pytriton.model_config import DynamicBatcher, ModelConfig, Tensor
from pytriton.model_config.common import ModelWarmup, WarmupInput
from pytriton.triton import Triton, TritonLifecyclePolicy, TritonSecurityConfig

LATER_WITH_MODELS = TritonLifecyclePolicy(launch_triton_on_startup=False, local_model_store=True)
# Where root may not make anything either.
NOT_WRITABLE = "/sys/kernel/pytriton"
ZEROS = WarmupInput(np.float32, (1,), zero_data=True)
triple = batch(lambda x: [x * 3])


def warmed_up(**inputs):
    return ModelConfig(model_warmup=[ModelWarmup("zeros", 1, inputs, 1)])


def bound(name="Model", inputs=FLOATS_IN, outputs=FLOATS_OUT, config=None, **settings):
    """What `Triton.bind` is given; the settings are those of `ModelConfig`."""
    return {"model_name": name, "inputs": inputs, "outputs": outputs, "config": config or ModelConfig(**settings)}


BINDINGS = {
    "a name with a slash": (
        lambda _: bound("a/b"),
        PyTritonBadParameterError,
        ["Model name", "'a/b'", "use 1 to 255 letters"],
    ),
    "an empty name": (lambda _: bound(""), PyTritonBadParameterError, ["Model name", "''", "use 1 to 255 letters"]),
    "inputs that share a name": (
        lambda _: bound(inputs=FLOATS_IN * 2),
        PyTritonBadParameterError,
        ["'Model'", "two inputs named", "'x'", "give each a name of its own"],
    ),
    "a dtype that Triton lacks": (
        lambda _: bound(inputs=[Tensor(name="x", shape=(1,), dtype=np.complex64)]),
        PyTritonBadParameterError,
        ["Tensor 'x'", "dtype complex64", "use one of bool, uint8"],
    ),
    "a negative batch size": (
        lambda _: bound(max_batch_size=-1),
        PyTritonBadParameterError,
        ["ModelConfig.max_batch_size", "is -1", "use an integer from 1"],
    ),
    "a batch size of zero": (
        lambda _: bound(max_batch_size=0),
        PyTritonBadParameterError,
        ["ModelConfig.max_batch_size", "is 0", "use an integer from 1"],
    ),
    "a preferred batch size over the maximum": (
        lambda _: bound(max_batch_size=4, batcher=DynamicBatcher(preferred_batch_size=[8])),
        PyTritonModelConfigError,
        ["DynamicBatcher.preferred_batch_size", "has 8", "max_batch_size of 4", "raise max_batch_size, or drop"],
    ),
    "a warm-up of an input that is not there": (
        lambda _: bound(config=warmed_up(x=ZEROS, z=ZEROS)),
        PyTritonModelConfigError,
        ["'Model'", "warm-up 'zeros'", "the input 'z'", "drop it, or use one of its inputs, 'x'"],
    ),
    "a warm-up file that does not exist": (
        lambda folder: bound(
            config=warmed_up(x=WarmupInput(np.float32, (1,), input_data_file=str(folder / "missing")))
        ),
        PyTritonBadParameterError,
        ["'Model'", "warm-up 'zeros'", "input 'x'", "/missing'", "write the path of one"],
    ),
}


@pytest.mark.parametrize("mistake", BINDINGS)
def test_a_mistake_in_a_binding_is_reported_before_the_server_is_contacted(triton, name, tmp_path, mistake):
    make, error, parts = BINDINGS[mistake]

    with pytest.raises(error) as caught:
        triton.bind(infer_func=double, **make(tmp_path))

    check_message(caught.value.message, parts)
    _, index = request_json(triton, "POST", "/v2/repository/index", headers=token_of(triton))
    assert "Model" not in {each["name"] for each in index}
    bind_floats(triton, name, double)
    assert send_floats(triton, name, [1]) == [2]


def test_mistakes_in_bindings_are_reported_before_the_server_starts(tmp_path):
    triton = Triton(config=free_config(), triton_lifecycle_policy=LATER)
    for make, error, parts in BINDINGS.values():
        with pytest.raises(error) as caught:
            triton.bind(infer_func=double, **make(tmp_path))
        check_message(caught.value.message, parts)

    with triton:
        bind_floats(triton, "double", double)
        triton.run()
        assert send_floats(triton, "double", [1]) == [2]


def test_versions_with_different_inputs_are_refused_before_the_server_starts():
    triton = Triton(config=free_config(), triton_lifecycle_policy=LATER)
    bind_floats(triton, "Model", double, model_version=1)

    with pytest.raises(PyTritonModelConfigError) as caught:
        triton.bind("Model", double, [Tensor(name="x", shape=(3,), dtype=bool)], FLOATS_OUT, model_version=2)

    check_message(caught.value.message, ["Versions 1 and 2", "'Model'", "inputs", "make them equal, or use another"])


def test_binding_a_version_with_other_inputs_replaces_it(triton, name):
    bind_floats(triton, name, double)
    triton.bind(name, batch(lambda a: [a]), [Tensor(name="a", shape=(-1,), dtype=np.float32)], FLOATS_OUT)

    _, metadata = request_json(triton, "GET", f"/v2/models/{name}")
    assert [each["name"] for each in metadata["inputs"]] == ["a"]


def test_a_response_cache_without_a_cache_in_the_server_is_warned_about(triton, name, caplog):
    bind_floats(triton, name, double, config=ModelConfig(response_cache=True))

    assert send_floats(triton, name, [1]) == [2]
    (warning,) = [each.getMessage() for each in caplog.records if each.name.startswith("pytriton.server.settings")]
    check_message(warning, [name, "ModelConfig.response_cache", "cache_config is None", "start it with", "or drop"])


def settings(**config):
    return {"config": free_config(**config)}


def tls(folder, **files):
    return settings(grpc_use_ssl=True, **{name: folder / file for name, file in files.items()})


# The folder has a `file`, and a `folder`.
SERVERS = {
    "HTTP and gRPC both off": (
        lambda _: settings(allow_http=False, allow_grpc=False),
        PyTritonValidationError,
        ["TritonConfig.allow_http and TritonConfig.allow_grpc", "both False", "allow one of them"],
    ),
    "an endpoint that does not exist": (
        lambda _: {"security_config": TritonSecurityConfig(restricted_endpoints=["metrics"]), **settings()},
        PyTritonValidationError,
        ["TritonSecurityConfig.restricted_endpoints", "'metrics'", "use", "inference", "model-repository", "trace"],
    ),
    "a file for a workspace": (
        lambda folder: {"workspace": folder / "file", **settings()},
        PyTritonBadParameterError,
        ["workspace", "/file'", "is not a folder", "name another folder by workspace="],
    ),
    "a workspace that may not be written": (
        lambda _: {"workspace": NOT_WRITABLE, **settings()},
        PyTritonRuntimeError,
        ["workspace", f"'{NOT_WRITABLE}'", "cannot be written (", "name another folder by workspace="],
    ),
    "a log file in a folder that does not exist": (
        lambda folder: settings(log_file=folder / "missing" / "log"),
        PyTritonBadParameterError,
        ["TritonConfig.log_file", "/missing/log'", "cannot be written (No such file", "name a file in a folder that"],
    ),
    "a log file that is a folder": (
        lambda folder: settings(log_file=folder / "folder"),
        PyTritonBadParameterError,
        ["TritonConfig.log_file", "/folder'", "cannot be written (Is a directory)", "name a file"],
    ),
    "a log file that may not be written": (
        lambda _: settings(log_file=NOT_WRITABLE),
        PyTritonBadParameterError,
        ["TritonConfig.log_file", f"'{NOT_WRITABLE}'", "cannot be written (", "name a file"],
    ),
    "a model repository that does not exist": (
        lambda folder: settings(model_repository=folder / "missing"),
        PyTritonBadParameterError,
        ["TritonConfig.model_repository", "/missing'", "(No such file or directory)", "name a folder"],
    ),
    "a model repository that is a file": (
        lambda folder: settings(model_repository=folder / "file"),
        PyTritonBadParameterError,
        ["TritonConfig.model_repository", "/file'", "(Not a directory)", "name a folder"],
    ),
    "a cache without a size": (
        lambda _: settings(cache_config=["local,verbose=1"]),
        PyTritonBadParameterError,
        ["TritonConfig.cache_config", "'local,verbose=1'", "no size", "such as 'local,size=1048576'"],
    ),
    "a cache without a setting": (
        lambda _: settings(cache_config=["local"]),
        PyTritonBadParameterError,
        ["TritonConfig.cache_config", "'local'", "use <cache>,<setting>=<value>", "'local,size=1048576'"],
    ),
    "settings of tracing without a value": (
        lambda _: settings(trace_config=["opentelemetry"]),
        PyTritonBadParameterError,
        ["TritonConfig.trace_config", "'opentelemetry'", "use <setting>=<value>", "such as 'mode=opentelemetry'"],
    ),
    "settings of a backend without a value": (
        lambda _: settings(backend_config="python"),
        PyTritonBadParameterError,
        ["TritonConfig.backend_config", "'python'", "use <backend>,<setting>=<value>, such as"],
    ),
    "a level of compression that there is not": (
        lambda _: settings(grpc_infer_response_compression_level="max"),
        PyTritonBadParameterError,
        ["TritonConfig.grpc_infer_response_compression_level", "'max'", "use none, low, medium, high"],
    ),
    "backends in a folder that does not exist": (
        lambda folder: settings(backend_directory=str(folder / "missing")),
        PyTritonBadParameterError,
        ["TritonConfig.backend_directory", "/missing'", "which is not a folder", "name one with a folder for each"],
    ),
    "an address that is none": (
        lambda _: settings(http_address="http://localhost"),
        PyTritonBadParameterError,
        ["http://localhost port 0", "TritonConfig.http_address", "use an address of this machine, such as '127.0.0.1'"],
    ),
    "TLS without a certificate": (
        lambda folder: tls(folder),
        PyTritonBadParameterError,
        ["TritonConfig.grpc_use_ssl is True", "TritonConfig.grpc_server_cert is None", "name the PEM file"],
    ),
    "TLS without a key": (
        lambda folder: tls(folder, grpc_server_cert="file"),
        PyTritonBadParameterError,
        ["TritonConfig.grpc_use_ssl is True", "TritonConfig.grpc_server_key is None", "name the PEM file"],
    ),
    "a certificate that does not exist": (
        lambda folder: tls(folder, grpc_server_cert="missing", grpc_server_key="file"),
        PyTritonBadParameterError,
        ["TritonConfig.grpc_server_cert", "/missing'", "cannot be read (No such file", "name a PEM file"],
    ),
    "a certificate that is none": (
        lambda folder: tls(folder, grpc_server_cert="file", grpc_server_key="file"),
        PyTritonBadParameterError,
        ["TritonConfig.grpc_server_cert", "/file'", "TLS cannot use", "use a PEM certificate"],
    ),
    "a negative exit timeout": (
        lambda _: settings(exit_timeout_secs=-1),
        PyTritonBadParameterError,
        ["TritonConfig.exit_timeout_secs", "is -1", "use an integer from 0"],
    ),
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    return tmp_path


@pytest.mark.parametrize("mistake", SERVERS)
def test_a_mistake_in_the_settings_is_reported_before_the_server_starts(folder, mistake):
    make, error, parts = SERVERS[mistake]
    before = servers()

    with pytest.raises(error) as caught:
        Triton(**make(folder)).run()

    check_message(caught.value.message, parts)
    assert servers() == before
    assert (folder / "file").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"monitoring_period_s": "10"}, "serve: monitoring_period_s is '10'; use a number of seconds."),
        ({"gateway": True}, "serve: gateway is True; use a GatewayConfig."),
        ({"gateway": {"port": 8080}}, "serve: gateway is {'port': 8080}; use GatewayConfig(port=...)."),
    ],
)
def test_a_mistake_in_arguments_of_serve_is_reported_before_the_server_starts(arguments, message):
    triton = Triton(config=free_config())

    with pytest.raises(PyTritonBadParameterError) as caught:
        triton.serve(**arguments)

    assert caught.value.message == message
    assert not triton.is_alive()


def test_a_mistake_in_an_environment_variable_is_reported_before_the_start(monkeypatch, tmp_path):
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_LOG_FILE", str(tmp_path / "missing" / "log"))

    with pytest.raises(PyTritonBadParameterError, match=r"TritonConfig\.log_file is '.*/missing/log', which cannot be"):
        running_triton().run()


def test_a_mistake_found_at_the_start_can_be_corrected(tmp_path):
    log_file = tmp_path / "logs" / "server.log"
    triton = Triton(config=free_config(log_file=log_file), triton_lifecycle_policy=LATER)
    bind_floats(triton, "double", double)
    with pytest.raises(PyTritonBadParameterError, match=r"TritonConfig\.log_file"):
        triton.run()
    assert not triton.is_alive()

    log_file.parent.mkdir()
    with triton:
        triton.run()
        assert send_floats(triton, "double", [1]) == [2]
        assert "successfully loaded 'double'" in log_file.read_text()


def test_a_failed_start_names_the_log_file_with_the_reason(tmp_path):
    log_file = tmp_path / "server.log"
    program = tmp_path / "bin" / "tritonserver"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\necho the reason > {log_file}\nexit 7\n")
    program.chmod(0o755)
    triton = Triton(config=free_config(log_file=log_file), server_path=tmp_path)

    with pytest.raises(PyTritonRuntimeError) as caught:
        triton.run()

    assert caught.value.message == (
        f"The server exited unexpectedly: it exited with status 7; see its log, '{log_file}' (TritonConfig.log_file)."
    )


def test_the_last_lines_that_are_not_in_the_log_file_are_reported_too(tmp_path):
    with pytest.raises(PyTritonRuntimeError, match=r"see its log, '.*'.*\n.*nosuchcache"):
        running_triton(cache_config=["nosuchcache,size=1"], log_file=tmp_path / "server.log").run()
