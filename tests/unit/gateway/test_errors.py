"""The errors that clients see."""

from __future__ import annotations

import pytest

from pytriton.client.core import failures
from pytriton.client.core.failures import server_error
from pytriton.client.exceptions import Failure
from pytriton.gateway.errors import misfit, translated
from pytriton.gateway.json_tensors import encode
from pytriton.gateway.openai.errors import error_body

URL = "grpc://internal-7.example:8001"


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (failures.timed_out(URL, 3), "The server did not respond within 3 s."),
        (failures.stream_failure(URL, "model 'M': see http://a"), "The server responded: model 'M': see http://a."),
        (failures.unreachable(URL, "failed to connect to ipv4:10.1.2.3:8001"), "No server can be reached."),
        (
            failures.lost(URL, "Socket closed, peer ipv4:10.1.2.3:8001"),
            "The connection to the server broke before the response was complete.",
        ),
        (failures.malformed(URL, "<html>"), "The server does not respond like Triton."),
        (
            server_error(f"None of the servers at {URL}, grpc://b.example:8001 has 'M' ready.", Failure.UNREACHABLE),
            "None of the servers has 'M' ready.",
        ),
        (
            server_error(f"{URL} is a port of HTTP; use http://internal-7.example:8001.", Failure.MALFORMED),
            "The server does not respond like Triton.",
        ),
    ],
)
def test_addresses_of_servers_are_hidden_from_clients(error, shown):
    assert translated(error).message == shown


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (failures.timed_out(URL, 3), 504),
        (failures.server_failure("The server", "Request timeout expired", None), 504),
        (failures.unreachable(URL, "connection refused"), 503),
        (failures.lost(URL, "Socket closed"), 502),
    ],
)
def test_the_status_tells_what_went_wrong(error, status):
    assert translated(error).status == status


def test_the_log_has_the_address_of_a_server_that_is_down(caplog):
    translated(failures.unreachable(URL, "connection refused"))
    assert URL in caplog.text


def test_text_that_is_not_valid_unicode_is_escaped():
    error = misfit("a\ud800", "b\udfff")
    for body in (error.body(), error.body_of_protocol(), error_body(error)):
        assert rb"b\\udfff" in encode(body)
    assert error.body()["error"]["field"] == r"a\ud800"
