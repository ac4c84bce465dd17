from __future__ import annotations

import dataclasses
import logging
import os
import pathlib
import re
import typing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.server.capabilities import NEWER_FIELDS
from pytriton.server.config import ENVIRONMENT_PREFIX, TritonConfig, server_flags, with_absolute_paths

FIELDS = [field.name for field in dataclasses.fields(TritonConfig)]
SHOWN = st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1)
VALUES = {
    int: st.integers(0, 2**31),
    bool: st.booleans(),
    str: SHOWN,
    pathlib.Path: st.builds(pathlib.Path, SHOWN),
    list[str]: st.lists(SHOWN, min_size=1, max_size=12),
}
# What the server does not know.
OWN = ["restart", "restart_limit", "drain_secs", "memory_limit", "backend_directory"]
TYPES = {name: typing.get_args(hint)[0] for name, hint in typing.get_type_hints(TritonConfig).items()}
OF_ENDING = {"port": st.integers(0, 65535), "pattern": SHOWN.map(re.escape)}
SERVES = {"allow_grpc": st.just(True)}  # a server without HTTP and gRPC is refused
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        name: SERVES[name] if name in SERVES else OF_ENDING.get(name.rpartition("_")[2], VALUES[type_])
        for name, type_ in TYPES.items()
    },
).map(lambda values: TritonConfig(**values))


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch):
    for variable in list(os.environ):
        if variable.startswith(ENVIRONMENT_PREFIX):
            monkeypatch.delenv(variable)


def test_nothing_is_set_by_default():
    assert set(TritonConfig().to_dict().values()) == {None}
    assert server_flags(TritonConfig()) == []


def test_fields_include_those_of_nvidia_pytriton():
    assert (FIELDS[0], FIELDS[49]) == ("model_repository", "buffer_manager_thread_count")
    assert FIELDS[50:] == ["backend_config", *NEWER_FIELDS, *OWN]


def test_paths_are_made_absolute_and_nothing_else(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/me")
    config = TritonConfig(model_repository="repo", log_file="/var/log", backend_directory="~/backends", http_port=1)

    assert with_absolute_paths(config) == TritonConfig(
        model_repository=tmp_path / "repo",
        log_file=pathlib.Path("/var/log"),
        backend_directory=pathlib.Path("/home/me/backends"),
        http_port=1,
    )


def test_without_a_working_directory_paths_are_those_of_the_root(tmp_path, monkeypatch):
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()

    assert with_absolute_paths(TritonConfig(log_file="log")) == TritonConfig(log_file=pathlib.Path("/log"))


def _is_ipv6(name, value):
    return name.endswith("_address") and value is not None and ":" in value


@given(CONFIGS)
def test_every_setting_is_its_flag(config):
    flags = [flag for flag in server_flags(config) if not _is_ipv6(*flag[2:].replace("-", "_").split("=", 1))]

    expected = []
    for name in FIELDS:
        value = getattr(config, name)
        flag = f"--{name.replace('_', '-')}="
        if name in OWN or (name == "grpc_use_ssl_mutual" and not value) or _is_ipv6(name, value):
            continue  # the last two have their own tests
        if isinstance(value, bool):
            expected.append(flag + ("true" if value else "false"))
        elif isinstance(value, list):
            expected.extend(flag + item for item in value)
        elif value is not None:
            expected.append(f"{flag}{value}")
    assert flags == expected


def test_flags_have_the_format_of_tritonserver():
    config = TritonConfig(
        http_port=0,
        allow_grpc=False,
        log_verbose=1,
        exit_timeout_secs=5,
        model_repository=pathlib.Path("/models"),
        http_restricted_api="statistics,trace:token=secret",
        cache_config=["local,size=1048576", "redis,port=6379"],
    )

    assert server_flags(config) == [
        "--model-repository=/models",
        "--log-verbose=1",
        "--exit-timeout-secs=5",
        "--http-port=0",
        "--http-restricted-api=statistics,trace:token=secret",
        "--allow-grpc=false",
        "--cache-config=local,size=1048576",
        "--cache-config=redis,port=6379",
    ]


def test_disabled_mutual_tls_becomes_no_flag():
    assert server_flags(TritonConfig(grpc_use_ssl_mutual=False)) == []
    assert server_flags(TritonConfig(grpc_use_ssl_mutual=True)) == ["--grpc-use-ssl-mutual=true"]


def test_ipv6_addresses_are_written_as_the_front_ends_take_them():
    config = TritonConfig(http_address="::1", grpc_address="::", metrics_address="127.0.0.1")
    assert server_flags(config) == ["--http-address=ipv6:::1", "--grpc-address=[::]", "--metrics-address=127.0.0.1"]


@given(CONFIGS)
def test_a_config_survives_a_dictionary(config):
    assert TritonConfig.from_dict(config.to_dict()) == config


@given(CONFIGS)
def test_a_config_survives_a_dictionary_of_texts(config):
    texts = {
        name: value if isinstance(value, list) else str(value)
        for name, value in config.to_dict().items()
        if value is not None
    }

    assert TritonConfig.from_dict(texts) == config


def test_a_dictionary_has_every_field():
    assert list(TritonConfig(http_port=1).to_dict()) == FIELDS


@given(CONFIGS)
def test_a_config_survives_the_environment(config):
    with pytest.MonkeyPatch.context() as environment:
        for name, value in config.to_dict().items():
            variable = ENVIRONMENT_PREFIX + name.upper()
            for index, item in enumerate(value) if isinstance(value, list) else ():
                environment.setenv(f"{variable}_{index}", item)
            if value is not None and not isinstance(value, list):
                environment.setenv(variable, str(value))

        assert TritonConfig.from_env() == config


@pytest.mark.parametrize("create", [lambda fields: TritonConfig(**fields), TritonConfig.from_dict])
def test_a_configuration_without_http_and_grpc_is_refused_as_by_nvidia_pytriton(create):
    with pytest.raises(PyTritonValidationError, match=r"allow_http and TritonConfig\.allow_grpc are both False"):
        create({"allow_http": False, "allow_grpc": False})


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("False", False), ("0", False), ("off", False)]
)
def test_booleans_are_read_from_the_environment_in_their_usual_spellings(monkeypatch, text, value):
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_ALLOW_HTTP", text)

    assert TritonConfig.from_env().allow_http is value


