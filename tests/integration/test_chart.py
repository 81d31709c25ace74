import json
import os
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft7Validator

from tests.extra import helm_programs, kubernetes_validate
from tests.helm.chart import (
    CHART,
    CHECKSUM,
    GOLDEN,
    HOOKS,
    KEEP,
    MANIFESTS,
    ROOT,
    SETS,
    Objects,
    manifests,
    objects,
    read,
    rendered,
    without_annotations,
)

VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
NAMESPACE = ("Namespace", "soong")
each_set = pytest.mark.parametrize("name", sorted(path.stem for path in SETS.glob("*.yaml")))


def golden(name: str) -> Objects:
    return read((GOLDEN / f"{name}.yaml").read_text())


def part(found: Objects, name: str) -> dict[str, Any]:
    return found["Deployment", f"soong-{name}"]


def container(found: Objects, name: str) -> dict[str, Any]:
    (only,) = part(found, name)["spec"]["template"]["spec"]["containers"]
    return dict(only)


def environment(found: Objects, name: str) -> dict[str, str]:
    return {entry["name"]: entry["value"] for entry in container(found, name)["env"]}


@pytest.mark.spec("OPS-03.c")
def test_the_chart_makes_the_objects_of_the_manifests_and_none_of_its_own() -> None:
    expected = {name: each for name, each in manifests().items() if name != NAMESPACE}

    assert without_annotations(golden("default")) == expected


@pytest.mark.spec("OPS-03.c")
@pytest.mark.parametrize("folder", ["keda", "keda-sql"])
def test_the_chart_scales_by_the_manifests_of_the_autoscaler(folder: str) -> None:
    found = golden("production" if folder == "keda" else "sql")
    scaled = manifests(MANIFESTS / "keda")["ScaledObject", "soong-worker"]["spec"]

    chart = found["ScaledObject", "soong-worker"]["spec"]
    assert chart["advanced"] == scaled["advanced"]
    assert chart["fallback"] == scaled["fallback"]
    assert len(chart["triggers"]) == 2, "one for each pool"
    if folder == "keda-sql":
        access = objects(yaml.safe_load_all((MANIFESTS / folder / "access.yaml").read_text()))
        assert {name: found[name] for name in access} == access
        queries = [trigger["metadata"]["query"] for trigger in chart["triggers"]]
        assert queries == ["SELECT soong_slots_wanted('default')", "SELECT soong_slots_wanted('big')"]
        assert {trigger["metadata"]["targetQueryValue"] for trigger in chart["triggers"]} == {"16"}


def test_the_chart_reads_the_manifests_themselves() -> None:
    assert (CHART / "manifests").resolve() == MANIFESTS
    ours = {"_objects.tpl", "_workload.tpl", "NOTES.txt"}
    assert {path.name for path in (CHART / "templates").iterdir()} - ours == {
        *("migrate.yaml", "config.yaml", "storage.yaml", "orchestrator.yaml", "worker.yaml", "api.yaml"),
        *("flower.yaml", "network.yaml", "keda.yaml"),
    }


def test_the_chart_has_the_version_of_the_program() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    kustomization = yaml.safe_load((MANIFESTS / "kustomization.yaml").read_text())

    assert chart["appVersion"] == version
    assert chart["version"] == version.replace("a", "-alpha.")  # as Helm reads versions
    assert [image["newTag"] for image in kustomization["images"]] == [version]


def test_the_schema_knows_every_value_and_every_value_is_described() -> None:
    Draft7Validator.check_schema(SCHEMA)
    known = dict(described(SCHEMA))

    assert {path: text for path, text in known.items() if not text} == {}
    unknown = {
        path for path in leaves(VALUES) if not any(path == name or path.startswith(f"{name}.") for name in known)
    }
    assert unknown == set()


def described(schema: dict[str, Any], path: str = "") -> list[tuple[str, str]]:
    """Return every value that the schema knows with its description."""
    found = []
    for name, each in schema["properties"].items():
        whole = SCHEMA["definitions"][name] if "$ref" in each else each
        found.append((f"{path}{name}", whole.get("description", "")))
        if "properties" in whole:
            found += described(whole, f"{path}{name}.")
    return found


