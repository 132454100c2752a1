"""deploy/kubernetes: valid by Kubernetes' own schemas, and in agreement with settings, image and one another."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from jsonschema import ValidationError as SchemaError
from jsonschema import validate

from kafka_ratchet.app.settings import load
from kafka_ratchet.app.worker.process import STOP_WITHIN_S

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.30", kubernetes_validate.latest_version())
"""The oldest that deploy.md names, and the newest that there are schemas of."""

documents: list[dict[str, Any]] = [
    document
    for path in sorted(FOLDER.glob("*.yaml"))
    for document in yaml.safe_load_all(path.read_text("utf-8"))
    if document is not None
]


def one(kind: str, name: str) -> dict[str, Any]:
    (found,) = (each for each in documents if (each["kind"], each["metadata"]["name"]) == (kind, name))
    return found


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    for kind, name in (("StatefulSet", "ratchet-worker"), ("Deployment", "ratchet-web")):
        yield name, one(kind, name)["spec"]["template"]["spec"]


OF_KUBERNETES = [each for each in documents if each["kind"] != "ServiceMonitor"]
PODS = [pytest.param(pod, id=name) for name, pod in pods()]

CRD = Path(__file__).parent / "prometheus-operator-0.93.0" / "servicemonitors-crd.json"
"""File of github.com/prometheus-operator/prometheus-operator, v0.93.0, below jsonnet/, under Apache-2.0."""
CRD_SHA256 = "cbad4e3028c227806e3a18bcaa1b8b25b799de3a037e390709e3aa2372165c67"


def operators_schema() -> dict[str, Any]:
    """Return the schema of a ServiceMonitor, strict as `kubectl apply` is: the API server drops unknown fields."""
    crd = json.loads(CRD.read_text("utf-8"))
    (version,) = (each for each in crd["spec"]["versions"] if each["name"] == "v1")
    schema: dict[str, Any] = version["schema"]["openAPIV3Schema"]
    refuse_unknown_fields(schema)
    return {**schema, "properties": {**schema["properties"], "metadata": {"type": "object"}}}


def refuse_unknown_fields(schema: object) -> None:
    if isinstance(schema, dict):
        if "properties" in schema:
            schema.setdefault("additionalProperties", False)
        for each in schema.values():
            refuse_unknown_fields(each)
    elif isinstance(schema, list):
        for each in schema:
            refuse_unknown_fields(each)


def test_the_objects_are_there() -> None:
    assert sorted(f"{each['kind']}/{each['metadata']['name']}" for each in documents) == [
        "ConfigMap/ratchet",
        "Deployment/ratchet-web",
        "PodDisruptionBudget/ratchet-worker",
        "Service/ratchet-web",
        "Service/ratchet-worker",
        "ServiceMonitor/ratchet-worker",
        "StatefulSet/ratchet-worker",
    ]


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("document", OF_KUBERNETES, ids=lambda each: f"{each['kind']}-{each['metadata']['name']}")
def test_valid_by_the_schemas_of_kubernetes(document: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(document, version, strict=True)


def test_the_schema_refuses_a_misspelt_field() -> None:
    worker = one("StatefulSet", "ratchet-worker")
    misspelt = {**worker, "spec": {**worker["spec"], "replica": 3}}
    with pytest.raises(kubernetes_validate.ValidationError, match="replica"):
        kubernetes_validate.validate(misspelt, VERSIONS[0], strict=True)


def test_the_service_monitor_is_valid_by_the_operators_schema() -> None:
    assert hashlib.sha256(CRD.read_bytes()).hexdigest() == CRD_SHA256
    monitor, schema = one("ServiceMonitor", "ratchet-worker"), operators_schema()
    validate(monitor, schema)
    for wrong, said in (({"ports": "status"}, "ports"), ({"port": "status", "interval": "often"}, "often")):
        with pytest.raises(SchemaError, match=said):
            validate({**monitor, "spec": {**monitor["spec"], "endpoints": [wrong]}}, schema)


def test_the_settings_are_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = one("ConfigMap", "ratchet")["data"]["ratchet.toml"]
    (tmp_path / "ratchet.toml").write_text(toml, "utf-8")
    for _, pod in pods():
        for variable in pod["containers"][0]["env"]:
            monkeypatch.setenv(variable["name"], variable.get("value", "10.0.0.7"))
    settings = load(tmp_path / "ratchet.toml")  # refuses what is no setting
    assert settings.streams["orders"].replication == 3
    assert settings.kafka["sasl.password"] == "10.0.0.7"
    assert (settings.web.port, settings.web.status_port) == (8080, 8081)


def test_the_page_finds_its_token_where_it_may_read_it() -> None:
    pod = one("Deployment", "ratchet-web")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    (file,) = (each["value"] for each in container["env"] if each["name"] == "RATCHET_WEB__TOKEN_FILE")
    (mount,) = (each for each in container["volumeMounts"] if each["name"] == "token")
    (volume,) = (each["secret"] for each in pod["volumes"] if each["name"] == "token")
    assert file == f"{mount['mountPath']}/{volume['items'][0]['path']}"
    assert volume["defaultMode"] == 0o440  # YAML's octal; `read_token` refuses 0o027
    said = (FOLDER / "config.yaml").read_text("utf-8")
    assert f"secret generic {volume['secretName']} --from-literal={volume['items'][0]['key']}=" in said


def test_a_worker_has_the_time_it_takes_to_stop() -> None:
    pod = one("StatefulSet", "ratchet-worker")["spec"]["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > STOP_WITHIN_S


def test_a_worker_is_asked_at_its_status_address() -> None:
    worker = one("StatefulSet", "ratchet-worker")["spec"]["template"]["spec"]["containers"][0]
    assert {each["name"]: each["containerPort"] for each in worker["ports"]} == {"status": 8081}
    asked = {name: worker[f"{name}Probe"]["httpGet"] for name in ("startup", "liveness", "readiness")}
    assert {each["port"] for each in asked.values()} == {"status"}
    assert [each["path"] for each in asked.values()] == ["/healthz", "/healthz", "/readyz"]


def test_what_the_page_is_asked_for_is_there_and_its_host_is_allowed() -> None:
    page = one("Deployment", "ratchet-web")["spec"]["template"]["spec"]["containers"][0]
    for probe in ("readinessProbe", "livenessProbe"):
        asked = page[probe]["httpGet"]
        assert (ROOT / "app" / "web" / asked["path"].lstrip("/")).is_file()
        assert asked["httpHeaders"] == [{"name": "Host", "value": "localhost"}]
    assert page["args"][-2:] == ["--allow-host", one("Service", "ratchet-web")["metadata"]["name"]]


def test_selectors_find_what_they_mean() -> None:
    for name in ("ratchet-worker", "ratchet-web"):
        kind = "StatefulSet" if name == "ratchet-worker" else "Deployment"
        labels = one(kind, name)["spec"]["template"]["metadata"]["labels"]
        assert one(kind, name)["spec"]["selector"]["matchLabels"] == labels
        assert one("Service", name)["spec"]["selector"] == labels
        named = {port["name"] for port in one(kind, name)["spec"]["template"]["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in one("Service", name)["spec"]["ports"]} <= named
    worker = one("Service", "ratchet-worker")
    monitor = one("ServiceMonitor", "ratchet-worker")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= worker["metadata"]["labels"].items()
    assert {each["port"] for each in monitor["endpoints"]} <= {port["name"] for port in worker["spec"]["ports"]}
    budget = one("PodDisruptionBudget", "ratchet-worker")["spec"]
    assert budget["selector"]["matchLabels"] == worker["spec"]["selector"]
    assert one("StatefulSet", "ratchet-worker")["spec"]["serviceName"] == worker["metadata"]["name"]


@pytest.mark.parametrize("pod", PODS)
def test_a_pod_may_run_where_rights_are_restricted(pod: dict[str, Any]) -> None:
    """The level `restricted` of Kubernetes' pod security standards, and a root file system that nobody writes to."""
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    for container in [*pod["initContainers"], *pod["containers"]]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert container["resources"]["limits"]["memory"]
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}


