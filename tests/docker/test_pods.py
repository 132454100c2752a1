"""The pods of deploy/kubernetes on an engine, run as a kubelet runs them: `./ratchet test -m docker`.

Volumes, variables, rights, probes and grace periods are those of the manifests. Two things differ: a pod has this
machine's network with free ports, and the settings name a Kafka without TLS, as docs/guide/deploy.md describes it.
"""

from __future__ import annotations

import json
import re
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from confluent_kafka.admin import AdminClient, NewTopic

from kafka_ratchet.app.local.embedded_kafka import EmbeddedBroker
from kafka_ratchet.app.local.ports import free_port
from kafka_ratchet.producers import Producer
from tests.containers import docker_answers
from tests.docker.engine import docker, inspect, is_local, wait_for
from tests.docker.stack import IMAGE, ROOT

pytestmark = [
    pytest.mark.docker,
    pytest.mark.long,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not docker_answers(), reason="no Docker engine answers"),
]
EVENTS = 1000
TOKEN = uuid.uuid4().hex
Manifest = dict[str, Any]


def manifest(file: str, kind: str) -> Manifest:
    """Return the object of a kind in a file of deploy/kubernetes."""
    text = (ROOT / "deploy" / "kubernetes" / file).read_text("utf-8")
    (found,) = (each for each in yaml.safe_load_all(text) if each and each["kind"] == kind)
    return dict(found)


def settings_for(bootstrap: str) -> str:
    """Return the settings of the ConfigMap for a Kafka of one node without TLS and passwords."""
    text = manifest("config.yaml", "ConfigMap")["data"]["ratchet.toml"]
    text = re.sub(r"^\[kafka\].*?(?=^\[)", "", text, flags=re.MULTILINE | re.DOTALL)
    text = re.sub(r'^bootstrap = ".*"', f'bootstrap = "{bootstrap}"', text, flags=re.MULTILINE)
    return str(text.replace("replication = 3", "replication = 1"))