def leaves(values: dict[str, Any], path: str = "") -> list[str]:
    found = []
    for name, each in values.items():
        found += leaves(each, f"{path}{name}.") if isinstance(each, dict) and each else [f"{path}{name}"]
    return found


def problems(values: dict[str, Any]) -> list[str]:
    """Return what the schema says of values over the defaults, as Helm merges them."""
    return [error.json_path for error in Draft7Validator(SCHEMA).iter_errors(merged(VALUES, values))]


def merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = dict(below)
    for name, each in above.items():
        inner = both.get(name)
        both[name] = merged(inner, each) if isinstance(each, dict) and isinstance(inner, dict) else each
    return both


@each_set
def test_the_schema_takes_each_set_of_values(name: str) -> None:
    assert problems(yaml.safe_load((SETS / f"{name}.yaml").read_text())) == []


BAD: dict[str, dict[str, Any]] = {
    "$": {"wroker": {}},
    "$.worker": {"worker": {"slot": 4}},
    "$.worker.slots": {"worker": {"slots": 0}},
    "$.worker.replicas": {"worker": {"replicas": "4"}},
    "$.worker.pools[0]": {"worker": {"pools": ["default') OR ('1'='1"]}},
    "$.worker.env": {"worker": {"env": {"not a name": "x"}}},
    "$.image.digest": {"image": {"digest": "sha256:12"}},
    "$.image.repository": {"image": {"repository": "registry.example/soong:latest"}},
    "$.secrets.worker": {"secrets": {"worker": ""}},
    "$.config.files": {"config": {"files": {"../escape": ""}}},
    "$.storage.data.size": {"storage": {"data": {"size": "much"}}},
    "$.api.allowHosts": {"api": {"allowHosts": ["soong.example"]}},
    "$.api.ingress.host": {"api": {"ingress": {"enabled": True, "tlsSecret": "tls"}}},
    "$.api.ingress.tlsSecret": {"api": {"ingress": {"enabled": True, "host": "soong.example"}}},
    "$.keda.trigger": {"keda": {"trigger": "redis"}},
}


@pytest.mark.parametrize("where", BAD)
def test_a_value_that_means_nothing_is_refused_where_it_is(where: str) -> None:
    assert problems(BAD[where]) == [where]


def test_values_reach_the_objects_that_they_are_about() -> None:
    found = golden("production")
    worker = part(found, "worker")["spec"]["template"]

    assert container(found, "worker")["image"].startswith("registry.example:5000/team/soong@sha256:0123")
    assert environment(found, "worker") | {
        "SOONG_SLOTS": "64",
        "SOONG_POOLS": "default,big",
        "SOONG_LABELS": "gpu",
    } == (environment(found, "worker"))
    assert worker["spec"]["terminationGracePeriodSeconds"] == 150
    assert environment(found, "orchestrator")["SOONG_LOG_LEVEL"] == "warning"
    assert environment(found, "api")["SOONG_HTTP_ALLOW_HOSTS"] == "localhost,soong.example"
    assert worker["metadata"]["labels"]["app.kubernetes.io/component"] == "worker", "a value changed a selector"
    assert worker["metadata"]["labels"]["team"] == "search"
    claims = {
        volume["name"]: volume.get("persistentVolumeClaim", {}).get("claimName") for volume in worker["spec"]["volumes"]
    }
    assert (claims["data"], claims["projects"]) == ("shared-data", "soong-projects")
    assert ("PersistentVolumeClaim", "soong-data") not in found
    policies = {name: each["spec"] for (kind, name), each in found.items() if kind == "NetworkPolicy"}
    assert policies["database"]["egress"][0]["to"] == [{"ipBlock": {"cidr": "10.0.8.4/32"}}]
    assert {"models", "ingress"} <= policies.keys()


def test_files_of_the_configuration_are_mounted_at_their_paths_and_are_no_templates() -> None:
    found = golden("production")
    data = found["ConfigMap", "soong-config"]["data"]

    for name in ("orchestrator", "worker", "api"):
        (volume,) = [
            each for each in part(found, name)["spec"]["template"]["spec"]["volumes"] if each["name"] == "config"
        ]
        items = {item["path"]: data[item["key"]] for item in volume["configMap"]["items"]}
        assert items.keys() == {"config.toml", "tools/lint.json", "modules/steps.py"}
        assert items["modules/steps.py"] == 'VALUE = "{{ not a template }}"\n'


