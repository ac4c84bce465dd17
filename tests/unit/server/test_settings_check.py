"""Mistakes in the server's settings and in the files that they name."""

from __future__ import annotations

import dataclasses
import os

import pytest

from pytriton.exceptions import PyTritonBadParameterError
from pytriton.model_config import ModelConfig, ModelSpec, Tensor
from pytriton.server.config import TritonConfig
from pytriton.server.settings_check import check_model, check_settings

# A certificate of localhost, for tests alone: its key, the same with a password, and the key of another certificate.
CERTIFICATE = """
MIIBnDCCAUGgAwIBAgIUD823oxj4fcPonluJ/zoxeRa7aREwCgYIKoZIzj0EAwIw
FDESMBAGA1UEAwwJbG9jYWxob3N0MCAXDTI2MTEyMTE4MjIwNVoYDzIxMjYxMDI4
MTgyMjA1WjAUMRIwEAYDVQQDDAlsb2NhbGhvc3QwWTATBgcqhkjOPQIBBggqhkjO
PQMBBwNCAAQpABtw8d8RGdemzLRxy2CVqvycSMk+bOyyGkwm5jwhRX9mHNa1rDzT
qpRhbZ2D9QNLE7I7ebfGGEKIqYtiJhJ3o28wbTAdBgNVHQ4EFgQUjEqDq5plaLZq
2sqToMZWO0h8qrQwHwYDVR0jBBgwFoAUjEqDq5plaLZq2sqToMZWO0h8qrQwDwYD
VR0TAQH/BAUwAwEB/zAaBgNVHREEEzARgglsb2NhbGhvc3SHBH8AAAEwCgYIKoZI
zj0EAwIDSQAwRgIhALzSGQXbNgZlBqwsqD5vzH+UP/gVXOQeFwqXUXd7fRf5AiEA
8IErjQ1qPWia8UH8s+2Mha3c/7riTr4QNgbFdylV4Ls="""
KEY = """
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgzJVq7+30EwIl3s/7
GCOIqVNkKrPswFmsFNXSqB+VoDWhRANCAAQpABtw8d8RGdemzLRxy2CVqvycSMk+
bOyyGkwm5jwhRX9mHNa1rDzTqpRhbZ2D9QNLE7I7ebfGGEKIqYtiJhJ3"""
ENCRYPTED_KEY = """
MIHsMFcGCSqGSIb3DQEFDTBKMCkGCSqGSIb3DQEFDDAcBAg6SyD9ucvTXAICCAAw
DAYIKoZIhvcNAgkFADAdBglghkgBZQMEASoEELQe9LolpAvOYMaHAoeAaNYEgZCZ
HS/VosSFGUSYq7BhhkglYwo2zo/SRTk4TjT7qFEDDp9nBMe0yry6W06ji6secFu2
ujiLq/oqTw48DzYFf3cFxMeliqiXcO+79VfrFrtzNfCr0lU5mTgJCxyacnHGXZcD
Yz+20K67xzogmgTA4w/lXhR1KbOx6IIN5mLM6lzRjSqCeKAk6HuuSX8eAwhttjM="""
OTHER_KEY = """
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgVtzeqK/j80niVWAK
HL40htyntECL5TPiT4sBi6PSGCKhRANCAAR+tbC/HhIM8juanryx2ppTpi0Ez8+g
BNF0WFw9buG2PhW/EB8Tgs4IDOIkrTYQNAcDMmG+5nIK/LGnja9YdY0o"""


def pem(kind, content):
    return f"-----BEGIN {kind}-----{content}\n-----END {kind}-----\n"


@pytest.fixture
def tls(tmp_path):
    """Settings of a server with TLS that works."""
    (tmp_path / "server.crt").write_text(pem("CERTIFICATE", CERTIFICATE))
    (tmp_path / "server.key").write_text(pem("PRIVATE KEY", KEY))
    return TritonConfig(
        grpc_use_ssl=True, grpc_server_cert=tmp_path / "server.crt", grpc_server_key=tmp_path / "server.key"
    )


