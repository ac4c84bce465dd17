"""The manifests are consistent: ports, labels, times, settings."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from manifests import DEPLOY, KILL_S, OVERLAYS, SPARE_S, Object, Pod, find, objects, render

from pytriton.server.config import TritonConfig

POLICIES = ["NetworkPolicy", "PodDisruptionBudget", "PodMonitor"]


def selector_of(manifest: Object) -> dict[str, str]:
    """The labels that an object selects pods by."""
    spec = manifest["spec"]
    if manifest["kind"] == "Service":
        return dict(spec["selector"])
    return dict(spec["podSelector" if manifest["kind"] == "NetworkPolicy" else "selector"]["matchLabels"])


def settings_of(pod: Pod, monkeypatch: pytest.MonkeyPatch) -> TritonConfig:
    """Triton's settings in the container's variables."""
    for variable, value in pod.environment.items():
        monkeypatch.setenv(variable, value)
    return TritonConfig.from_env()


@pytest.mark.parametrize("overlay", OVERLAYS)
class TestEachOverlay:
    def test_selects_its_pods(self, overlay: str) -> None:
        kinds = POLICIES if overlay == "kserve" else [*POLICIES, "Service", "Deployment"]
        for kind in kinds:
            selector = selector_of(find(overlay, kind))
            assert selector and selector.items() <= Pod.of(overlay).labels.items(), kind

    def test_opens_the_gateway_to_all_and_the_metrics_to_prometheus(self, overlay: str) -> None:
        pod, policy = Pod.of(overlay), find(overlay, "NetworkPolicy")["spec"]
        for_all, for_prometheus = policy["ingress"]
        assert policy["policyTypes"] == ["Ingress", "Egress"]
        assert "from" not in for_all and for_all["ports"] == [{"port": "http"}]
        (source,) = for_prometheus["from"]
        assert source["namespaceSelector"]["matchLabels"] == {"kubernetes.io/metadata.name": "monitoring"}
        assert for_prometheus["ports"] == [{"port": "metrics"}]
        assert pod.ports.keys() == {"http", "metrics"}

    def test_names_the_ports_that_the_container_serves(self, overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
        pod = Pod.of(overlay)
        config = settings_of(pod, monkeypatch)
        assert pod.ports["http"] == int(pod.argument("--gateway"))
        assert pod.ports["metrics"] == config.metrics_port
        assert config.metrics_address == pod.argument("--host") == "0.0.0.0"
        assert config.http_address is None and config.grpc_address is None  # the gateway keeps them on loopback
        (endpoint,) = find(overlay, "PodMonitor")["spec"]["podMetricsEndpoints"]
        assert endpoint["port"] in pod.ports
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert pod.container[probe]["httpGet"]["port"] in pod.ports
        for service in (each for each in objects(overlay) if each["kind"] == "Service"):
            assert {port["targetPort"] for port in service["spec"]["ports"]} == {"http"}

    def test_lets_requests_finish_before_it_is_killed(self, overlay: str, monkeypatch: pytest.MonkeyPatch) -> None:
        pod = Pod.of(overlay)
        config = settings_of(pod, monkeypatch)
        program, seconds = pod.container["lifecycle"]["preStop"]["exec"]["command"]
        assert program == "sleep"
        assert config.exit_timeout_secs is not None
        # The gateway's requests first, then those of the server's own ports.
        stop_s = 2 * config.exit_timeout_secs + (config.drain_secs or 0) + KILL_S
        assert pod.spec["terminationGracePeriodSeconds"] >= int(seconds) + stop_s + SPARE_S

    def test_leaves_load_balancers_more_time_than_a_probe_takes(
        self, overlay: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pod = Pod.of(overlay)
        probe = pod.container["readinessProbe"]
        notices_s = probe["failureThreshold"] * (probe["periodSeconds"] + probe["timeoutSeconds"])
        assert int(pod.container["lifecycle"]["preStop"]["exec"]["command"][1]) > notices_s
        drain_s = settings_of(pod, monkeypatch).drain_secs
        assert drain_s is not None and drain_s > notices_s

    def test_sets_only_settings_of_triton(
        self, overlay: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        with caplog.at_level(logging.WARNING):
            settings_of(Pod.of(overlay), monkeypatch)
        assert not caplog.records

    def test_gets_no_environment_variables_of_services(self, overlay: str) -> None:
        # A service named pytriton would set PYTRITON_PORT and the like.
        assert Pod.of(overlay).spec["enableServiceLinks"] is False

    def test_fits_the_restricted_pod_security_standard(self, overlay: str) -> None:
        pod = Pod.of(overlay)
        security = pod.container["securityContext"]
        assert pod.spec["securityContext"].items() >= {"runAsNonRoot": True, "runAsUser": 10001}.items()
        assert pod.spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert security["allowPrivilegeEscalation"] is False
        assert security["readOnlyRootFilesystem"] is True
        assert security["capabilities"] == {"drop": ["ALL"]}
        assert all(set(volume) == {"name", "emptyDir"} for volume in pod.spec["volumes"])
        assert not {"hostNetwork", "hostPID", "hostIPC", "initContainers"} & pod.spec.keys()
        assert pod.spec["automountServiceAccountToken"] is False

    def test_has_memory_for_its_shared_memory(self, overlay: str) -> None:
        pod = Pod.of(overlay)
        volumes = {volume["name"]: volume["emptyDir"] for volume in pod.spec["volumes"]}
        mounts = {mount["mountPath"]: volumes[mount["name"]] for mount in pod.container["volumeMounts"]}
        assert mounts.keys() == {"/tmp", "/dev/shm"}
        assert mounts["/dev/shm"]["medium"] == "Memory"
        limit = pod.container["resources"]["limits"]["memory"]
        assert bytes_of(mounts["/dev/shm"]["sizeLimit"]) <= bytes_of(limit) / 2

    def test_accepts_another_image(self, overlay: str, tmp_path: Path) -> None:
        (tmp_path / "deploy").symlink_to(DEPLOY)
        page = (DEPLOY.parent / "docs/deploy/kubernetes.md").read_text()
        (tmp_path / "my-app").mkdir()
        (tmp_path / "my-app/kustomization.yaml").write_text(
            re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)[0].replace("overlays/cpu", f"overlays/{overlay}")
        )
        rendered = render(tmp_path / "my-app")
        assert {manifest["metadata"]["namespace"] for manifest in rendered} == {"models"}
        images = [image for manifest in rendered for image in find_all(manifest, "image")]
        assert images == ["registry.example.com/team/app:1"]

    def test_keeps_pods_in_service_while_it_is_rolled_out(self, overlay: str) -> None:
        if overlay == "kserve":
            predictor = find(overlay, "InferenceService")["spec"]["predictor"]
            replicas, rolling = predictor["minReplicas"], predictor["deploymentStrategy"]["rollingUpdate"]
        else:
            spec = find(overlay, "Deployment")["spec"]
            replicas, rolling = spec.get("replicas") or minimum(overlay), spec["strategy"]["rollingUpdate"]
        assert replicas - rolling["maxUnavailable"] >= 1
        assert rolling["maxUnavailable"] + rolling["maxSurge"] >= 1
        assert replicas > find(overlay, "PodDisruptionBudget")["spec"]["maxUnavailable"] >= 1


def minimum(overlay: str) -> int:
    """The fewest pods that the autoscaler leaves."""
    return int(find(overlay, "ScaledObject")["spec"]["minReplicaCount"])


def bytes_of(quantity: str) -> int:
    """A quantity like ``2Gi`` in bytes."""
    return int(quantity[:-2]) << {"Mi": 20, "Gi": 30}[quantity[-2:]]


def find_all(value: Any, key: str) -> list[Any]:
    """What stands behind a key, anywhere."""
    if isinstance(value, list):
        return [found for each in value for found in find_all(each, key)]
    if not isinstance(value, dict):
        return []
    here = [value[key]] if key in value else []
    return here + [found for each in value.values() for found in find_all(each, key)]


def test_only_the_autoscaler_sets_the_number_of_pods() -> None:
    scaled, deployment = find("autoscaling", "ScaledObject")["spec"], find("autoscaling", "Deployment")
    assert "replicas" not in deployment["spec"]
    assert scaled["scaleTargetRef"] == {"name": deployment["metadata"]["name"]}
    assert 2 <= scaled["minReplicaCount"] < scaled["maxReplicaCount"]
    # KEDA before 2.18 refuses a fallback for a metric that is a value, not an average over pods.
    assert "fallback" not in scaled


def test_autoscaler_queries_metrics_that_the_monitor_collects() -> None:
    (trigger,) = find("autoscaling", "ScaledObject")["spec"]["triggers"]
    label = find("autoscaling", "PodMonitor")["spec"]["jobLabel"]
    assert f'{{job="{Pod.of("autoscaling").labels[label]}"}}' in trigger["metadata"]["query"]


def test_cpu_overlay_gives_steady_cpus_and_as_many_threads() -> None:
    container = Pod.of("cpu").container
    assert container["resources"]["requests"] == container["resources"]["limits"]
    (threads,) = (each for each in container["env"] if each["name"] == "OMP_NUM_THREADS")
    assert threads["valueFrom"] == {"resourceFieldRef": {"resource": "limits.cpu"}}


def test_gpu_overlay_asks_for_a_gpu_and_tolerates_its_nodes() -> None:
    pod = Pod.of("gpu")
    assert pod.container["resources"]["limits"]["nvidia.com/gpu"] == "1"
    assert [toleration["key"] for toleration in pod.spec["tolerations"]] == ["nvidia.com/gpu"]


def test_kserve_runs_the_container_of_the_base() -> None:
    kserve, base = Pod.of("kserve"), Pod.of("base")
    assert kserve.container["name"] == "kserve-container"  # the name by which KServe knows it
    assert {**kserve.container, "name": ""} == {**base.container, "name": ""}
    assert kserve.spec["volumes"] == base.spec["volumes"]
    for name in ("securityContext", "terminationGracePeriodSeconds", "automountServiceAccountToken"):
        assert kserve.spec[name] == base.spec[name]


def test_kserve_service_names_its_runtime_format_and_protocol() -> None:
    model = find("kserve", "InferenceService")["spec"]["predictor"]["model"]
    runtime = find("kserve", "ServingRuntime")
    assert model["runtime"] == runtime["metadata"]["name"]
    assert model["modelFormat"]["name"] in [each["name"] for each in runtime["spec"]["supportedModelFormats"]]
    assert model["protocolVersion"] in runtime["spec"]["protocolVersions"]
    kinds = [each["kind"] for each in objects("kserve")]
    assert "Deployment" not in kinds and "Service" not in kinds  # which KServe makes


def yaml_of_the_page() -> list[str]:
    """A kustomization, another trigger for the autoscaler, and a patch."""
    page = (DEPLOY.parent / "docs/deploy/kubernetes.md").read_text()
    return re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)


def test_page_shows_another_trigger_of_the_same_form() -> None:
    _, trigger, _ = yaml_of_the_page()
    (shown,) = yaml.safe_load(trigger)
    (scaled,) = (each for each in render(DEPLOY / "kubernetes/overlays/autoscaling") if each["kind"] == "ScaledObject")
    (trigger_of_overlay,) = scaled["spec"]["triggers"]
    assert shown["type"] == trigger_of_overlay["type"]
    assert shown["metadata"].keys() == trigger_of_overlay["metadata"].keys()
    assert shown["metadata"]["serverAddress"] == trigger_of_overlay["metadata"]["serverAddress"]


def test_keys_of_the_gateway_come_from_a_secret(tmp_path: Path) -> None:
    (tmp_path / "deploy").symlink_to(DEPLOY)
    own, _, patch = yaml_of_the_page()
    (tmp_path / "my-app").mkdir()
    (tmp_path / "my-app/kustomization.yaml").write_text(own + patch)
    (deployment,) = (each for each in render(tmp_path / "my-app") if each["kind"] == "Deployment")
    pod = Pod(deployment["spec"]["template"]["metadata"]["labels"], deployment["spec"]["template"]["spec"])
    assert pod.container["args"] == ["python", "app.py"]
    mounts = {mount["mountPath"] for mount in pod.container["volumeMounts"]}
    assert mounts == {"/tmp", "/dev/shm", "/etc/pytriton"}
    kubernetes_validate.validate(deployment, kubernetes_validate.latest_version(), strict=True)


def test_page_shows_the_program_of_the_image() -> None:
    program, _ = re.findall(r"```python\n(.*?)```", (DEPLOY.parent / "docs/deploy.md").read_text(), re.DOTALL)
    assert program == (DEPLOY / "app/app.py").read_text()