def test_pods_restart_when_the_configuration_changes() -> None:
    annotations = [
        part(golden(name), "worker")["spec"]["template"]["metadata"]["annotations"][CHECKSUM]
        for name in ("default", "production")
    ]

    assert annotations[0] != annotations[1]


@each_set
def test_no_set_of_values_opens_a_pod(name: str) -> None:
    found = golden(name)
    workloads = [each for (kind, _), each in found.items() if kind in {"Deployment", "Job"}]

    for each in workloads:
        spec = each["spec"]["template"]["spec"]
        (inner,) = spec["containers"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["automountServiceAccountToken"] is False
        assert inner["securityContext"]["readOnlyRootFilesystem"] is True
        assert inner["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not [name for name in found if name[0] in {"Secret", "Role", "ClusterRole", "RoleBinding", "ServiceAccount"}]
    migrate = found["Job", "soong-migrate"]["metadata"]["annotations"]
    assert migrate == HOOKS
    claims = [each for (kind, _), each in found.items() if kind == "PersistentVolumeClaim"]
    assert all(each["metadata"]["annotations"] == KEEP for each in claims)


def test_one_orchestrator_has_no_budget_that_keeps_its_node() -> None:
    assert ("PodDisruptionBudget", "soong-orchestrator") in golden("default")
    assert ("PodDisruptionBudget", "soong-orchestrator") not in golden("small")


# -- with Helm and kubectl


@each_set
def test_helm_makes_what_is_kept(name: str) -> None:
    helm, _ = helm_programs()

    assert read(rendered(helm, SETS / f"{name}.yaml")) == golden(name)


@each_set
def test_helm_has_nothing_to_say_about_the_chart(name: str) -> None:
    helm, _ = helm_programs()

    done = subprocess.run(
        [helm, "lint", str(CHART), "--strict", "--values", str(SETS / f"{name}.yaml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.spec("OPS-03.c")
@pytest.mark.parametrize(("folder", "values"), [("", {}), ("keda", {}), ("keda-sql", {"trigger": "sql"})])
def test_kustomize_and_helm_make_the_same_objects(folder: str, values: dict[str, str], tmp_path: Path) -> None:
    helm, kubectl = helm_programs()
    built = subprocess.run(
        [kubectl, "kustomize", str(MANIFESTS / folder)], capture_output=True, text=True, check=True, timeout=60
    )
    chosen = tmp_path / "values.yaml"
    chosen.write_text(yaml.safe_dump({"keda": {"enabled": bool(folder), **values}}))

    of_chart = without_annotations(read(rendered(helm, chosen)))
    expected = {name: each for name, each in read(built.stdout).items() if name != NAMESPACE}
    if folder:
        expected |= {name: each for name, each in manifests().items() if name != NAMESPACE}
    assert of_chart == expected


@each_set
def test_kubernetes_own_schemas_take_what_helm_makes(name: str, tmp_path: Path) -> None:
    helm, _ = helm_programs()
    program = kubernetes_validate()
    made = read(rendered(helm, SETS / f"{name}.yaml"))
    file = tmp_path / "made.yaml"
    file.write_text(yaml.safe_dump_all(each for each in made.values() if "keda.sh" not in each["apiVersion"]))

    done = subprocess.run([program, "--strict", str(file)], capture_output=True, text=True, check=False, timeout=60)

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_packaged_chart_needs_nothing_else(tmp_path: Path) -> None:
    helm, _ = helm_programs()
    subprocess.run(
        [helm, "package", str(CHART), "--destination", str(tmp_path)], capture_output=True, check=True, timeout=60
    )
    (package,) = tmp_path.glob("*.tgz")
    done = subprocess.run(
        [helm, "template", "soong", str(package), "--namespace", "soong"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={"PATH": os.defpath, "HOME": str(tmp_path)},
        cwd=tmp_path,
    )

    assert read(done.stdout) == golden("default")