def refused(config, *parts):
    """The settings are refused in one sentence that has these parts, in this order."""
    with pytest.raises(PyTritonBadParameterError) as caught:
        check_settings(config)
    message = caught.value.message
    places = [message.find(part) for part in parts]
    assert -1 not in places, message
    assert places == sorted(places), message
    assert message.endswith(".")
    assert "\n" not in message


def test_default_settings_are_valid():
    check_settings(TritonConfig())


@pytest.mark.parametrize("name", ["log_verbose", "exit_timeout_secs", "http_thread_count", "memory_limit"])
@pytest.mark.parametrize("value", [-1, 2**63])
def test_a_number_out_of_range_is_refused(name, value):
    refused(TritonConfig(**{name: value}), f"TritonConfig.{name} is {value!r}", "use an integer from 0")


def test_every_number_but_a_port_is_checked():
    config = TritonConfig()
    units = ("_count", "_secs", "_ms", "_size", "_strikes", "_limit")
    numbers = [name for name in config.to_dict() if name.endswith(units)]

    assert len(numbers) == 14
    for name in numbers:
        if name != "metrics_interval_ms":
            check_settings(TritonConfig(**{name: 0}))
        refused(TritonConfig(**{name: -1}), f"TritonConfig.{name} is -1")


def test_metrics_without_a_pause_are_refused():
    check_settings(TritonConfig(metrics_interval_ms=1))
    refused(TritonConfig(metrics_interval_ms=0), "TritonConfig.metrics_interval_ms is 0", "use an integer from 1")


@pytest.mark.parametrize(
    "items",
    [
        ["summary_latencies=true", "counter_latencies=false"],
        ["summary_latencies=true", "summary_quantiles=0.5:0.05,1:0"],
        ["a_setting_of_another_version=7"],
        "summary_latencies=true",
        [],
    ],
    ids=repr,
)
def test_valid_settings_of_metrics_are_accepted(items):
    check_settings(TritonConfig(metrics_config=items))


@pytest.mark.parametrize(
    ("item", "wanted"),
    [
        ("summary_latencies", "use <setting>=<value>, such as 'summary_latencies=true'"),
        ("=true", "use <setting>=<value>"),
        ("summary_latencies=", "use <setting>=<value>"),
        ("summary_latencies=yes", "use true or false, such as 'summary_latencies=true'"),
        ("counter_latencies=1", "use true or false"),
        ("summary_quantiles=0.5", "use <quantile>:<error> from 0 to 1 each, such as 'summary_quantiles=0.5:0.05,0.99"),
        ("summary_quantiles=50:5", "use <quantile>:<error>"),
        ("summary_quantiles=0.5:0.05;0.9:0.01", "use <quantile>:<error>"),
    ],
)
def test_invalid_settings_of_metrics_are_refused(item, wanted):
    refused(TritonConfig(metrics_config=[item]), f"TritonConfig.metrics_config has {item!r}", wanted)


def test_a_log_file_in_a_folder_that_does_not_exist_is_refused(tmp_path):
    path = tmp_path / "missing" / "log"

    refused(TritonConfig(log_file=path), f"TritonConfig.log_file is '{path}'", "No such file or directory", "name a")


def test_a_log_file_that_is_a_folder_is_refused(tmp_path):
    refused(TritonConfig(log_file=tmp_path), f"TritonConfig.log_file is '{tmp_path}'", "Is a directory", "name a file")


def test_an_unwritable_log_file_is_refused():
    # Where root may not make files either.
    refused(TritonConfig(log_file="/sys/kernel/log"), "'/sys/kernel/log', which cannot be written (", "name a file")