class Pod:
    """One pod of a manifest. Its volumes live as long as the object, its containers from `start` to `stop`."""

    def __init__(self, manifest: Manifest, settings: Path, port: int) -> None:
        self.spec: Manifest = manifest["spec"]["template"]["spec"]
        (self.container,) = self.spec["containers"]
        self.name = f"ratchet-pod-{uuid.uuid4().hex[:8]}"
        self.port, self._settings = port, settings
        claims = [each["metadata"]["name"] for each in manifest["spec"].get("volumeClaimTemplates", ())]
        empty = [each["name"] for each in self.spec["volumes"] if "emptyDir" in each]
        secrets = {each["name"]: each["secret"] for each in self.spec["volumes"] if "secret" in each}
        group = self.spec["securityContext"]["fsGroup"]
        self._volumes = {each: f"{self.name}-{each}" for each in (*claims, *empty, "token") if each != "kafka"}
        for each in self._volumes:
            secret = secrets.get(each)
            order = f"chown 0:{group} /volume && chmod 2777 /volume"
            if secret is not None:
                order += f" && cat > /volume/token && chown 0:{group} /volume/token"
                order += f" && chmod {secret['defaultMode']:o} /volume/token"
            volume = ("--volume", f"{self._volumes[each]}:/volume")
            command = [
                "docker",
                "run",
                "--rm",
                "--interactive",
                "--network=none",
                "--user=0",
                *volume,
                "--entrypoint=sh",
                IMAGE,
            ]
            subprocess.run([*command, "-c", order], input=TOKEN, text=True, check=True)

    def _rights(self, container: Manifest) -> list[str]:
        pod, own = self.spec["securityContext"], container["securityContext"]
        assert own["readOnlyRootFilesystem"]
        assert not own["allowPrivilegeEscalation"]
        return [
            "--read-only",
            "--network=host",
            "--security-opt=no-new-privileges",
            f"--user={pod['runAsUser']}:{pod['runAsGroup']}",
            f"--group-add={pod['fsGroup']}",
            f"--memory={container['resources']['limits']['memory'].removesuffix('i').lower()}",
            *(f"--cap-drop={each}" for each in own["capabilities"]["drop"]),
            *(word for each in container["volumeMounts"] for word in self._mount(each)),
        ]

    def _mount(self, mount: Manifest) -> list[str]:
        if mount["name"] == "settings":
            return ["--volume", f"{self._settings}:{mount['mountPath']}:ro"]
        if mount["name"] == "kafka":
            return []
        mode = "ro,nocopy" if mount.get("readOnly") else "nocopy"  # a kubelet copies nothing out of the image
        return ["--volume", f"{self._volumes[mount['name']]}:{mount['mountPath']}:{mode}"]

    def _variables(self) -> list[str]:
        values = {each["name"]: each.get("value", "127.0.0.1") for each in self.container["env"]}
        del values["RATCHET_KAFKA__SASL__PASSWORD"]
        for name in ("RATCHET_WEB__PORT", "RATCHET_WEB__STATUS_PORT"):
            if name in values:
                values[name] = str(self.port)
        return [word for name, value in values.items() for word in ("--env", f"{name}={value}")]

    def run(self, container: Manifest, *arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a container of the pod to its end."""
        words = ["--rm", *self._rights(container), *self._variables()]
        command = container.get("command", [])
        entrypoint = [f"--entrypoint={command[0]}"] if command else []
        whole = ["docker", "run", *words, *entrypoint, container["image"], *command[1:], *arguments]
        return subprocess.run(whole, capture_output=True, text=True, check=check)

    def start(self) -> None:
        """Run the init containers, then start the container."""
        for each in self.spec["initContainers"]:
            self.run(each)
        words = ["--detach", "--name", self.name, *self._rights(self.container), *self._variables()]
        docker("run", *words, self.container["image"], *self.container["args"])

    def probe(self, name: str) -> bool:
        """Return whether a probe of the manifest succeeds."""
        asked = self.container[name]
        headers = {each["name"]: each["value"] for each in asked["httpGet"].get("httpHeaders", ())}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{asked['httpGet']['path']}", headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=asked.get("timeoutSeconds", 1)):  # noqa: S310
                return True
        except OSError:
            return False

    def wait_for(self, name: str) -> float:
        """Wait until a probe succeeds, as long as its container runs; return the seconds."""

        def succeeds() -> bool:
            assert inspect(self.name)["State"]["Running"], self.logs()
            return self.probe(name)

        return wait_for(succeeds, f"{name} of {self.name}")

    def logs(self) -> str:
        """Return the container's output on both streams."""
        done = subprocess.run(["docker", "logs", self.name], capture_output=True, text=True, check=True)
        return done.stdout + done.stderr

    def stop(self) -> tuple[int, float, str]:
        """Stop the container as a kubelet does; return its exit code, the seconds, and its output."""
        hook = self.container.get("lifecycle", {}).get("preStop", {}).get("exec", {}).get("command")
        if hook:
            docker("exec", self.name, *hook)
        began = time.monotonic()
        docker("stop", "--time", str(self.spec["terminationGracePeriodSeconds"]), self.name)
        seconds = time.monotonic() - began
        code, output = int(inspect(self.name)["State"]["ExitCode"]), self.logs()
        docker("rm", self.name)
        return code, seconds, output

    def close(self) -> None:
        """Remove the container and its volumes."""
        docker("rm", "--force", self.name, check=False)
        docker("volume", "rm", *self._volumes.values(), check=False)


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[str]:
    if not is_local(IMAGE):
        docker("build", "--tag", IMAGE, str(ROOT))
    with EmbeddedBroker() as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        admin.create_topics([NewTopic("orders.raw", 4, 1)])["orders.raw"].result(60)
        yield broker.bootstrap


@pytest.fixture
def settings(own_kafka: str, tmp_path: Path) -> Path:
    path = tmp_path / "ratchet.toml"
    path.write_text(settings_for(own_kafka), "utf-8")
    path.chmod(0o644)
    return path


def publish(bootstrap: str, first: int) -> None:
    with Producer("orders.raw", "test", options={"bootstrap.servers": bootstrap}) as producer:
        for number in range(first, first + EVENTS):
            producer.send(json.dumps({"n": number}).encode(), key=str(number % 50).encode())


def figure(name: str, value: float) -> None:
    path = ROOT / "build" / "docker" / "pods.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    figures = json.loads(path.read_text("utf-8")) if path.exists() else {}
    path.write_text(json.dumps(figures | {name: round(value, 1)}, indent=1) + "\n")


def test_a_worker_starts_stops_within_its_grace_and_finds_its_state(own_kafka: str, settings: Path) -> None:
    pod = Pod(manifest("worker.yaml", "StatefulSet"), settings, free_port())
    try:
        for start in ("first", "second"):
            pod.start()
            figure(f"worker, {start} start: startup probe", pod.wait_for("startupProbe"))
            figure(f"worker, {start} start: readiness probe", pod.wait_for("readinessProbe"))
            assert pod.probe("livenessProbe")
            publish(own_kafka, 0 if start == "first" else EVENTS)
            verdict = verified(pod)
            code, seconds, output = pod.stop()
            figure(f"worker, {start} start: SIGTERM to exit", seconds)
            assert code == 0, output
            assert seconds < pod.spec["terminationGracePeriodSeconds"] - 10
            assert not re.search("Read-only file system|Permission denied|Traceback", output), output
            assert "lost 0, doubled 0" in verdict
    finally:
        pod.close()


def verified(pod: Pod) -> str:
    """Return the output of `ratchet verify` in the pod, once no input is pending."""
    said = ""

    def proves() -> bool:
        nonlocal said
        done = pod.run(pod.container, "verify", *pod.container["args"][1:], check=False)
        said = done.stdout + done.stderr
        assert done.returncode in (0, 3), said
        return done.returncode == 0

    wait_for(proves, "all input judged")
    return said


def test_the_page_starts_and_stops_within_its_grace(settings: Path) -> None:
    pod = Pod(manifest("web.yaml", "Deployment"), settings, free_port())
    try:
        pod.start()
        figure("page: readiness probe", pod.wait_for("readinessProbe"))
        assert pod.probe("livenessProbe")
        address = f"http://127.0.0.1:{pod.port}/index.json"
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(address, timeout=60)
        request = urllib.request.Request(address, headers={"Authorization": f"Bearer {TOKEN}"})
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
            assert json.load(answer)["streams"]
        code, seconds, output = pod.stop()
        figure("page: SIGTERM to exit", seconds)
        assert code == 0, output
        assert seconds < pod.spec["terminationGracePeriodSeconds"] - 5
        assert not re.search("Read-only file system|Permission denied|Traceback", output), output
    finally:
        pod.close()
