"""The locked environment says what pyproject.toml asks for, and the project has its agreed shape."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from soong.shared.agents.model import _EXTRAS
from tests.spec_document import ROOT

_PIN = re.compile(r"^([a-zA-Z0-9_.-]+)==([^ ;\\]+)", re.MULTILINE)
_LOCKED_EXTRAS = ("test", "lint", "docs", "build")


def _project() -> dict[str, object]:
    project: dict[str, object] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project


def _pins(lock: Path) -> dict[str, Version]:
    return {canonicalize_name(name): Version(version) for name, version in _PIN.findall(lock.read_text("utf-8"))}


def _requirements() -> list[Requirement]:
    project = _project()
    texts, extras = project["dependencies"], project["optional-dependencies"]
    assert isinstance(texts, list)
    assert isinstance(extras, dict)
    return [Requirement(text) for text in (*texts, *(text for extra in _LOCKED_EXTRAS for text in extras[extra]))]


def test_every_requirement_is_locked_within_its_bounds() -> None:
    pins = _pins(ROOT / "requirements" / "dev.lock")

    loose = [
        str(need)
        for need in _requirements()
        if (pin := pins.get(canonicalize_name(need.name))) is None or pin not in need.specifier
    ]

    assert not loose, "run `make lock`"


def test_every_extra_that_a_model_may_need_can_be_installed() -> None:
    extras = _project()["optional-dependencies"]
    assert isinstance(extras, dict)

    assert {*extras} - {*_LOCKED_EXTRAS, "langgraph", "openai-agents", "otel", "s3"} == {*_EXTRAS.values()}


def test_what_is_deployed_is_what_was_tested() -> None:
    tested, deployed = (_pins(ROOT / "requirements" / name) for name in ("dev.lock", "runtime.lock"))

    assert deployed.items() <= tested.items()


@pytest.mark.parametrize("name", ["dev.lock", "runtime.lock", "uv.lock"])
def test_every_locked_package_has_a_hash(name: str) -> None:
    blocks = re.split(r"(?m)^(?=\S)", (ROOT / "requirements" / name).read_text("utf-8"))

    assert not [block.splitlines()[0] for block in blocks if block.strip() and "--hash=sha256:" not in block]


@pytest.mark.spec("CARD-4.a", "CARD-4.b")
def test_the_project_uses_the_agreed_packages_and_folders() -> None:
    packages = {canonicalize_name(need.name) for need in _requirements()}
    agreed = {"celery", "redis", "pydantic", "jsonschema", "sqlalchemy", "psycopg", "flower", "pytest"}
    top_level = ("pyproject.toml", "README.md", "orchestrator", "worker", "shared", "tests", "deploy")

    assert agreed <= packages
    assert all((ROOT / name).exists() for name in (*top_level, "docker-compose.yml"))