def test_checking_a_log_file_leaves_no_file_and_changes_none(tmp_path):
    check_settings(TritonConfig(log_file=tmp_path / "new"))
    assert not (tmp_path / "new").exists()

    (tmp_path / "old").write_text("before\n")
    check_settings(TritonConfig(log_file=str(tmp_path / "old")))
    assert (tmp_path / "old").read_text() == "before\n"


@pytest.mark.timeout(20)
def test_a_log_file_may_be_a_pipe_a_device_or_a_link(tmp_path):
    os.mkfifo(tmp_path / "pipe")  # to open it would wait for a reader
    (tmp_path / "link").symlink_to(tmp_path / "not there yet")
    for path in (tmp_path / "pipe", "/dev/null", tmp_path / "link"):
        check_settings(TritonConfig(log_file=path))

    assert (tmp_path / "link").is_symlink()


@pytest.mark.parametrize("text", ["2G", "-1", "0", "1e9", "9223372036854775808"])
def test_a_limit_of_inputs_that_is_no_number_of_bytes_is_refused(monkeypatch, text):
    monkeypatch.setenv("PYTRITON_MAX_INPUT_BYTES", text)
    refused(TritonConfig(), f"PYTRITON_MAX_INPUT_BYTES is '{text}'", "give a number of bytes")


@pytest.mark.parametrize("text", ["", "4294967296"])
def test_a_limit_of_inputs_in_bytes(monkeypatch, text):
    monkeypatch.setenv("PYTRITON_MAX_INPUT_BYTES", text)
    check_settings(TritonConfig())


def test_a_model_repository_that_does_not_exist_is_refused(tmp_path):
    path = tmp_path / "models"

    refused(TritonConfig(model_repository=path), f"TritonConfig.model_repository is '{path}'", "No such", "name a fold")


def test_a_model_repository_that_is_a_file_is_refused(tmp_path):
    path = tmp_path / "models"
    path.touch()

    refused(TritonConfig(model_repository=path), f"TritonConfig.model_repository is '{path}'", "Not a dir", "name a fo")


def test_the_folder_of_a_model_is_refused_as_a_repository(tmp_path):
    version = tmp_path / "Double" / "1"
    version.mkdir(parents=True)
    (version / "model.py").touch()

    refused(TritonConfig(model_repository=version.parent), "is the folder of a model", "name the folder above it")
    check_settings(TritonConfig(model_repository=tmp_path))


def test_an_empty_model_repository_is_warned_about(tmp_path, caplog):
    (tmp_path / "README.md").touch()
    (tmp_path / ".git").mkdir()
    check_settings(TritonConfig(model_repository=tmp_path))
    assert f"TritonConfig.model_repository is '{tmp_path}', which has no model" in caplog.text

    caplog.clear()
    (tmp_path / "model").mkdir()
    check_settings(TritonConfig(model_repository=tmp_path))
    assert not caplog.text
    check_settings(TritonConfig(model_repository=str(tmp_path)))


@pytest.mark.parametrize("item", ["", "local", "local,", "local,size", "local,size=", "size=1048576", ",size=1"])
def test_a_malformed_cache_setting_is_refused(item):
    refused(TritonConfig(cache_config=[item]), f"TritonConfig.cache_config has {item!r}", "use <cache>,<setting>=")


@pytest.mark.parametrize("item", ["local,foo=1", "local,size=0", "local,size=-1", "local,size=1MB"])
def test_a_local_cache_without_a_size_is_refused(item):
    refused(TritonConfig(cache_config=[item]), f"TritonConfig.cache_config is [{item!r}]", "no size", "use a number")


@pytest.mark.parametrize(
    "items", [[], ["local,size=1048576"], ["local,size=1048576", "local,foo=1"], ["redis,host=x"], "local,size=1048576"]
)
def test_other_caches_are_left_to_the_server(items):
    check_settings(TritonConfig(cache_config=items))


def test_tls_with_a_certificate_and_its_key_is_accepted(tls):
    check_settings(tls)
    check_settings(dataclasses.replace(tls, grpc_use_ssl_mutual=True, grpc_root_cert=tls.grpc_server_cert))


