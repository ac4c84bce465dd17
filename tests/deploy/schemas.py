"""JSON schemas of Kubernetes' kinds, of KServe's and of KubeRay's, as far as the manifests use them."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
from referencing import Registry, Resource

# The oldest version that the manifests are for, and the newest that has a schema.
VERSIONS = ["1.30", kubernetes_validate.latest_version()]

_DEFINITIONS = "https://kubernetes.io/api/_definitions.json"
_TEXT = {"type": "string"}
_NUMBER = {"type": "integer", "minimum": 0}
_FLAG = {"type": "boolean"}
_TEXTS = {"type": "object", "additionalProperties": _TEXT}
_PROTOCOL = {"enum": ["v1", "v2", "grpc-v1", "grpc-v2"]}


def _built_in(name: str) -> dict[str, str]:
    return {"$ref": f"{_DEFINITIONS}#/$defs/io.k8s.api.{name}"}


def _fields(required: list[str], **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": required, "properties": properties}


def _kind(version: str, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    metadata = _fields(["name"], name=_TEXT, namespace=_TEXT, labels=_TEXTS, annotations=_TEXTS)
    return _fields(
        ["apiVersion", "kind", "metadata", "spec"],
        apiVersion={"const": version},
        kind={"const": kind},
        metadata=metadata,
        spec=spec,
    )


_PODS = {
    "containers": {"type": "array", "minItems": 1, "items": _built_in("core.v1.Container")},
    "volumes": {"type": "array", "items": _built_in("core.v1.Volume")},
    "nodeSelector": _TEXTS,
    "affinity": _built_in("core.v1.Affinity"),
    "tolerations": {"type": "array", "items": _built_in("core.v1.Toleration")},
    "imagePullSecrets": {"type": "array", "items": _built_in("core.v1.LocalObjectReference")},
}

# After KServe's documentation of its API (serving.kserve.io): a runtime has some fields of a PodSpec, a predictor has
# them all. Fields that the manifests have no use for are left out, and so refused here.
KSERVE = {
    "ServingRuntime": _kind(
        "serving.kserve.io/v1alpha1",
        "ServingRuntime",
        _fields(
            ["containers", "supportedModelFormats"],
            supportedModelFormats={
                "type": "array",
                "minItems": 1,
                "items": _fields(
                    ["name"], name=_TEXT, version=_TEXT, autoSelect=_FLAG, priority={"type": "integer", "minimum": 1}
                ),
            },
            protocolVersions={"type": "array", "items": _PROTOCOL},
            multiModel=_FLAG,
            disabled=_FLAG,
            labels=_TEXTS,
            annotations=_TEXTS,
            **_PODS,
        ),
    ),
    "InferenceService": _kind(
        "serving.kserve.io/v1beta1",
        "InferenceService",
        _fields(
            ["predictor"],
            predictor=_fields(
                ["model"],
                model=_fields(
                    ["modelFormat"],
                    modelFormat=_fields(["name"], name=_TEXT, version=_TEXT),
                    runtime=_TEXT,
                    protocolVersion=_PROTOCOL,
                    storageUri=_TEXT,
                    env={"type": "array", "items": _built_in("core.v1.EnvVar")},
                    resources=_built_in("core.v1.ResourceRequirements"),
                ),
                minReplicas=_NUMBER,
                maxReplicas=_NUMBER,
                scaleMetric={"enum": ["cpu", "memory", "concurrency", "rps"]},
                scaleTarget=_NUMBER,
                timeout=_NUMBER,
                deploymentStrategy=_built_in("apps.v1.DeploymentStrategy"),
                labels=_TEXTS,
                annotations=_TEXTS,
                automountServiceAccountToken=_FLAG,
                enableServiceLinks=_FLAG,
                terminationGracePeriodSeconds=_NUMBER,
                securityContext=_built_in("core.v1.PodSecurityContext"),
                serviceAccountName=_TEXT,
                **{name: field for name, field in _PODS.items() if name != "containers"},
            ),
        ),
    ),
}

_PARAMETERS = {"type": "object", "additionalProperties": _TEXT}  # of `ray start`
_TEMPLATE = _built_in("core.v1.PodTemplateSpec")

# After KubeRay's types (ray.io/v1), likewise.
KUBERAY = {
    "RayService": _kind(
        "ray.io/v1",
        "RayService",
        _fields(
            ["rayClusterConfig"],
            serveConfigV2=_TEXT,
            serveService=_built_in("core.v1.Service"),
            rayClusterConfig=_fields(
                ["headGroupSpec"],
                rayVersion=_TEXT,
                enableInTreeAutoscaling=_FLAG,
                headServiceAnnotations=_TEXTS,
                headGroupSpec=_fields(
                    ["rayStartParams", "template"],
                    rayStartParams=_PARAMETERS,
                    template=_TEMPLATE,
                    serviceType={"enum": ["ClusterIP", "NodePort", "LoadBalancer"]},
                    headService=_built_in("core.v1.Service"),
                    enableIngress=_FLAG,
                ),
                workerGroupSpecs={
                    "type": "array",
                    "items": _fields(
                        ["groupName", "minReplicas", "maxReplicas", "rayStartParams", "template"],
                        groupName=_TEXT,
                        replicas=_NUMBER,
                        minReplicas=_NUMBER,
                        maxReplicas=_NUMBER,
                        numOfHosts=_NUMBER,
                        idleTimeoutSeconds=_NUMBER,
                        rayStartParams=_PARAMETERS,
                        template=_TEMPLATE,
                    ),
                },
            ),
        ),
    ),
}


def validate_kserve(manifest: dict[str, Any]) -> None:
    """Validates an object of KServe's, and what is Kubernetes' own in it by its strict schema."""
    _validate(manifest, KSERVE)


def validate_kuberay(manifest: dict[str, Any]) -> None:
    """Validates an object of KubeRay's in the same way."""
    _validate(manifest, KUBERAY)


def _validate(manifest: dict[str, Any], kinds: dict[str, Any]) -> None:
    jsonschema.Draft202012Validator(kinds[manifest["kind"]], registry=_registry()).validate(manifest)


@functools.cache
def _registry() -> Registry[Any]:
    """Kubernetes' own types, strictly."""
    schemas = Path(kubernetes_validate.__file__).with_name("kubernetes-json-schema")
    text = (schemas / f"v{VERSIONS[-1]}-local-strict" / "_definitions.json").read_text()
    return Registry().with_resource(_DEFINITIONS, Resource.from_contents(json.loads(text)))
