from __future__ import annotations

import pytest

from pytriton.exceptions import PyTritonBadParameterError, PyTritonValidationError
from pytriton.server.config import TritonConfig
from pytriton.server.security import (
    DEFAULT_PROTECTED_ENDPOINTS,
    VALID_TRITON_ENDPOINTS,
    AccessControl,
    TritonSecurityConfig,
)

DEFAULT = ",".join(DEFAULT_PROTECTED_ENDPOINTS)


def access(config=None, **security):
    return AccessControl(TritonSecurityConfig(**security), config or TritonConfig())


def test_by_default_endpoints_that_change_the_server_require_a_token():
    control = access()

    assert control.flags() == [
        f"--http-restricted-api={DEFAULT}:triton-access-token={control.token}",
        f"--grpc-restricted-protocol={DEFAULT}:triton-access-token={control.token}",
    ]


def test_each_server_gets_a_new_token():
    tokens = {access().token for _ in range(100)}

    assert len(tokens) == 100
    assert min(map(len, tokens)) >= 32


def test_a_new_configuration_has_its_token_and_its_endpoints():
    config = TritonSecurityConfig()

    assert config.restricted_endpoints == DEFAULT_PROTECTED_ENDPOINTS
    assert len(config.access_token) >= 32
    assert {AccessControl(config, TritonConfig()).token for _ in range(2)} == {config.access_token}
    assert TritonSecurityConfig(restricted_endpoints=[]).access_token is None


def test_the_token_may_be_given():
    assert access(access_token="my=secret:1,2").token == "my=secret:1,2"


def test_the_endpoints_may_be_given():
    control = access(access_token="t", restricted_endpoints=["trace", "inference", "trace"])

    assert control.flags() == [
        "--http-restricted-api=trace,inference:triton-access-token=t",
        "--grpc-restricted-protocol=trace,inference:triton-access-token=t",
    ]


def test_an_empty_list_of_endpoints_restricts_nothing():
    assert access(restricted_endpoints=[]).flags() == []


def test_endpoints_that_the_config_restricts_keep_its_header():
    config = TritonConfig(
        http_restricted_api="statistics,health:admin=a", grpc_restricted_protocol=f"{DEFAULT}:admin=b=c"
    )
    control = access(config, access_token="t")

    assert control.flags() == [
        "--http-restricted-api=shared-memory,model-repository,trace,logging:triton-access-token=t"
    ]
    assert control.http_headers() == {"admin": "a", "triton-access-token": "t"}
    assert control.grpc_headers() == {"admin": "b=c", "triton-access-token": "t"}


@pytest.mark.parametrize("endpoint", ["metrics", "Statistics", "", "model_repository"])
def test_an_unknown_endpoint_is_refused_with_the_known_ones(endpoint):
    with pytest.raises(PyTritonValidationError) as caught:
        TritonSecurityConfig(restricted_endpoints=["trace", endpoint])

    assert repr(endpoint) in caught.value.message
    assert all(each in caught.value.message for each in VALID_TRITON_ENDPOINTS)


@pytest.mark.parametrize("token", ["", "with space", "new\nline", "schlüssel", 12345])
def test_a_token_that_is_invalid_in_headers_is_refused_and_not_shown(token):
    with pytest.raises(PyTritonValidationError, match="printable ASCII") as caught:
        TritonSecurityConfig(access_token=token)

    assert not token or str(token) not in caught.value.message


@pytest.mark.parametrize("setting", ["http_restricted_api", "grpc_restricted_protocol"])
@pytest.mark.parametrize("text", ["", "statistics", "statistics:admin", "metrics:a=b", ":a=b", "trace:=b"])
def test_malformed_restrictions_of_the_config_are_refused(setting, text):
    with pytest.raises(PyTritonBadParameterError, match=f"TritonConfig.{setting} is {text!r}"):
        access(TritonConfig(**{setting: text}))