@pytest.mark.parametrize("missing", ["grpc_server_cert", "grpc_server_key"])
def test_tls_without_a_certificate_or_a_key_is_refused(tls, missing):
    config = dataclasses.replace(tls, **{missing: None})

    refused(config, f"TritonConfig.grpc_use_ssl is True and TritonConfig.{missing} is None", "name the PEM file")


@pytest.mark.parametrize("use_ssl", [True, None, False])  # the flag of mutual TLS alone turns TLS on
def test_mutual_tls_without_a_root_certificate_is_refused(tls, use_ssl):
    config = dataclasses.replace(tls, grpc_use_ssl=use_ssl, grpc_use_ssl_mutual=True)

    refused(config, "TritonConfig.grpc_use_ssl_mutual is True and TritonConfig.grpc_root_cert is None", "name the PEM")


@pytest.mark.parametrize("name", ["grpc_server_cert", "grpc_server_key", "grpc_root_cert"])
def test_an_unreadable_certificate_file_is_refused(tls, tmp_path, name):
    mutual = dataclasses.replace(tls, grpc_use_ssl_mutual=True, grpc_root_cert=tls.grpc_server_cert)

    for path, reason in ((tmp_path / "missing", "No such file or directory"), (tmp_path, "Is a directory")):
        config = dataclasses.replace(mutual, **{name: path})
        refused(config, f"TritonConfig.{name} is '{path}', which cannot be read ({reason})", "name a PEM file")


@pytest.mark.timeout(20)  # without a prompt for the password
@pytest.mark.parametrize(
    ("name", "kind", "content"),
    [
        ("server.crt", "CERTIFICATE", "nonsense"),
        ("server.key", "PRIVATE KEY", "nonsense"),
        ("server.key", "PRIVATE KEY", OTHER_KEY),
        ("server.key", "ENCRYPTED PRIVATE KEY", ENCRYPTED_KEY),
    ],
    ids=["no certificate", "no key", "another's key", "a key with a password"],
)
def test_a_certificate_with_another_key_is_refused(tls, tmp_path, name, kind, content):
    (tmp_path / name).write_text(pem(kind, content))

    refused(tls, "TritonConfig.grpc_server_cert is '", "TritonConfig.grpc_server_key is '", "use a PEM certificate")


def test_an_invalid_root_certificate_is_refused(tls):
    config = dataclasses.replace(tls, grpc_use_ssl_mutual=True, grpc_root_cert=tls.grpc_server_key)

    refused(config, f"TritonConfig.grpc_root_cert is '{tls.grpc_server_key}'", "use a PEM file with")


def test_certificates_of_a_server_without_tls_are_not_checked(tls, tmp_path):
    missing = TritonConfig(grpc_server_cert=tmp_path / "missing")

    check_settings(missing)
    check_settings(dataclasses.replace(missing, grpc_use_ssl=False, grpc_use_ssl_mutual=False))
    check_settings(dataclasses.replace(missing, grpc_use_ssl=True, allow_grpc=False))


def test_tls_needs_http_for_pytriton_itself(tls):
    refused(dataclasses.replace(tls, allow_http=False), "grpc_use_ssl is True and TritonConfig.allow_http is False")


def test_a_model_with_a_response_cache_needs_a_server_with_a_cache(caplog):
    tensor = Tensor((1,), float)
    cached = ModelSpec.create("Model", [tensor], [tensor], config=ModelConfig(response_cache=True))

    check_model(cached, TritonConfig(cache_config=["local,size=1048576"]))
    check_model(ModelSpec.create("Model", [tensor], [tensor]), TritonConfig())
    assert not caplog.messages
    check_model(cached, TritonConfig())
    assert "'Model' has ModelConfig.response_cache, but TritonConfig.cache_config is None" in caplog.text
