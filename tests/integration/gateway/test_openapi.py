"""The OpenAPI document, and the API page."""

from __future__ import annotations

import jsonschema
import openapi_spec_validator
import pytest
import schemathesis
from gateways import gateway_of, running
from hypothesis import HealthCheck, given, settings
from schemathesis.specs.openapi.checks import negative_data_rejection, positive_data_acceptance
from starlette.applications import Starlette
from starlette.routing import Mount

from pytriton.gateway import Gateway, create_key

SLOW_OR_FAILING = ["Fail", "Sleep", "Wait", "Linger", "Count"]


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("mode", list(schemathesis.GenerationMode))
def test_requests_and_responses_match_the_document(gateway, mode):
    """Requests that do not fit it are refused, and all responses are what it promises.

    It cannot say that the rows of an array have one size, so some requests that fit it are refused, too.
    """
    schema = schemathesis.openapi.from_url(f"{gateway.url}/openapi.json")
    schema.config.update(base_url=gateway.url)
    for result in schema.include(method="POST").get_all_operations():
        if result.ok().path.rpartition("/")[2] in SLOW_OR_FAILING:
            continue

        @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
        @given(result.ok().as_strategy(generation_mode=mode))
        def check(case):
            is_form = case.media_type == "multipart/form-data"  # in which an empty list is left out
            excluded = [positive_data_acceptance, *([negative_data_rejection] if is_form else [])]
            case.call_and_validate(excluded_checks=excluded)

        check()


@pytest.fixture(scope="module")
def document(gateway):
    return gateway.get("/openapi.json").json()


def schema_of(document, model):
    operation = document["paths"][f"/v1/models/{model}"]["post"]
    return operation["requestBody"]["content"]["application/json"]["schema"]


def test_it_is_valid(document):
    assert document["openapi"] == "3.1.0"
    openapi_spec_validator.validate(document)


def test_it_contains_the_docstrings(document):
    operation = document["paths"]["/v1/models/Double"]["post"]
    assert operation["summary"] == "Doubles numbers."
    assert "as floats" in operation["description"]


def test_examples_are_accepted(gateway, document):
    for path, operations in document["paths"].items():
        model = path.rpartition("/")[2]
        if model in ("models", "Fail", "Wait", "Linger"):
            continue
        example = operations["post"]["requestBody"]["content"]["application/json"]["example"]
        jsonschema.validate(example, schema_of(document, model))
        assert gateway.post(model, example).status == 200


@pytest.mark.parametrize(
    ("model", "body", "fits"),
    [
        ("Double", {"x": [1, None]}, True),
        ("Double", [{"x": [1]}], True),
        ("Double", {"x": [[1], [2]]}, True),
        ("Double", {"x": "one"}, False),
        ("Double", {}, False),
        ("Double", {"x": [1], "z": 1}, False),
        ("Greet", {"who": "Bob"}, True),
        ("Greet", {"who": ["Bob"], "greeting": {"b64": "aGk="}}, True),
        ("Greet", {"who": ["Bob", "Eve"]}, False),
        ("Count", {"n": 3}, True),
        ("Count", {"n": 1 << 31}, False),
    ],
)
def test_the_schema_accepts_the_same_requests_as_the_gateway(gateway, document, model, body, fits):
    assert jsonschema.Draft202012Validator(schema_of(document, model)).is_valid(body) == fits
    assert gateway.post(model, body).status == (200 if fits else 422)


def test_responses_match_their_schema(gateway, document):
    content = document["paths"]["/v1/models/Double"]["post"]["responses"]["200"]["content"]
    for body in ({"x": [1]}, [{"x": [1]}], {"x": [[1]]}):
        jsonschema.validate(gateway.post("Double", body).json(), content["application/json"]["schema"])


def test_the_document_depends_on_the_key(served, tmp_path):
    path = tmp_path / "keys.json"
    key = create_key(path, "alice", models=["Double"])
    with gateway_of(served, api_keys=path) as gateway:
        assert gateway.get("/docs").status == 200
        assert gateway.get("/openapi.json").status == 401
        document = gateway.get("/openapi.json", authorization=f"Bearer {key}").json()
        assert sorted(document["paths"]) == ["/v1/models", "/v1/models/Double"]
        assert document["security"] == [{"key": []}]


def test_a_mounted_application_documents_its_path(served):
    with running(Starlette(routes=[Mount("/models", Gateway(served))])) as client:
        assert client.get("/models/openapi.json").json()["servers"] == [{"url": "/models"}]
        assert client.get("/models/docs").status == 200
