"""The files of ``deploy/ray`` fit the schemas of Ray, of KubeRay and of Kubernetes, and fit together."""

from __future__ import annotations

import copy
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import custom_resources
import jsonschema
import kubernetes_validate
import pydantic
import pytest
import yaml
from manifests import DEPLOY, Object, render
from schemas import KUBERAY, VERSIONS, validate_kuberay

pytest.importorskip("ray.serve")

from ray._common.utils import import_attr
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.scripts.scripts import start
from ray.serve.schema import DeploymentSchema, ServeApplicationSchema, ServeDeploySchema

RAY = DEPLOY / "ray"
OVERLAYS = ["base", "overlays/gpu"]
BUILT_IN = ["NetworkPolicy", "PodDisruptionBudget", "Service"]
SPARE_S = 15


@pytest.fixture(autouse=True, scope="module")
def programs() -> Iterator[None]:
    """Has the programs of the folder imported, as ``PYTHONPATH`` does in the image."""
    names = ("service", "gateway", "targets")
    others = {name: sys.modules.pop(name) for name in names if name in sys.modules}  # of other tests
    sys.path.insert(0, str(RAY))
    yield
    sys.path.remove(str(RAY))
    for name in names:
        sys.modules.pop(name, None)
    sys.modules.update(others)


@pytest.fixture(scope="module", params=OVERLAYS)
def objects(request: pytest.FixtureRequest) -> list[Object]:
    """The objects of the base, and of the overlay."""
    return render(RAY / "kubernetes" / request.param)


@pytest.fixture(scope="module")
def ray_service(objects: list[Object]) -> Object:
    """The service."""
    (found,) = (each for each in objects if each["kind"] == "RayService")
    return found


def groups_of(service: Object) -> dict[str, Object]:
    """The groups of pods by name; the head is one of them."""
    cluster = service["spec"]["rayClusterConfig"]
    groups = {"head": cluster["headGroupSpec"]}
    return groups | {group["groupName"]: group for group in cluster["workerGroupSpecs"]}


def container_of(group: Object) -> Object:
    """The only container of a group's pods."""
    (container,) = group["template"]["spec"]["containers"]
    return container


def ports_of(group: Object) -> dict[str, int]:
    """The ports of a group's pods by name."""
    return {port["name"]: port["containerPort"] for port in container_of(group)["ports"]}


def config_of(service: Object) -> dict[str, Any]:
    """The config file of Ray Serve within."""
    config: dict[str, Any] = yaml.safe_load(service["spec"]["serveConfigV2"])
    return config


def deployment_of(application: Object) -> Any:
    """The deployment that an entry of a config file makes."""
    bound = import_attr(application["import_path"])(application.get("args", {}))
    return bound._bound_deployment


def unknown_fields(config: Object) -> set[str]:
    """The fields that Ray Serve does not know, and would ignore."""
    found = config.keys() - ServeDeploySchema.model_fields.keys()
    for application in config["applications"]:
        found |= application.keys() - ServeApplicationSchema.model_fields.keys()
        for deployment in application.get("deployments", []):
            found |= deployment.keys() - DeploymentSchema.model_fields.keys()
    return found


def start_options(parameters: list[str]) -> Any:
    """What ``ray start`` understands of its options; an error if it does not know one."""
    return start.make_context("start", parameters).params


class TestServeFile:
    config: dict[str, Any] = yaml.safe_load((RAY / "serve.yaml").read_text())

    def test_fits(self) -> None:
        ServeDeploySchema.model_validate(self.config)
        assert unknown_fields(self.config) == set()
        assert self.config["proxy_location"] == "Disabled"

    def test_a_mistake_is_found(self) -> None:
        with pytest.raises(pydantic.ValidationError):
            ServeDeploySchema.model_validate(self.config | {"proxy_location": "Nowhere"})
        assert unknown_fields(self.config | {"proxy": "Disabled"}) == {"proxy"}

    def test_its_applications_are_made_from_their_arguments(self) -> None:
        for application in self.config["applications"]:
            deployment = deployment_of(application)
            for overridden in application.get("deployments", []):
                assert overridden["name"] == deployment.name

    def test_gateway_is_in_front_of_the_pool(self) -> None:
        pool, gateway, _ = self.config["applications"]
        assert gateway["args"]["pool"] == pool["name"]


