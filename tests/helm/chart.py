"""The Helm chart and the manifests as objects, by Helm and kubectl where they are there."""

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

import yaml

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy" / "helm" / "soong"
MANIFESTS: Final = ROOT / "deploy" / "kubernetes"
SETS: Final = Path(__file__).parent / "values"
GOLDEN: Final = Path(__file__).parent / "golden"

Objects: TypeAlias = Mapping[tuple[str, str], dict[str, Any]]
"""By kind and name."""

HOOKS: Final = {"helm.sh/hook": "pre-install,pre-upgrade", "helm.sh/hook-delete-policy": "before-hook-creation"}
KEEP: Final = {"helm.sh/resource-policy": "keep"}
CHECKSUM: Final = "soong/config"


def objects(documents: Iterable[dict[str, Any] | None]) -> Objects:
    return {(each["kind"], each["metadata"]["name"]): each for each in documents if each}


def read(text: str) -> Objects:
    return objects(yaml.safe_load_all(text))


def manifests(folder: Path = MANIFESTS) -> Objects:
    """Return what kustomize makes of a folder without patches."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    texts = [(folder / name).read_text() for name in kustomization["resources"]]
    found = objects(document for text in texts for document in yaml.safe_load_all(text))
    for image in kustomization.get("images", ()):
        for (kind, _), each in found.items():
            if kind in {"Deployment", "Job"}:
                (container,) = each["spec"]["template"]["spec"]["containers"]
                assert container["image"] == image["name"]
                container["image"] = f"{image['newName']}:{image['newTag']}"
    return found


def without_annotations(of_chart: Objects) -> Objects:
    """Return a chart's objects without the annotations that Helm needs and the one that restarts pods."""
    bare = {}
    for name, each in of_chart.items():
        bare[name] = copy = yaml.safe_load(yaml.safe_dump(each))
        for holder in (copy["metadata"], copy.get("spec", {}).get("template", {}).get("metadata", {})):
            annotations = holder.get("annotations", {})
            kept = {key: value for key, value in annotations.items() if key not in {*HOOKS, *KEEP, CHECKSUM}}
            holder.pop("annotations", None)
            if kept:
                holder["annotations"] = kept
    return bare


def rendered(helm: str, values: Path, *more: str) -> str:
    """Return what Helm makes of the chart with a set of values."""
    command = [helm, "template", "soong", str(CHART), "--namespace", "soong", "--values", str(values), *more]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def _write() -> None:
    helm = os.environ.get("HELM") or shutil.which("helm") or "helm"
    GOLDEN.mkdir(exist_ok=True)
    for values in sorted(SETS.glob("*.yaml")):
        (GOLDEN / values.name).write_text(rendered(helm, values))


if __name__ == "__main__":
    _write()
