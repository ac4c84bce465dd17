"""The manifests of ``deploy/kubernetes``, rendered as ``kubectl apply --kustomize`` renders them."""

from __future__ import annotations

import copy
import dataclasses
import functools
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
OVERLAYS = ["cpu", "gpu", "autoscaling", "kserve"]
KILL_S = 2  # how long Triton may take to end, once nothing is in flight; and it is killed then
SPARE_S = 10

Object = dict[str, Any]


def render(folder: Path) -> list[Object]:
    """The objects of a folder with a ``kustomization.yaml``; skips the test if there is no kubectl."""
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("kubectl is not installed, which renders the manifests")
    done = subprocess.run([kubectl, "kustomize", folder], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


@functools.cache
def _rendered(name: str) -> list[Object]:
    return render(DEPLOY / "kubernetes" / ("base" if name == "base" else f"overlays/{name}"))


def objects(name: str) -> list[Object]:
    """The objects of the base or of an overlay, to do with what one likes."""
    return copy.deepcopy(_rendered(name))


def find(name: str, kind: str) -> Object:
    """The one object of a kind."""
    (found,) = (each for each in objects(name) if each["kind"] == kind)
    return found


@dataclasses.dataclass
class Pod:
    """What all pods of an overlay have.

    Attributes:
        labels: Their labels.
        spec: The PodSpec.
    """

    labels: dict[str, str]
    spec: Object

    @classmethod
    def of(cls, name: str) -> Pod:
        """The pods of the base or of an overlay; KServe puts them together from two objects."""
        if name == "kserve":
            runtime, predictor = (
                find(name, "ServingRuntime")["spec"],
                find(name, "InferenceService")["spec"]["predictor"],
            )
            return cls(runtime["labels"], {**predictor, **{key: runtime[key] for key in ("containers", "volumes")}})
        template = find(name, "Deployment")["spec"]["template"]
        return cls(template["metadata"]["labels"], template["spec"])

    @property
    def container(self) -> Object:
        """Its only container."""
        (container,) = self.spec["containers"]
        return container

    @property
    def environment(self) -> dict[str, str]:
        """The container's variables, but those whose value is found out later."""
        return {each["name"]: each["value"] for each in self.container["env"] if "value" in each}

    @property
    def ports(self) -> dict[str, int]:
        """The container's ports by name."""
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    def argument(self, option: str) -> str:
        """What stands behind an option of the container's command line."""
        arguments = self.container["args"]
        return arguments[arguments.index(option) + 1]
