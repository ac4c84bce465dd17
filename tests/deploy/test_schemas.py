"""The manifests fit the schemas of their kinds, in which nothing but the known fields is allowed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import custom_resources
import jsonschema
import kubernetes_validate
import pytest
from manifests import OVERLAYS, Object, find, objects
from schemas import KSERVE, VERSIONS, validate_kserve

BUILT_IN = ["Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service"]


def every(*kinds: str) -> list[Object]:
    """The different objects of these kinds, of all overlays."""
    found = {json.dumps(each) for name in ["base", *OVERLAYS] for each in objects(name) if each["kind"] in kinds}
    return [json.loads(text) for text in sorted(found)]


def put(manifest: Object, path: list[Any], value: Any) -> Object:
    """The manifest, with a field more."""
    place: Any = manifest
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    return manifest


def test_each_kind_has_a_schema() -> None:
    kinds = {each["kind"] for name in OVERLAYS for each in objects(name)}
    assert kinds == {*BUILT_IN, *custom_resources.KINDS, *KSERVE}


@pytest.mark.parametrize("version", VERSIONS)
def test_kinds_of_kubernetes_fit(version: str) -> None:
    for manifest in every(*BUILT_IN):
        kubernetes_validate.validate(manifest, version, strict=True)


CONTAINER = ["spec", "template", "spec", "containers", 0]


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("Deployment", [*CONTAINER, "readynessProbe"], {}),
        ("Deployment", [*CONTAINER, "readinessProbe", "httpGet", "port"], None),
        ("NetworkPolicy", ["spec", "ingress", 0, "port"], 8080),
        ("PodDisruptionBudget", ["spec", "maxUnavailabel"], 1),
        ("Service", ["spec", "ports", 0, "port"], "eighty"),
    ],
)
def test_a_mistake_in_a_kind_of_kubernetes_is_found(kind: str, path: list[Any], value: Any) -> None:
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(put(find("cpu", kind), path, value), VERSIONS[-1], strict=True)


def test_kinds_of_operators_fit_and_mistakes_are_found(tmp_path: Path) -> None:
    custom_resources.install(tmp_path)
    manifests = every(*custom_resources.KINDS)
    assert {each["kind"] for each in manifests} == set(custom_resources.KINDS)
    mistakes = [
        put(find("cpu", "PodMonitor"), ["spec", "podMetricsEndpoints", 0, "interval"], "often"),
        put(find("autoscaling", "ScaledObject"), ["spec", "triggers", 0, "metadata", "threshold"], 20),
    ]
    found = custom_resources.problems(tmp_path, [*manifests, *mistakes])
    assert found[: len(manifests)] == [None] * len(manifests)
    assert all(found[len(manifests) :]), found
    assert [custom_resources.unknown_fields(tmp_path, each) for each in manifests] == [set()] * len(manifests)
    misspelt = put(find("autoscaling", "ScaledObject"), ["spec", "maxReplicas"], 10)
    assert custom_resources.unknown_fields(tmp_path, misspelt) == {"maxReplicas"}


def test_kinds_of_kserve_fit() -> None:
    for kind in KSERVE:
        validate_kserve(find("kserve", kind))


@pytest.mark.parametrize(
    ("kind", "path", "value"),
    [
        ("ServingRuntime", ["spec", "terminationGracePeriodSeconds"], 60),  # a runtime has no such field
        ("ServingRuntime", ["spec", "protocolVersions"], ["v3"]),
        ("ServingRuntime", ["spec", "containers", 0, "lifecycle", "preStopp"], {}),
        ("InferenceService", ["spec", "predictor", "securityContext", "runAsUser"], "pytriton"),
        ("InferenceService", ["spec", "predictor", "scaleMetric"], "queue"),
    ],
)
def test_a_mistake_in_a_kind_of_kserve_is_found(kind: str, path: list[Any], value: Any) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate_kserve(put(find("kserve", kind), path, value))
