"""docker-compose.yml and Dockerfile: valid, and in agreement with the settings, the commands and the folders."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry, start_http_server

from kafka_ratchet.app.settings import OTHER_VARIABLES, load
from kafka_ratchet.app.worker.process import STOP_WITHIN_S
from kafka_ratchet.spark_sink.job.metrics import RunCollector
from kafka_ratchet.spark_sink.job.run_state import RunState
from tests.folders import PACKAGES, ROOT

COMPOSE = ROOT / "docker-compose.yml"
DOCKERFILE = (ROOT / "Dockerfile").read_text("utf-8")
COMMANDS = {"broker", "worker", "web", "publish", "sink", "tables", "verify", "demo", "setup"}
IMAGE_OF_OURS = "kafka-ratchet"

document: dict[str, Any] = yaml.safe_load(COMPOSE.read_text("utf-8"))
services: dict[str, dict[str, Any]] = document["services"]
prometheus: dict[str, Any] = yaml.safe_load((ROOT / "deploy/compose/prometheus.yml").read_text("utf-8"))
OURS = sorted(name for name, service in services.items() if service["image"].startswith(f"{IMAGE_OF_OURS}:"))
BROKERS = sorted(name for name in services if name.startswith("kafka-"))


def checked(path: Path) -> subprocess.CompletedProcess[str]:
    """Validate by the schema of the Compose specification, as check-jsonschema carries it."""
    arguments = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(path)]
    return subprocess.run(arguments, capture_output=True, text=True, check=False)


def test_valid_by_the_compose_schema() -> None:
    result = checked(COMPOSE)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_token_for_the_page_is_valid_and_only_the_image_s_user_reads_it() -> None:
    path = ROOT / "deploy/compose/token.yml"
    result = checked(path)
    assert result.returncode == 0, result.stdout + result.stderr
    added = yaml.safe_load(path.read_text("utf-8"))
    web = added["services"]["web"]
    (secret,) = web["secrets"]
    assert web["environment"] == {"RATCHET_WEB__TOKEN_FILE": f"/run/secrets/{secret['source']}"}
    assert set(added["secrets"]) == {secret["source"]}
    assert secret["mode"] == 0o400
    assert f"--uid {secret['uid']} --gid" in DOCKERFILE
    assert (ROOT / "app/web/static/ratchet.css").is_file()
    assert "/static/ratchet.css" in web["healthcheck"]["test"][-1]


def test_schema_refuses_a_misspelt_key(tmp_path: Path) -> None:
    misspelt = tmp_path / "docker-compose.yml"
    misspelt.write_text(COMPOSE.read_text("utf-8").replace("replicas: 2", "replica: 2"), "utf-8")
    result = checked(misspelt)
    assert result.returncode == 1
    assert "services.worker.deploy: 'replica' " in result.stdout


def test_the_parts_are_there() -> None:
    assert BROKERS == ["kafka-1", "kafka-2", "kafka-3"]
    assert OURS == ["sink", "source", "web", "worker"]
    assert sorted(services) == sorted([*BROKERS, *OURS, "grafana", "postgres", "prometheus"])
    assert {name for name, service in services.items() if "profiles" in service} == {"grafana", "prometheus"}
    assert services["worker"]["deploy"]["replicas"] == 2


def image_variables() -> dict[str, str]:
    return dict(re.findall(r"^(?:ENV)? +(RATCHET_\w+)=(\S+)", DOCKERFILE, re.MULTILINE))


def take_variables(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str]) -> None:
    """Replace all variables of Ratchet."""
    for variable in os.environ:
        if variable.upper().startswith("RATCHET_"):
            monkeypatch.delenv(variable)
    for variable, value in variables.items():
        monkeypatch.setenv(variable, str(value))


@pytest.mark.parametrize("name", OURS)
def test_environment_is_made_of_real_settings(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    take_variables(monkeypatch, image_variables() | services[name]["environment"])
    settings = load()  # refuses what is no setting

    assert settings.bootstrap == ",".join(f"{broker}:9092" for broker in BROKERS)
    stream_name, stream = settings.stream()
    assert (stream_name, stream.input, stream.replication) == ("events", "events", 3)
    assert settings.state_folder == Path("/var/lib/ratchet/state")
    assert settings.sink.path == "/var/lib/ratchet/results"
    assert settings.sink.store == "postgres"


def test_no_variable_of_ours_elsewhere() -> None:
    for name in set(services) - set(OURS):
        assert not [variable for variable in services[name].get("environment", ()) if variable.startswith("RATCHET_")]


def test_variables_of_the_image_are_known() -> None:
    named = set(re.findall(r"\b(RATCHET_\w+)=", DOCKERFILE))
    assert named - OTHER_VARIABLES == {"RATCHET_STATE_FOLDER"}


@pytest.mark.parametrize(
    ("section", "path", "store"),
    [("sink", "s3://lake/orders", "delta"), ("sinks.orders", "ratchet-results", "postgres")],
)
def test_the_image_s_variables_leave_the_sinks_of_a_mounted_file_alone(
    section: str, path: str, store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    take_variables(monkeypatch, image_variables())
    url = 'url = "postgresql://ratchet@db/results"\n' if store == "postgres" else ""
    file = tmp_path / "ratchet.toml"
    file.write_text(f'[{section}]\nstore = "{store}"\npath = "{path}"\ntable = "orders"\n{url}', "utf-8")
    settings = load(file)
    assert len(settings.every_sink()) == 1
    sink = settings.of_sink().sink
    assert (sink.store, sink.path, sink.table) == (store, path, "orders")


@pytest.mark.parametrize("name", OURS)
def test_commands_exist(name: str) -> None:
    assert services[name]["command"][0] in COMMANDS
    assert "entrypoint" not in services[name]


def test_the_sink_cannot_be_scaled() -> None:
    """Of two containers, the one taken over ends with code 3, is started again, and takes over in turn."""
    name = services["sink"]["container_name"]  # Compose refuses a second container of the name
    assert name == "${COMPOSE_PROJECT_NAME:-ratchet}-sink"  # of another project's too, without the variable
    assert services["sink"]["restart"] == "unless-stopped"
    assert [each for each in OURS if "container_name" in services[each]] == ["sink"]


def test_commands_of_the_comments_exist() -> None:
    shown = re.findall(r"docker compose run --rm \w+ (\w+)", COMPOSE.read_text("utf-8"))
    assert shown == ["publish", "verify"]
    assert set(shown) <= COMMANDS
    assert re.findall(r"-m kafka_ratchet (\w+)", DOCKERFILE) == ["setup"]


def test_file_of_the_comments_exists() -> None:
    shown = re.findall(r"publish (\S+)", COMPOSE.read_text("utf-8"))
    assert [(ROOT / path).is_file() for path in shown] == [True]


def test_the_source_publishes_all_of_the_sample_data() -> None:
    given = [word for word in services["source"]["command"] if word.endswith(".gz")]
    assert sorted(given) == sorted(str(path.relative_to(ROOT)) for path in (ROOT / "app/demo/data").glob("*.ndjson.gz"))


def test_ports_are_published_on_loopback_only() -> None:
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {
        "grafana": ["127.0.0.1:3000:3000"],
        "kafka-1": ["127.0.0.1:19092:9094"],
        "kafka-2": ["127.0.0.1:29092:9094"],
        "kafka-3": ["127.0.0.1:39092:9094"],
        "postgres": ["127.0.0.1:15432:5432"],
        "prometheus": ["127.0.0.1:9090:9090"],
        "web": ["127.0.0.1:8080:8080"],
    }
    assert services["web"]["environment"]["RATCHET_WEB__PORT"] == 8080
    assert not any("network_mode" in service for service in services.values())


@pytest.mark.parametrize("name", sorted(services))
def test_images_are_pinned_by_tag(name: str) -> None:
    assert re.fullmatch(r"[a-z][a-z/-]+:v?\d+\.[\w.-]+", services[name]["image"])


def test_image_of_ours_has_the_version_of_the_project() -> None:
    project = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text("utf-8"), re.MULTILINE)
    assert project
    assert {services[name]["image"] for name in OURS} == {f"{IMAGE_OF_OURS}:{project[1]}"}


def test_base_image_is_pinned_by_tag() -> None:
    assert re.findall(r"^FROM (.+)$", DOCKERFILE, re.MULTILINE) == ["python:3.11-slim-bookworm"]


def test_a_write_counts_on_two_of_three_brokers() -> None:
    for name in BROKERS:
        environment = services[name]["environment"]
        assert environment["KAFKA_MIN_INSYNC_REPLICAS"] == 2
        assert environment["KAFKA_TRANSACTION_STATE_LOG_MIN_ISR"] == 2
        for topics in ("DEFAULT", "OFFSETS_TOPIC", "TRANSACTION_STATE_LOG"):
            assert environment[f"KAFKA_{topics}_REPLICATION_FACTOR"] == 3


def test_brokers_differ_in_identity_and_share_the_quorum() -> None:
    environments = [services[name]["environment"] for name in BROKERS]
    assert [environment["KAFKA_NODE_ID"] for environment in environments] == [1, 2, 3]
    assert [environment["KAFKA_ADVERTISED_LISTENERS"] for environment in environments] == [
        f"BROKER://{name}:9092,EXTERNAL://127.0.0.1:{number}9092" for number, name in enumerate(BROKERS, start=1)
    ]
    voters = {environment["KAFKA_CONTROLLER_QUORUM_VOTERS"] for environment in environments}
    assert voters == {",".join(f"{number}@{name}:9093" for number, name in enumerate(BROKERS, start=1))}
    folders = {volume for name in BROKERS for volume in services[name]["volumes"]}
    assert folders == {f"{name}:/var/lib/kafka/data" for name in BROKERS}


def test_each_worker_has_a_state_folder_of_its_own() -> None:
    """A named volume would be shared by the replicas, an anonymous one stays behind at each `down`."""
    assert "volumes" not in services["worker"]
    assert not re.search("^VOLUME", (ROOT / "Dockerfile").read_text("utf-8"), re.MULTILINE)


def test_one_service_builds_the_image_of_all() -> None:
    """Assert one build: with several, each `up --build` would change the image's id and recreate all containers."""
    ours = {name: service for name, service in services.items() if service["image"].startswith("kafka-ratchet:")}
    assert [name for name, service in ours.items() if "build" in service] == ["worker"]
    assert len(ours) == 4
    assert len({service["image"] for service in ours.values()}) == 1


