from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.client.auth import TRITON_ACCESS_HEADER, create_auth_headers, extract_access_token_from_headers

TOKENS = st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1)


def test_headers_of_both_protocols():
    assert TRITON_ACCESS_HEADER == "triton-access-token"
    for protocol in ("http", "https"):
        assert create_auth_headers("secret", protocol) == {"triton-access-token": "secret"}
    for protocol in ("grpc", "grpcs"):
        assert create_auth_headers("secret", protocol) == {"triton-grpc-protocol-triton-access-token": "secret"}


@pytest.mark.parametrize("token", [None, ""])
def test_no_token_makes_no_headers(token):
    assert create_auth_headers(token, "http") == {}


@given(TOKENS, st.sampled_from(["http", "grpc"]))
def test_the_token_is_extracted_from_headers(token, protocol):
    headers = {"x-other": "1", **create_auth_headers(token, protocol)}

    assert extract_access_token_from_headers(headers) == token
    assert extract_access_token_from_headers({name.upper(): value for name, value in headers.items()}) == token


@pytest.mark.parametrize("headers", [None, {}, {"x-other": "1"}, {"x-triton-access-token": "1"}])
def test_no_token_is_extracted_from_other_headers(headers):
    assert extract_access_token_from_headers(headers) is None