def test_a_list_with_one_item_needs_no_index(monkeypatch):
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_CACHE_CONFIG", "local,size=1")

    assert TritonConfig.from_env().cache_config == ["local,size=1"]


def test_items_of_a_list_are_in_the_order_of_their_numbers(monkeypatch):
    for index in (10, 2, 0):
        monkeypatch.setenv(f"PYTRITON_TRITON_CONFIG_TRACE_CONFIG_{index}", f"item{index}")

    assert TritonConfig.from_env().trace_config == ["item0", "item2", "item10"]


def test_an_empty_variable_is_ignored(monkeypatch):
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_HTTP_PORT", "")

    assert TritonConfig.from_env().http_port is None


@pytest.mark.parametrize(
    ("variable", "text", "remedy"),
    [("HTTP_PORT", "eighty", "use an integer"), ("ALLOW_HTTP", "perhaps", "use true or false")],
)
def test_a_variable_of_the_wrong_type_is_named(monkeypatch, variable, text, remedy):
    monkeypatch.setenv(f"PYTRITON_TRITON_CONFIG_{variable}", text)

    with pytest.raises(PyTritonBadParameterError, match=f"PYTRITON_TRITON_CONFIG_{variable} is '{text}'; {remedy}"):
        TritonConfig.from_env()


@pytest.mark.parametrize(
    "values", [{"http_port": "x"}, {"http_port": 1.5}, {"http_port": True}, {"log_file": 3}, {"id": ["a"]}], ids=repr
)
def test_a_value_of_the_wrong_type_is_named(values):
    with pytest.raises(PyTritonBadParameterError, match=rf"^TritonConfig\.{next(iter(values))} is .*; use "):
        TritonConfig.from_dict(values)


def test_an_unknown_key_is_warned_about_with_the_nearest_name(caplog):
    with caplog.at_level(logging.WARNING):
        config = TritonConfig.from_dict({"http_prot": 1, "id": "a"})

    assert config == TritonConfig(id="a")
    assert caplog.messages == ["TritonConfig has no field 'http_prot', which is ignored; did you mean http_port?"]


def test_an_unknown_variable_is_warned_about_with_the_nearest_name(monkeypatch, caplog):
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_LOG_VERBOSITY", "4")
    with caplog.at_level(logging.WARNING):
        config = TritonConfig.from_env()

    assert config == TritonConfig()
    assert caplog.messages == [
        "Environment variable PYTRITON_TRITON_CONFIG_LOG_VERBOSITY names no field of TritonConfig and is ignored; "
        "did you mean PYTRITON_TRITON_CONFIG_LOG_VERBOSE?"
    ]


def test_an_unknown_key_without_a_similar_name_is_warned_about(caplog):
    with caplog.at_level(logging.WARNING):
        TritonConfig.from_dict({"zzz": 1})

    assert caplog.messages == ["TritonConfig has no field 'zzz', which is ignored."]