@pytest.mark.parametrize(("generation", "code"), [(0, 1), (1, 0), (12, 0)])
def test_the_sink_is_healthy_once_its_table_is_there(generation: int, code: int) -> None:
    command, _, script = services["sink"]["healthcheck"]["test"][1:]
    registry, run = CollectorRegistry(), RunState()
    if generation:
        run.note_take_over(generation, {0: 0})
    registry.register(RunCollector(run, "results", "events-once"))
    server, thread = start_http_server(0, "127.0.0.1", registry)
    try:
        here = script.replace("127.0.0.1:8082", f"127.0.0.1:{server.server_port}")
        assert command == "python"
        assert subprocess.run([sys.executable, "-c", here], timeout=60, check=False).returncode == code
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def test_named_volumes_are_declared() -> None:
    used = {
        volume.split(":")[0]
        for service in services.values()
        for volume in service.get("volumes", [])
        if isinstance(volume, str)
    }
    assert {volume for volume in used if not volume.startswith(".")} == set(document["volumes"])
    assert all((ROOT / volume).exists() for volume in used if volume.startswith("./deploy/compose/"))


def test_a_service_is_asked_where_it_listens() -> None:
    """Assert the address for Docker's health check in the container, and for Prometheus from its own."""
    variables = {name: services[name]["environment"] for name in OURS}
    listening = {
        "sink": variables["sink"]["RATCHET_SINK__METRICS_PORT"],
        "web": variables["web"]["RATCHET_WEB__PORT"],
        "worker": variables["worker"]["RATCHET_WEB__STATUS_PORT"],
    }
    for name, port in listening.items():
        assert f"http://127.0.0.1:{port}/" in services[name]["healthcheck"]["test"][-1]
    jobs = {job["job_name"]: job for job in prometheus["scrape_configs"]}
    (found,) = jobs["ratchet-worker"]["dns_sd_configs"]
    assert (found["names"], found["port"]) == (["worker"], listening["worker"])
    assert jobs["ratchet-sink"]["static_configs"] == [{"targets": [f"sink:{listening['sink']}"]}]
    (source,) = jobs["ratchet-producer"]["static_configs"][0]["targets"]
    assert f"--metrics-port={source.removeprefix('source:')}" in services["source"]["command"]