class TestClusterFile:
    @pytest.fixture
    def config(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("HOME", str(tmp_path))  # where Ray keeps the state of such a cluster
        return yaml.safe_load((RAY / "cluster.yaml").read_text())

    def test_fits(self, config: Any) -> None:
        validate_config(prepare_config(config))

    def test_a_mistake_is_found(self, config: Any) -> None:
        config["setup_command"] = []
        with pytest.raises(jsonschema.ValidationError, match="setup_command"):
            validate_config(prepare_config(config))

    def test_starts_ray_with_what_the_applications_need(self, config: Any) -> None:
        commands = [config[f"{kind}_start_ray_commands"][-1] for kind in ("head", "worker")]
        head, worker = (start_options(shlex.split(command.partition(" start ")[2])) for command in commands)
        assert head["head"] and not worker["head"]
        assert json.loads(head["resources"]) == {"gateway": 1}
        assert all("RAY_AUTH_MODE=token" in command and "PYTHONPATH=~/pytriton-ray" in command for command in commands)
        assert "~/pytriton-ray" in config["file_mounts"] and "~/.ray/auth_token" in config["file_mounts"]


class TestKubernetes:
    def test_each_kind_has_a_schema(self, objects: list[Object]) -> None:
        assert {each["kind"] for each in objects} == {*BUILT_IN, *KUBERAY, *custom_resources.KINDS_OF_RAY}

    @pytest.mark.parametrize("version", VERSIONS)
    def test_kinds_of_kubernetes_fit(self, version: str) -> None:
        objects = render(RAY / "kubernetes/base")  # the overlay changes the RayService alone
        for manifest in (each for each in objects if each["kind"] in BUILT_IN):
            kubernetes_validate.validate(manifest, version, strict=True)

    def test_service_fits(self, ray_service: Object) -> None:
        validate_kuberay(ray_service)

    @pytest.mark.parametrize(
        ("path", "value"),
        [
            (["serveConfig"], ""),
            (["rayClusterConfig", "workerGroupSpecs", 0, "minReplicas"], "two"),
            (["rayClusterConfig", "workerGroupSpecs", 0, "rayStartParams", "num-cpus"], 0),
            (["rayClusterConfig", "headGroupSpec", "template", "spec", "terminationGracePeriod"], 60),
        ],
    )
    def test_a_mistake_is_found(self, ray_service: Object, path: list[Any], value: Any) -> None:
        manifest = copy.deepcopy(ray_service)
        place = manifest["spec"]
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = value
        with pytest.raises(jsonschema.ValidationError):
            validate_kuberay(manifest)

    def test_embedded_config_equals_the_serve_file(self, ray_service: Object) -> None:
        config = config_of(ray_service)
        ServeDeploySchema.model_validate(config)
        assert unknown_fields(config) == set()
        expected = TestServeFile.config
        assert config["proxy_location"] == expected["proxy_location"]
        paths = [(each["name"], each["import_path"]) for each in config["applications"]]
        assert paths == [(each["name"], each["import_path"]) for each in expected["applications"]]
        for application in config["applications"]:
            deployment_of(application)

    def test_pods_have_room_for_the_replicas(self, ray_service: Object) -> None:
        groups = groups_of(ray_service)
        pool, gateway, _ = config_of(ray_service)["applications"]
        triton = groups["triton"]
        requested = deployment_of(pool).ray_actor_options
        assert int(triton["rayStartParams"]["num-cpus"]) == requested["num_cpus"]
        gpus = int(container_of(triton)["resources"]["limits"].get("nvidia.com/gpu", 0))
        assert gpus == requested.get("num_gpus", 0)
        surge = deployment_of(pool)._deployment_config.max_surge_percent > 0
        assert triton["replicas"] >= pool["deployments"][0]["num_replicas"] + surge
        assert groups["gateway"]["replicas"] == gateway["deployments"][0]["num_replicas"]

    def test_parameters_are_those_of_ray_start(self, ray_service: Object) -> None:
        for name, group in groups_of(ray_service).items():
            # KubeRay puts them together for a shell.
            options = " ".join(f"--{key}={value}" for key, value in group["rayStartParams"].items())
            found = start_options([*shlex.split(options), *(["--head"] if name == "head" else [])])
            assert found["dashboard_agent_listen_port"] == ports_of(group)["agent"]
            assert json.loads(found["resources"]) == ({"gateway": 1} if name == "gateway" else {})

    def test_ports_are_those_of_the_applications(self, ray_service: Object, objects: list[Object]) -> None:
        groups = groups_of(ray_service)
        _, gateway, targets = config_of(ray_service)["applications"]
        assert ports_of(groups["gateway"])["http"] == gateway["args"]["port"]
        assert ports_of(groups["head"])["targets"] == targets["args"]["port"]
        (scraped,) = (each for each in objects if each["kind"] == "ScrapeConfig")
        (discovery,) = scraped["spec"]["httpSDConfigs"]
        head = f"{ray_service['metadata']['name']}-head-svc"  # which KubeRay makes
        assert discovery["url"] == f"http://{head}:{targets['args']['port']}/"
        for group in groups.values():
            probes = [container_of(group)[probe] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
            assert {probe["httpGet"]["port"] for probe in probes} <= ports_of(group).keys()

    def test_each_selector_finds_its_pods(self, ray_service: Object, objects: list[Object]) -> None:
        labels = {name: group["template"]["metadata"]["labels"] for name, group in groups_of(ray_service).items()}

        def found(selector: dict[str, str]) -> set[str]:
            return {name for name, has in labels.items() if selector.items() <= has.items()}

        named = {(each["kind"], each["metadata"]["name"]): each["spec"] for each in objects}
        assert found(named["Service", "pytriton-gateway"]["selector"]) == {"gateway"}
        for name in ("gateway", "triton"):
            budget = named["PodDisruptionBudget", f"pytriton-{name}"]
            assert found(budget["selector"]["matchLabels"]) == {name}
        assert found(named["NetworkPolicy", "pytriton-gateway"]["podSelector"]["matchLabels"]) == {"gateway"}
        inside = named["NetworkPolicy", "pytriton-ray"]
        (source,) = inside["ingress"][0]["from"]
        for selector in (inside["podSelector"], source["podSelector"]):
            assert found(selector["matchLabels"]) == labels.keys()

    def test_only_the_gateway_is_open_to_all(self, objects: list[Object]) -> None:
        policies = [each["spec"] for each in objects if each["kind"] == "NetworkPolicy"]
        rules = [rule for policy in policies for rule in policy["ingress"] if "from" not in rule]
        assert rules == [{"ports": [{"port": "http"}]}]

    def test_replicas_have_time_to_shut_down(self, ray_service: Object) -> None:
        groups = groups_of(ray_service)
        for name, application in zip(("triton", "gateway"), config_of(ray_service)["applications"], strict=False):
            spec = groups[name]["template"]["spec"]
            *command, seconds = container_of(groups[name])["lifecycle"]["preStop"]["exec"]["command"]
            assert command == ["python", "/app/drain.py"]
            leave_s = deployment_of(application)._deployment_config.graceful_shutdown_timeout_s
            assert int(seconds) >= leave_s
            assert spec["terminationGracePeriodSeconds"] >= int(seconds) + SPARE_S

    def test_pods_fit_the_restricted_pod_security_standard(self, ray_service: Object) -> None:
        for group in groups_of(ray_service).values():
            spec, security = group["template"]["spec"], container_of(group)["securityContext"]
            assert spec["securityContext"].items() >= {"runAsNonRoot": True, "runAsUser": 10001}.items()
            assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"] == {"drop": ["ALL"]}
            assert all(set(volume) == {"name", "emptyDir"} for volume in spec["volumes"])
            assert spec["automountServiceAccountToken"] is False
            assert spec["enableServiceLinks"] is False

    def test_image_has_the_programs(self, ray_service: Object) -> None:
        copied = (RAY / "Dockerfile").read_text()
        for application in config_of(ray_service)["applications"]:
            assert f"{application['import_path'].partition(':')[0]}.py" in copied
        assert "drain.py" in copied
        for file in RAY.glob("*.py"):
            assert file.name in copied


@pytest.mark.slow
def test_scrape_config_fits_and_mistakes_are_found(tmp_path: Path) -> None:
    custom_resources.install(tmp_path)
    (manifest,) = (each for each in render(RAY / "kubernetes/base") if each["kind"] == "ScrapeConfig")
    mistake = copy.deepcopy(manifest)
    mistake["spec"]["httpSDConfigs"][0]["refreshInterval"] = "often"
    fits, wrong = custom_resources.problems(tmp_path, [manifest, mistake])
    assert fits is None and wrong
    assert custom_resources.unknown_fields(tmp_path, manifest) == set()