def test_a_variable_with_a_number_that_names_no_list_is_warned_about(monkeypatch, caplog):
    monkeypatch.setenv("PYTRITON_TRITON_CONFIG_HTTP_PORT_0", "4")
    with caplog.at_level(logging.WARNING):
        assert TritonConfig.from_env() == TritonConfig()

    assert "did you mean PYTRITON_TRITON_CONFIG_HTTP_PORT?" in caplog.text


def test_a_number_may_be_a_text():
    config = TritonConfig(http_port="9930", grpc_port="0", exit_timeout_secs="5", id="7")

    assert (config.http_port, config.grpc_port, config.exit_timeout_secs, config.id) == (9930, 0, 5, "7")


def test_numbers_of_numpy_are_integers():
    config = TritonConfig(http_port=np.int64(9930), exit_timeout_secs=np.uint8(5))
    assert [(type(each), each) for each in (config.http_port, config.exit_timeout_secs)] == [(int, 9930), (int, 5)]


@pytest.mark.parametrize("port", ["x", "-1", "8000.5", "70000", ""])
def test_a_text_that_is_not_a_port_is_refused(port):
    with pytest.raises(PyTritonBadParameterError, match=r"TritonConfig\.http_port is .*; use a port from 1 to 65535"):
        TritonConfig(http_port=port)


@pytest.mark.parametrize(
    ("setting", "given", "value"),
    [
        ("allow_metrics", "false", False),
        ("allow_metrics", 0, False),
        ("allow_http", "on", True),
        ("log_verbose", True, 1),
        ("log_verbose", "4", 4),
        ("exit_timeout_secs", 30.0, 30),
        ("http_port", " 8000", 8000),
        ("cache_config", "local,size=1", "local,size=1"),
        ("model_repository", "models", "models"),
        ("http_address", "127.0.0.1", "127.0.0.1"),
    ],
)
def test_values_are_converted_to_the_type_of_their_field(setting, given, value):
    converted = getattr(TritonConfig(**{setting: given}), setting)
    assert (type(converted), converted) == (type(value), value)


@pytest.mark.parametrize("setting", ["http_header_forward_pattern", "grpc_header_forward_pattern"])
@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("x-[a", "unterminated character set"),
        ("x-(a", "missing ), unterminated subpattern"),
        ("x-a)", "unbalanced parenthesis"),
        ("*", "nothing to repeat"),
        ("(?!authorization).*", "it has a lookaround"),
        ("x-(?<=-).*", "it has a lookaround"),
    ],
)
def test_an_invalid_pattern_of_headers_is_refused_at_once(setting, pattern, problem):
    with pytest.raises(
        PyTritonBadParameterError, match=re.escape(f"TritonConfig.{setting} is {pattern!r}, which")
    ) as error:
        TritonConfig(**{setting: pattern})
    assert f"({problem}" in str(error.value)


@pytest.mark.parametrize(
    "pattern", ["x-.*", "", "(?i)x-.*", r"x-\pL+", "(?U)x.*", "x[[:alpha:]]", r"\(?=x", r"x\z", "^*"]
)
def test_values_that_only_the_server_can_check_are_accepted(pattern):
    assert TritonConfig(http_header_forward_pattern=pattern).http_header_forward_pattern == pattern


@pytest.mark.parametrize(
    ("setting", "value", "remedy"),
    [
        ("strict_readiness", "maybe", "use true or false"),
        ("log_verbose", "DEBUG", "use an integer"),
        ("exit_timeout_secs", 1.5, "use an integer"),
        ("restart_limit", True, "use an integer"),
        ("memory_limit", "1GB", "use an integer"),
        ("http_port", "many", "use a port from 1 to 65535, or 0"),
        ("model_repository", 3, "use a path"),
        ("log_file", ["log"], "use a path"),
        ("model_repository", "", "use a path"),
        ("http_address", ["127.0.0.1"], "use text"),
        ("cache_config", {"local": {"size": 1}}, "use a list of text, each like '<setting>=<value>'"),
        ("trace_config", 3, "use a list of text"),
    ],
)
def test_a_value_of_another_type_is_refused_at_once(setting, value, remedy):
    with pytest.raises(PyTritonBadParameterError) as caught:
        TritonConfig(**{setting: value})
    assert caught.value.message.startswith(f"TritonConfig.{setting} is {value!r}; {remedy}")


def test_a_settings_file_without_a_dictionary_is_refused():
    with pytest.raises(PyTritonBadParameterError, match=r"from_dict got \['http_port'\]; give it a dictionary"):
        TritonConfig.from_dict(["http_port"])
    with pytest.raises(PyTritonBadParameterError, match=r"cache_config is \{'size': 1\}; use a list of text"):
        TritonConfig.from_dict({"cache_config": {"size": 1}})