def test_a_worker_has_the_time_it_takes_to_stop() -> None:
    assert int(services["worker"]["stop_grace_period"].removesuffix("s")) > STOP_WITHIN_S


def test_grafana_finds_prometheus_and_the_dashboards() -> None:
    folder = ROOT / "deploy/compose/grafana"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yml").read_text("utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
    (provider,) = yaml.safe_load((folder / "dashboards/ratchet.yml").read_text("utf-8"))["providers"]
    assert f"./deploy/grafana:{provider['options']['path']}:ro" in services["grafana"]["volumes"]


def test_containers_of_ours_have_no_rights() -> None:
    assert re.findall(r"^USER (\w+)$", DOCKERFILE, re.MULTILINE) == ["ratchet"]
    for name in OURS:
        assert services[name]["cap_drop"] == ["ALL"]
        assert services[name]["security_opt"] == ["no-new-privileges:true"]
        assert "privileged" not in services[name]
    assert "docker.sock" not in COMPOSE.read_text("utf-8")


def test_image_is_built_from_the_lock_by_hashes() -> None:
    assert "pip install --no-cache-dir --require-hashes --requirement requirements.lock" in DOCKERFILE
    assert len(re.findall(r"pip install", DOCKERFILE)) == 1


def test_state_is_for_the_user_alone() -> None:
    folders = re.search(r"install --directory (.*?)\n\n", DOCKERFILE, re.DOTALL)
    assert folders
    assert "--owner=ratchet --group=ratchet --mode=0700" in folders[1]
    assert {"/var/lib/ratchet/state", "/var/lib/ratchet/results"} <= set(folders[1].split())


def test_the_image_gets_every_package_and_the_context_no_more() -> None:
    packages = {*PACKAGES, "docs", "kafka_ratchet", "errors.py"}
    copied = {
        source.rstrip("/")
        for line in re.findall(r"^COPY (.+) \S+$", DOCKERFILE, re.MULTILINE)
        for source in line.split()
    }
    assert packages <= copied
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert {line[1:] for line in ignored if line.startswith("!")} == copied
    assert "*" in ignored
