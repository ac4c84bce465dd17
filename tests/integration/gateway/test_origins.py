"""Requests that pages of other sites make a browser send, names of the gateway, and the isolation of keys."""

from __future__ import annotations

import json

import pytest
from gateways import gateway_of

from pytriton.gateway import create_key
from pytriton.gateway.access import ApiKey
from pytriton.gateway.open_inference import own_sequence

OTHER = "https://other.example"
INFER = json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}]})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models/Double", '{"x": [1]}'),
        ("/v2/models/Double/infer", INFER),
        ("/v1/completions", '{"model": "Double"}'),
        ("/v2/repository/index", "{}"),
    ],
)
@pytest.mark.parametrize("origin", [OTHER, "null", "http://[", "http://127.0.0.1:1"])
def test_a_page_of_another_site_is_refused(gateway, path, body, origin):
    response = gateway.send("POST", path, body, content_type="text/plain", origin=origin)
    assert response.status == 403
    assert "cors_origins" in response.body.decode()


def test_an_event_source_of_another_site_is_refused(gateway):
    assert gateway.get("/v1/models/Count?n=3", accept="text/event-stream", origin=OTHER).status == 403
    assert gateway.get("/v1/models/Count", origin=OTHER).status == 200  # which runs no model, and it cannot read


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_request_of_another_site_without_its_origin_is_refused(gateway, site):
    no_cors = {"sec_fetch_site": site, "sec_fetch_mode": "no-cors"}
    response = gateway.get("/v1/models/Count?n=3", accept="text/event-stream", **no_cors)
    assert response.status == 403
    assert site in response.json()["error"]["message"]
    assert gateway.post("Double", {"x": [1]}, **no_cors).status == 403


@pytest.mark.parametrize("path", ["/", "/docs", "/assets/live.js", "/health/ready", "/status", "/v1/models/Double"])
@pytest.mark.parametrize("mode", ["navigate", "no-cors"])
def test_links_of_other_sites_work(gateway, path, mode):
    assert gateway.get(path, sec_fetch_site="cross-site", sec_fetch_mode=mode).status == 200


def test_the_gateway_s_own_pages_may_send_requests(gateway):
    assert gateway.post("Double", {"x": [1]}, origin=gateway.url).status == 200
    for site in ("same-origin", "none"):
        assert gateway.get("/v1/models/Count?n=1", accept="text/event-stream", sec_fetch_site=site).status == 200
    proxied = {"origin": "https://public.example", "sec_fetch_site": "same-origin"}
    assert gateway.post("Double", {"x": [1]}, **proxied).status == 200
    assert gateway.post("Double", {"x": [1]}, **(proxied | {"sec_fetch_site": "cross-site"})).status == 403


@pytest.mark.parametrize("allowed", [OTHER, OTHER + "/", "*"])
def test_a_page_of_an_allowed_site_may_send_requests(served, allowed):
    with gateway_of(served, cors_origins=(allowed,)) as gateway:
        assert gateway.post("Double", {"x": [1]}, origin=OTHER).status == 200


def test_other_names_of_the_gateway_are_refused(served):
    with gateway_of(served, allowed_hosts=("127.0.0.1", "a.example", "*.b.example")) as gateway:
        for host in ("a.example", "A.example:8080", "c.b.example", "127.0.0.1"):
            assert gateway.post("Double", {"x": [1]}, host=host).status == 200
        for host in ("rebound.example", "b.example", "a.example.evil", "[::1]:80"):
            for path in ("/status", "/", "/v2"):
                assert gateway.get(path, host=host).status == 421
            assert gateway.get("/health/ready", host=host).status == 200


@pytest.mark.parametrize("allowed", ["::1", "[::1]"])
def test_an_ipv6_address_of_the_gateway(served, allowed):
    with gateway_of(served, allowed_hosts=(allowed,)) as gateway:
        for host in ("[::1]", "[::1]:8080"):
            assert gateway.post("Double", {"x": [1]}, host=host).status == 200
        assert gateway.post("Double", {"x": [1]}, host="[::2]").status == 421


def test_a_key_sees_error_messages_of_its_own_requests_only(served, tmp_path):
    alice, bob = (create_key(tmp_path / "keys.json", name) for name in ("alice", "bob"))
    with gateway_of(served, api_keys=tmp_path / "keys.json") as gateway:
        gateway.post("Double", {"x": "one"}, x_api_key=alice)

        def seen_by(key):
            models = {model["name"]: model for model in gateway.get("/status", x_api_key=key).json()["models"]}
            [error] = models["Double"]["errors"]
            assert set(error) == {"at", "status", "message"}
            return error["status"], error["message"]

        status, message = seen_by(alice)
        assert status == 422
        assert message
        assert seen_by(bob) == (422, "")


@pytest.mark.parametrize("sequence", [1, (1 << 64) - 1, "seven"])
def test_keys_do_not_share_sequences(sequence):
    alice, bob = (ApiKey(name, name * 8) for name in ("alice", "bob"))
    [first, second, other] = [own_sequence(sequence, key) for key in (alice, alice, bob)]
    assert first == second != other
    assert sequence not in (first, other)
    assert type(first) is type(sequence)
    assert isinstance(first, str) or 0 < first < 1 << 63
    assert own_sequence("1", alice) != own_sequence(1, alice)