@pytest.mark.parametrize("pod", PODS)
def test_a_pod_agrees_with_the_image(pod: dict[str, Any]) -> None:
    dockerfile = (ROOT / "Dockerfile").read_text("utf-8")
    uid = pod["securityContext"]["runAsUser"]
    assert pod["securityContext"]["fsGroup"] == pod["securityContext"]["runAsGroup"] == uid
    assert f"--gid {uid} ratchet" in dockerfile
    assert f"--uid {uid} --gid ratchet" in dockerfile
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text("utf-8"))
    images = {each["image"] for each in [*pod["initContainers"], *pod["containers"]]}
    assert images == {compose["services"]["worker"]["image"]}
    # What is written in a container is a volume here: the folders of the image, and where Numba keeps compiled code.
    mounted = {each["mountPath"] for each in pod["containers"][0]["volumeMounts"]}
    assert {"/var/cache/ratchet/numba", "/tmp"} <= mounted  # noqa: S108 - of the container
    assert "NUMBA_CACHE_DIR=/var/cache/ratchet/numba" in dockerfile


@pytest.mark.parametrize("pod", PODS)
def test_variables_of_kubernetes_are_not_taken_for_settings(pod: dict[str, Any]) -> None:
    """A Service `ratchet-web` would bring RATCHET_WEB_PORT, which no setting is called."""
    assert pod["enableServiceLinks"] is False
