from __future__ import annotations

import ipaddress
import re
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytriton.client import (
    AsyncioDecoupledModelClient,
    AsyncioModelClient,
    DecoupledModelClient,
    FuturesModelClient,
    ModelClient,
)
from pytriton.client.exceptions import PyTritonClientInvalidUrlError, PyTritonClientValueError
from pytriton.client.url import TritonUrl

PORTS = st.integers(1, 65535)
SCHEMES = st.sampled_from(["http", "https", "grpc", "grpcs"])
LABELS = st.text(string.ascii_letters + string.digits + "-_", min_size=1, max_size=20)
NAMES = st.lists(LABELS, min_size=1, max_size=4).map(".".join)
PATHS = st.lists(st.text(string.ascii_letters + string.digits + "-_~", min_size=1), max_size=3)


@pytest.mark.parametrize(
    ("text", "with_scheme"),
    [
        ("localhost", "http://localhost:8000"),
        ("localhost:7000", "http://localhost:7000"),
        ("http://localhost", "http://localhost:8000"),
        ("https://localhost", "https://localhost:443"),
        ("grpc://localhost", "grpc://localhost:8001"),
        ("grpcs://localhost", "grpcs://localhost:8001"),
        ("grpc://localhost:9001", "grpc://localhost:9001"),
        ("http://10.0.0.1/", "http://10.0.0.1:8000"),
        ("https://example.com/triton/", "https://example.com:443/triton"),
        ("HTTP://Example.com", "http://example.com:8000"),
        ("[::1]:7000", "http://[::1]:7000"),
        ("grpc://[fe80::1%eth0]", "grpc://[fe80::1%eth0]:8001"),
    ],
)
def test_missing_parts_have_defaults(text, with_scheme):
    assert TritonUrl.from_url(text).with_scheme == with_scheme


@pytest.mark.parametrize(
    "client_class",
    [AsyncioDecoupledModelClient, AsyncioModelClient, DecoupledModelClient, FuturesModelClient, ModelClient],
)
def test_every_client_connects_to_its_url(client_class):
    urls = ["grpc://localhost", "grpcs://127.0.0.1", "grpc://[::1]:7000"]
    requested = ["grpc://localhost:8001", "grpcs://127.0.0.1:8001", "grpc://[::1]:7000"]
    if "Decoupled" not in client_class.__name__:
        urls += ["localhost", "localhost:7000", "http://localhost", "https://localhost"]
        requested += [
            "http://localhost:8000",
            "http://localhost:7000",
            "http://localhost:8000",
            "https://localhost:443",
        ]

    for url, where in [(urls, requested), *((url, [where]) for url, where in zip(urls, requested, strict=True))]:
        client = client_class(url, "any")
        assert [server.url for server in getattr(client, "_client", client)._session.servers] == where


def test_parts():
    url = TritonUrl.from_url("grpcs://[::1]:5")

    assert (url.scheme, url.hostname, url.port, url.path) == ("grpcs", "::1", 5, "")
    assert (url.without_scheme, url.protocol, url.secure) == ("[::1]:5", "grpc", True)
    assert TritonUrl("http", "localhost", 8000) == TritonUrl.from_url("localhost")


@given(SCHEMES, NAMES, PORTS)
def test_formatted_urls_are_parsed(scheme, hostname, port):
    url = TritonUrl(scheme, hostname.lower(), port)

    assert TritonUrl.from_url(url.with_scheme) == url
    if scheme == "http":
        assert TritonUrl.from_url(url.without_scheme) == url


@given(SCHEMES, st.ip_addresses(), PORTS)
def test_addresses(scheme, address, port):
    url = TritonUrl(scheme, str(address), port)

    assert TritonUrl.from_url(url.with_scheme) == url
    assert ("[" in url.with_scheme) is isinstance(address, ipaddress.IPv6Address)


@given(NAMES, PORTS, PATHS)
def test_paths(hostname, port, parts):
    url = TritonUrl("https", hostname.lower(), port, "".join(f"/{part}" for part in parts))

    assert TritonUrl.from_url(url.with_scheme) == url


@given(st.text())
def test_any_text_is_a_url_or_is_refused(text):
    try:
        url = TritonUrl.from_url(text)
    except PyTritonClientInvalidUrlError as error:
        assert repr(text) in error.message
    else:
        assert TritonUrl.from_url(url.with_scheme) == url


@pytest.mark.parametrize(
    "text",
    [
        "",
        " localhost",
        "local\nhost",
        "ftp://localhost",
        "://localhost",
        "http://",
        "localhost:",
        "localhost:0",
        "localhost:65536",
        "localhost:-1",
        "localhost:port",
        "user@localhost",
        "user:password@localhost",
        "localhost?query",
        "8000",
        ":8000",
        "localhost,localhost:9000",
        "http://localhost:8000/v2",
        "http://localhost:8000/v2/models/Double/infer",
        "localhost:8002/metrics",
        "grpc://localhost:8001/v2/models/Double",
        "localhost#fragment",
        "localhost/a b",
        "http://[::1",
        "grpc://localhost/path",
        "http://bücher.example",
        None,
        8000,
        b"localhost",
    ],
)
def test_malformed_urls(text):
    with pytest.raises(PyTritonClientInvalidUrlError, match=r"is not a valid URL of a server: .*; use host, host:port"):
        TritonUrl.from_url(text)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("http://host:8000/v2/models/x", "of a model, whose name is 'x' and whose server is 'http://host:8000'"),
        ("host:8000/v2/models/x/infer", "of a model, whose name is 'x' and whose server is 'host:8000'"),
        ("https://host/triton/v2/health/ready", "of a request, and that of its server is 'https://host/triton'"),
        ("http://host:8000/v2/", "of a request, and that of its server is 'http://host:8000'"),
        ("grpc://host:8001/v2/models/x", "of a model, whose name is 'x' and whose server is 'grpc://host:8001'"),
        ("http://host:8002/metrics", "of metrics, and requests go to another port (8000 by default)"),
        (":8000", "it is a port without a host, as in 'localhost:8000'"),
        ("8000", "it is a port without a host, as in 'localhost:8000'"),
        (8000, "it is of type int"),
        (None, "it is of type NoneType"),
        (b"localhost", "it is of type bytes"),
        ("a:8000,b:8000", "several URLs are given as a list"),
        ("grpc://host/path", "its path is '/path', and gRPC has none"),
    ],
)
def test_errors_suggest_the_intended_url(text, why):
    with pytest.raises(PyTritonClientInvalidUrlError, match=re.escape(why)) as caught:
        ModelClient(text, "any")
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("path", ["/v2x", "/v2/other", "/models", "/prefix/v2models"])
def test_prefixes_of_a_proxy_that_look_similar(path):
    assert TritonUrl.from_url(f"http://host:8000{path}").path == path


def test_an_invalid_url_is_a_value_error():
    assert issubclass(PyTritonClientInvalidUrlError, PyTritonClientValueError)
