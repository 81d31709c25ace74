"""The program itself is a control: no file tool writes what the next start of a process of ours would run."""

import importlib
import os
import site
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

import soong
from soong.shared.core.config import Config
from soong.shared.core.jsontext import JsonObject
from soong.shared.permissions.explain import EffectivePolicy
from soong.shared.permissions.policy import Policy
from soong.shared.sandbox.descriptors import PathRefusedError
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.tools.definition import NO_PROGRESS, ToolContext, ToolDefinition
from soong.shared.tools.result import ToolError
from soong.shared.toolsets.code.toolset import CodeTools
from soong.shared.toolsets.sources import ToolEnvironment
from tests.unit.tools.parts import make_identity, make_run_dirs

ROOT = Path(soong.__file__).resolve().parents[1]


def is_refused(policy: PathPolicy, project: Path, path: Path) -> bool:
    """Have each file tool say what a write would touch, as it does before permission; nothing is written."""
    context = ToolContext(make_identity(), make_run_dirs(project), "call_1", "effect", 1, NO_PROGRESS)
    inputs: dict[str, JsonObject] = {
        "code.write_file": {"path": str(path), "content": "x", "overwrite": True},
        "code.edit_file": {"path": str(path), "edits": [{"old": "a", "new": "b"}], "create_if_missing": True},
    }
    verdicts = {
        how_refused(tool, context, inputs[tool.name]) for tool in CodeTools(policy).tools() if tool.name in inputs
    }
    assert len(verdicts) == 1, verdicts
    return verdicts == {"path_protected"}


def how_refused(tool: ToolDefinition, context: ToolContext, call_input: JsonObject) -> str:
    """Return why a tool refuses a path before anybody is asked; whatever else is wrong is no matter of the path."""
    assert tool.target is not None
    try:
        tool.target(context, call_input)
    except PathRefusedError as error:
        is_explained = "part of its program" in str(error) and "by hand" in error.hint
        return str(error.refusal) if is_explained else ""
    except ToolError:
        return ""
    return ""


def policy(modules: tuple[str, ...] = (), functions: tuple[str, ...] = ()) -> PathPolicy:
    return ToolEnvironment(config=Config(), modules=modules, functions=functions).paths


OWN = {
    "policy": ROOT / "shared/permissions/policy.py",
    "new-module": ROOT / "shared/new_module.py",
    "worker": ROOT / "worker/__main__.py",
    "orchestrator": ROOT / "orchestrator/cli/__main__.py",
    "facade": ROOT / "soong/__init__.py",
    "script": Path(sys.prefix, "bin/soong"),
    "interpreter": Path(sys.executable),
    "interpreter-it-leads-to": Path(sys.executable).resolve(),
    "pth": Path(sysconfig.get_path("purelib"), "zz_poc.pth"),
    "sitecustomize": Path(sysconfig.get_path("purelib"), "sitecustomize.py"),
    "package": Path(sysconfig.get_path("purelib"), "celery/__init__.py"),
    "stdlib": Path(sysconfig.get_path("stdlib"), "json/__init__.py"),
    "base": Path(sys.base_prefix, "lib/python3.11/site-packages/usercustomize.py"),
    "user-site": Path(site.getusersitepackages(), "usercustomize.py"),
    "pyvenv": Path(sys.prefix, "pyvenv.cfg"),
}


@pytest.mark.spec("FS-09")
@pytest.mark.parametrize("name", OWN)
def test_no_file_tool_writes_our_own_program(name: str) -> None:
    assert is_refused(policy(), ROOT, OWN[name])


@pytest.mark.spec("FS-09")
@pytest.mark.parametrize("path", ["docs/new.md", "report.md", "src/app.py", "examples/x.yaml", "app.py"])
def test_the_rest_of_a_checkout_may_be_written(path: str) -> None:
    assert not is_refused(policy(), ROOT, ROOT / path)


@pytest.mark.spec("FS-09")
def test_a_project_with_our_environment_in_it_may_be_worked_on(tmp_path: Path) -> None:
    """As a subprocess: the environment of a developer that lies in the folder of the project."""
    venv, project = tmp_path / "project/.venv", tmp_path / "project"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--symlinks", str(venv)], check=True)
    code = """
import json, sys
from pathlib import Path
from soong.shared.toolsets.sources import ToolEnvironment
policy = ToolEnvironment().paths
print(json.dumps([policy.is_protected(Path(path)) for path in sys.argv[1:]]))
"""
    paths = [".venv/bin/soong", f".venv/lib/python3.{sys.version_info.minor}/site-packages/x.pth", ".venv/pyvenv.cfg"]
    free = ["app.py", "lib/app.py", "bin/run", "tests/test_app.py", ".venv/README"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    argv = [str(venv / "bin/python"), "-P", "-c", code, *(str(project / path) for path in (*paths, *free))]

    said = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True).stdout

    assert said.strip() == str([True] * len(paths) + [False] * len(free)).lower()


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project on the import path (`PYTHONPATH=.`), with modules of the user's own in it."""
    project = tmp_path / "project"
    (project / "team/inner").mkdir(parents=True)
    for name in ("steps.py", "helper.py", "team/__init__.py", "team/inner/__init__.py"):
        (project / name).touch()
    (project / "steps.py").write_text("import helper\n")
    monkeypatch.syspath_prepend(str(project))
    monkeypatch.delitem(sys.modules, "helper", raising=False)
    monkeypatch.delitem(sys.modules, "steps", raising=False)
    return project


@pytest.mark.spec("FS-09")
@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("steps.py", True),
        ("team/inner/__init__.py", True),
        ("team/inner/new.py", True),
        ("helper.py", True),
        ("sitecustomize.py", True),
        ("usercustomize/__init__.py", True),
        ("json.py", True),
        ("JSON.PY", True),
        ("celery/__init__.py", True),
        ("redis.abi3.so", True),
        ("soong/__init__.py", True),
        ("app.py", False),
        ("html/index.html", False),
        ("json/data.json", False),
        ("tests/__init__.py", False),
        ("below/json.py", False),
        ("team/other.py", False),
    ],
)
def test_what_workers_import_of_a_project_is_written_by_no_tool(modules: Path, path: str, expected: bool) -> None:
    importlib.import_module("steps")

    found = is_refused(policy(("steps",), ("team.inner",)), modules, modules / path)

    assert found is expected


def test_the_policy_is_explained_with_all_that_is_protected(modules: Path) -> None:
    told = EffectivePolicy(Policy(), policy(functions=("steps",)), modules, (modules,)).protected()

    assert {str(modules / "steps.py"), str(ROOT / "shared"), str(Path(sys.prefix, "bin"))} <= set(told)
    assert f"{modules}/ modules named as one of the program's" in told
