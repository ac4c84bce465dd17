from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.client.auth import TRITON_ACCESS_HEADER, create_auth_headers, extract_access_token_from_headers
from pytriton.client.exceptions import PyTritonClientValueError

TOKENS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)


def test_headers_of_both_protocols():
    assert TRITON_ACCESS_HEADER == "triton-access-token"
    for protocol in ("http", "https"):
        assert create_auth_headers("secret", protocol) == {"triton-access-token": "secret"}
    for protocol in ("grpc", "grpcs"):
        assert create_auth_headers("secret", protocol) == {"triton-grpc-protocol-triton-access-token": "secret"}


@pytest.mark.parametrize(
    ("token", "protocol", "message"),
    [
        (None, "http", "access_token is None; give the server's token"),
        ("", "grpc", "access_token is ''; give the server's token"),
        ("secret", "ftp", "protocol is 'ftp'; use 'http' or 'grpc'"),
    ],
)
def test_headers_without_a_token_or_of_another_protocol_are_refused_as_by_nvidia_pytriton(token, protocol, message):
    with pytest.raises(PyTritonClientValueError, match=re.escape(message)) as refused:
        create_auth_headers(token, protocol)

    assert isinstance(refused.value, ValueError)
    assert "secret" not in str(refused.value)


@given(TOKENS, st.sampled_from(["http", "grpc"]))
def test_the_token_is_extracted_from_headers(token, protocol):
    headers = {"x-other": "1", **create_auth_headers(token, protocol)}

    assert extract_access_token_from_headers(headers) == token
    assert extract_access_token_from_headers({name.upper(): value for name, value in headers.items()}) == token


@pytest.mark.parametrize("headers", [None, {}, {"x-other": "1"}, {"x-triton-access-token": "1"}])
def test_no_token_is_extracted_from_other_headers(headers):
    assert extract_access_token_from_headers(headers) is None
