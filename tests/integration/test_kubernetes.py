"""docker-compose.yml and deploy/kubernetes keep what the documents promise of a deployment."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from soong.orchestrator.cli.commands import COMMANDS
from soong.shared.core import timing
from soong.shared.core.config import load_config, parse_config
from soong.shared.core.settings import Settings
from soong.shared.storage.sql.roles.role_grants import SLOTS_WANTED
from soong.shared.toolsets.declarative.definition import Bounds, read_tool_files

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
SECRETS = {
    "soong-migrate": {"database_url"},
    "soong-orchestrator": {"database_url", "redis_url", "signing_key"},
    "soong-worker": {"database_url", "redis_url"},
    "soong-api": {"database_url", "redis_url"},
    "soong-flower": {"redis_url", "flower_basic_auth"},
}
SCALER = {"soong-scaler": {"database_url"}}
"""What KEDA itself reads, in place of a Prometheus."""


def documents() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(FOLDER.rglob("*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            yield str(path.relative_to(FOLDER)), document


DOCUMENTS = list(documents())
WORKLOADS = {
    document["metadata"]["name"]: document for _, document in DOCUMENTS if document["kind"] in {"Deployment", "Job"}
}
parts = pytest.mark.parametrize("name", WORKLOADS)


def pod(name: str) -> dict[str, Any]:
    spec: dict[str, Any] = WORKLOADS[name]["spec"]["template"]["spec"]
    return spec


def container(name: str) -> dict[str, Any]:
    (only,) = pod(name)["containers"]
    return dict(only)


def of_kind(kind: str) -> list[dict[str, Any]]:
    return [document for _, document in DOCUMENTS if document["kind"] == kind]


@parts
def test_nothing_runs_as_root_or_writes_to_its_image(name: str) -> None:
    context, inner = pod(name)["securityContext"], container(name)["securityContext"]

    assert (context["runAsNonRoot"], context["runAsUser"]) == (True, 10001)
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    assert inner == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert pod(name)["automountServiceAccountToken"] is False
    assert pod(name)["enableServiceLinks"] is False
    assert not any(pod(name).get(shared) for shared in ("hostNetwork", "hostPID", "hostIPC"))
    assert not any("hostPath" in volume for volume in pod(name)["volumes"])
    assert f"useradd --system --uid {context['runAsUser']} " in (ROOT / "deploy" / "Dockerfile").read_text()


@parts
def test_each_part_is_given_its_own_secrets_as_files_and_no_other_parts(name: str) -> None:
    mounted = {
        volume["secret"]["secretName"]: volume["secret"] for volume in pod(name)["volumes"] if "secret" in volume
    }
    files = {
        entry["value"].rpartition("/")[2]
        for entry in container(name)["env"]
        if entry["value"].startswith("/run/secrets/soong/")
    } | {argument.rpartition("/")[2] for argument in container(name)["args"] if argument.startswith("/run/secrets/")}

    assert mounted.keys() == {name}
    assert files == SECRETS[name]
    # Others than the owner and the group would include whoever else gets into the container.
    assert mounted[name]["defaultMode"] == 0o440
    assert not any("valueFrom" in entry for entry in container(name)["env"])


def test_the_script_makes_exactly_the_secrets_that_are_mounted() -> None:
    script = (FOLDER / "secrets.sh").read_text()

    made = {
        f"soong-{part}": {item.partition("=")[0] for item in items.split()}
        for part, items in re.findall(r"^secret (\w+) (.+)$", script, re.MULTILINE)
    }
    assert made == SECRETS | SCALER
    (access,) = of_kind("TriggerAuthentication")
    (reference,) = access["spec"]["secretTargetRef"]
    assert {reference["name"]: {reference["key"]}} == SCALER


def writable(name: str) -> dict[str, str]:
    """Return what a part may write that outlives it: the volume by its path in the container."""
    claims = {volume["name"]: volume for volume in pod(name)["volumes"] if "persistentVolumeClaim" in volume}
    return {
        mount["mountPath"]: claims[mount["name"]]["persistentVolumeClaim"]["claimName"]
        for mount in container(name)["volumeMounts"]
        if mount["name"] in claims and not mount.get("readOnly")
    }


@pytest.mark.spec("OPS-12.b")
def test_what_decides_is_a_config_map_and_workers_write_data_and_projects_alone() -> None:
    data, projects = ("/var/lib/soong/data", "soong-data"), ("/projects", "soong-projects")
    for name in ("soong-orchestrator", "soong-worker", "soong-api"):
        (config,) = [volume for volume in pod(name)["volumes"] if "configMap" in volume]
        (mount,) = [mount for mount in container(name)["volumeMounts"] if mount["name"] == config["name"]]
        assert config["configMap"]["name"] == "soong-config"
        assert (mount["mountPath"], mount["readOnly"]) == ("/var/lib/soong/home", True)

    assert {name: writable(name) for name in WORKLOADS} == {
        "soong-worker": dict((data, projects)),
        "soong-orchestrator": dict((data,)),
        "soong-api": {},
        "soong-flower": {},
        "soong-migrate": {},
    }


def test_the_configuration_of_the_cluster_is_one_that_is_read(tmp_path: Path) -> None:
    (config,) = of_kind("ConfigMap")

    parse_config(config["data"]["config.toml"])


@pytest.mark.spec("OPS-12", "CMD-02")
def test_a_mounted_config_map_is_read_though_all_of_it_is_links(tmp_path: Path) -> None:
    """The layout in which Kubernetes mounts one: links to a folder whose name is exchanged at each change."""
    dated = tmp_path / "..2026_11_22"
    (dated / "tools").mkdir(parents=True)
    (dated / "config.toml").write_text('[permission]\nmode = "strict"\n')
    tool = {"name": "team.hello", "description": "Say hello.", "permission": "readonly", "command": "/bin/echo"}
    tool["input_schema"] = {"type": "object", "properties": {}}  # type: ignore[assignment]  # one kind of value
    (dated / "tools" / "hello.json").write_text(json.dumps(tool))
    (tmp_path / "..data").symlink_to(dated.name)
    for name in ("config.toml", "tools"):
        (tmp_path / name).symlink_to(f"..data/{name}")

    config = load_config(tmp_path)
    files = read_tool_files(tmp_path, Bounds.of(config))

    assert str(config.permission.mode) == "strict"
    assert files.problems == ()
    assert [found.name for found in files.tools] == ["team.hello"]


@parts
def test_what_is_started_and_set_is_there(name: str) -> None:
    assert container(name)["args"][0] in COMMANDS
    variables = {entry["name"].removeprefix("SOONG_").removesuffix("_FILE").lower() for entry in container(name)["env"]}
    known = {*Settings.model_fields, "signing_key"}
    assert variables <= known


@parts
def test_every_part_says_what_it_takes_and_when_it_is_well(name: str) -> None:
    resources = container(name)["resources"]

    assert {"cpu", "memory"} <= resources["requests"].keys()
    assert "memory" in resources["limits"]
    if WORKLOADS[name]["kind"] == "Deployment":
        assert {"livenessProbe", "startupProbe"} <= container(name).keys()


def test_a_worker_has_time_to_drain() -> None:
    drain = next(entry["value"] for entry in container("soong-worker")["env"] if entry["name"] == "SOONG_DRAIN_S")

    assert pod("soong-worker")["terminationGracePeriodSeconds"] >= float(drain) + timing.RELEASE_LIMIT_S + 15


def test_a_database_that_is_away_restarts_no_orchestrator() -> None:
    assert container("soong-orchestrator")["livenessProbe"]["httpGet"]["path"] == "/healthz"
    assert container("soong-orchestrator")["readinessProbe"]["httpGet"]["path"] == "/metrics"


def test_selectors_find_the_pods_that_are_meant() -> None:
    labels = {name: workload["spec"]["template"]["metadata"]["labels"] for name, workload in WORKLOADS.items()}
    for name, workload in WORKLOADS.items():
        if workload["kind"] == "Deployment":
            assert workload["spec"]["selector"]["matchLabels"] == labels[name]
    for service in of_kind("Service"):
        name = service["metadata"]["name"]
        ports = {port["name"] for port in container(name)["ports"]}
        assert service["spec"]["selector"] == labels[name]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= ports
    for budget in of_kind("PodDisruptionBudget"):
        assert budget["spec"]["selector"]["matchLabels"] == labels[budget["metadata"]["name"]]


def test_the_network_is_closed_but_for_what_is_named() -> None:
    policies = {policy["metadata"]["name"]: policy["spec"] for policy in of_kind("NetworkPolicy")}

    assert policies["nothing"] == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    reach_database = policies["database"]["podSelector"]["matchExpressions"][0]["values"]
    assert "flower" not in reach_database
    kustomized = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]
    assert "models.yaml" not in kustomized  # the way out is opened by hand
    blocked = policies["models"]["egress"][0]["to"][0]["ipBlock"]["except"]
    assert "169.254.0.0/16" in blocked


def test_no_policy_lets_a_worker_reach_the_api() -> None:
    ways = [(policy["metadata"]["name"], policy["spec"]) for policy in of_kind("NetworkPolicy")]
    out = {name for name, spec in ways if _selects(spec["podSelector"], "worker") and spec.get("egress")}
    into = [name for name, spec in ways if _selects(spec["podSelector"], "api") and spec.get("ingress")]

    assert out == {"names", "database", "broker", "models"}  # none of them leads to a pod of ours, see above
    assert into == []
    servers = [to["podSelector"] for name in ("database", "broker") for to in dict(ways)[name]["egress"][0]["to"]]
    assert [one["matchLabels"]["app.kubernetes.io/name"] for one in servers] == ["postgresql", "redis"]
    assert "10.0.0.0/8" in dict(ways)["models"]["egress"][0]["to"][0]["ipBlock"]["except"]


def _selects(selector: dict[str, Any], component: str) -> bool:
    """Say whether a selector takes the pods of a component of ours."""
    labels = {"app.kubernetes.io/name": "soong", "app.kubernetes.io/component": component}
    within = all(labels.get(one["key"]) in one["values"] for one in selector.get("matchExpressions", ()))
    return within and all(labels.get(key) == value for key, value in selector.get("matchLabels", {}).items())


def test_everything_is_in_one_namespace_and_applied_by_one_command() -> None:
    namespaced = [document for _, document in DOCUMENTS if document["kind"] not in {"Namespace", "Kustomization"}]
    top = yaml.safe_load((FOLDER / "kustomization.yaml").read_text())["resources"]

    assert {document["metadata"]["namespace"] for document in namespaced} == {"soong"}
    assert {*top, "models.yaml", "kustomization.yaml"} == {path.name for path in FOLDER.glob("*.yaml")}


@pytest.mark.spec("OPS-03.b")
def test_workers_are_scaled_on_the_depth_of_their_queue() -> None:
    scaled, patch = of_kind("ScaledObject")
    (trigger,), (asked,) = (each["spec"]["triggers"] for each in (scaled, patch))
    source = (ROOT / "orchestrator" / "telemetry" / "metrics.py").read_text()

    slots = next(entry["value"] for entry in container("soong-worker")["env"] if entry["name"] == "SOONG_SLOTS")
    assert scaled["spec"]["scaleTargetRef"]["name"] in WORKLOADS
    assert trigger["metadata"]["threshold"] == asked["metadata"]["targetQueryValue"] == slots
    assert asked["metadata"]["query"].startswith(f"SELECT {SLOTS_WANTED}(")
    assert asked["authenticationRef"]["name"] == of_kind("TriggerAuthentication")[0]["metadata"]["name"]
    # Steps wait in rows: none needs a worker that waits for it.
    assert scaled["spec"]["minReplicaCount"] == 0
    assert "replicas" not in WORKLOADS["soong-worker"]["spec"]
    for metric in re.findall(r"soong_\w+", trigger["metadata"]["query"]):
        assert f'"{metric}"' in source


COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
HOME, DATA, KEYS, PROJECTS = "/var/lib/soong/home", "/var/lib/soong/data", "/var/lib/soong/keys", "/projects"
services = pytest.mark.parametrize("name", SERVICES)


def mounts(name: str) -> dict[str, str]:
    """Return how a service mounts what: ``ro`` or ``rw`` by path."""
    found = {}
    for volume in SERVICES[name].get("volumes", []):
        # The default of a variable has a colon, too.
        source, _, rest = volume.rpartition(":/")
        path, _, mode = f"/{rest}".partition(":")
        found[path] = mode or "rw"
        assert source, volume
    return found


@pytest.mark.spec("OPS-12")
@services
def test_no_container_has_more_than_it_needs(name: str) -> None:
    service = SERVICES[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    # PostgreSQL's image begins as root and leaves that and these behind.
    becoming_postgres = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID"]
    assert service.get("cap_add", []) == (becoming_postgres if name == "postgres" else [])
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["pids_limit"] <= 1024
    assert service["mem_limit"][-1] in "mg"
    # Ours have a user in the image.
    assert service["image"] == "soong:local" or name == "postgres" or service["user"] in ("redis", "10001:10001")
    assert not any("docker.sock" in volume for volume in service.get("volumes", []))


@pytest.mark.spec("OPS-12.b")
def test_what_decides_is_written_by_no_container_and_the_key_is_the_orchestrators() -> None:
    assert {name: mounts(name).get(HOME) for name in ("orchestrator", "worker", "api")} == {
        "orchestrator": "ro",
        "worker": "ro",
        "api": "ro",
    }
    assert {name for name in SERVICES if KEYS in mounts(name)} == {"orchestrator"}
    assert [name for name in SERVICES if mounts(name).get(HOME) == "rw"] == []
    assert "SOONG_SIGNING_KEY_FILE" in SERVICES["orchestrator"]["environment"]


@pytest.mark.spec("OPS-12.b")
def test_workers_write_data_and_projects_and_nothing_else() -> None:
    assert {path for path, mode in mounts("worker").items() if mode == "rw"} == {DATA, PROJECTS}
    assert {name: mounts(name).get(DATA) for name in SERVICES if DATA in mounts(name)} == {
        "orchestrator": "rw",
        "worker": "rw",
    }
    assert {name: mounts(name)[PROJECTS] for name in SERVICES if PROJECTS in mounts(name)} == {
        "orchestrator": "ro",
        "worker": "rw",
        "api": "ro",
    }


def test_the_image_says_where_both_places_are() -> None:
    image = (ROOT / "deploy" / "Dockerfile").read_text()

    assert f"SOONG_AGENT_HOME={HOME}" in image
    assert f"SOONG_DATA_DIR={DATA}" in image
    assert "mkdir -m 0700 home data keys" in image


@pytest.mark.spec("OPS-12")
def test_only_what_has_to_is_reached_from_outside_and_a_worker_reaches_nothing_there() -> None:
    published = {name: service["ports"] for name, service in SERVICES.items() if "ports" in service}

    assert COMPOSE["networks"]["inside"] == {
        "internal": True,
        "driver_opts": {"com.docker.network.bridge.inhibit_ipv4": "true"},
    }
    assert published == {"api": ["127.0.0.1:8437:8437"], "flower": ["127.0.0.1:5555:5555"]}
    assert {name for name, service in SERVICES.items() if "outside" in service["networks"]} == {"api", "flower"}


def test_each_part_has_the_secrets_of_its_own_role_alone() -> None:
    roles = {"orchestrator": "orchestrator", "worker": "worker", "api": "client", "migrate": "owner"}
    for name, role in roles.items():
        sources = {secret["source"] for secret in SERVICES[name]["secrets"]}
        assert sources <= {f"database_url_{role}", f"redis_url_{role}"}, name


@pytest.mark.parametrize("name", ["redis", "postgres", "roles"])
def test_an_image_from_elsewhere_can_be_named_by_its_digest(name: str) -> None:
    image = SERVICES[name]["image"]

    assert image.startswith(("${REDIS_IMAGE:-redis:7", "${POSTGRES_IMAGE:-postgres:17"))
    assert "latest" not in image
