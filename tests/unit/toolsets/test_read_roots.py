"""Read roots: what a session reads without being asked when it may not read everywhere (FS-06)."""

from pathlib import Path

import pytest

from soong.shared.core.jsontext import Json
from soong.shared.tools.ports import Verdict
from soong.shared.tools.result import ErrorType
from tests.unit.toolsets.parts import Project, make_project

pytestmark = pytest.mark.spec("FS-06", "PER-02")

READS: list[tuple[str, dict[str, Json]]] = [
    ("read_file", {"path": "{}/text.txt"}),
    ("list_dir", {"path": "{}"}),
    ("list_dir", {"path": "{}", "recursive": True}),
    ("search", {"path": "{}", "query": "canary"}),
]
IDS = ["read", "list", "list all", "search"]


def at(arguments: dict[str, Json], folder: Path) -> dict[str, Json]:
    return {name: value.format(folder) if isinstance(value, str) else value for name, value in arguments.items()}


def make(folder: Path, *roots: Path) -> Project:
    """Return a project whose session reads in these folders besides its own."""
    project = make_project(folder, place={"read_roots": roots})
    for place in (project.root, project.outside):
        (place / "text.txt").write_text("canary\n")
    return project


@pytest.mark.spec("FS-02.c", "FS-03.d")
@pytest.mark.parametrize(("tool", "arguments"), READS, ids=IDS)
async def test_a_read_outside_asks_and_happens_only_with_consent(
    tmp_path: Path, tool: str, arguments: dict[str, Json]
) -> None:
    project = make(tmp_path)
    call = at(arguments, project.outside)

    read = await project.call(tool, **call)
    project.bench.gate.verdict = Verdict(is_allowed=False, author="rule", error=ErrorType.PERMISSION_DENIED)
    denied = await project.error(tool, **call)

    assert read.error is None
    assert not project.target.is_inside_roots
    assert project.target.scope == str(project.outside)
    assert denied is ErrorType.PERMISSION_DENIED


@pytest.mark.parametrize(("tool", "arguments"), READS, ids=IDS)
async def test_a_read_in_the_project_or_in_a_root_is_inside(
    tmp_path: Path, tool: str, arguments: dict[str, Json]
) -> None:
    project = make(tmp_path, tmp_path / "outside")

    for folder in (project.root, project.outside):
        assert (await project.call(tool, **at(arguments, folder))).error is None
        assert project.target.is_inside_roots


async def test_a_link_leads_out_of_the_roots(tmp_path: Path) -> None:
    project = make(tmp_path)
    (project.root / "link.txt").symlink_to(project.outside / "text.txt")
    (project.root / "folder").symlink_to(project.outside)

    for path in ("link.txt", "folder/text.txt", "../outside/text.txt"):
        await project.call("read_file", path=path)
        assert not project.target.is_inside_roots


async def test_a_sensitive_file_inside_a_root_still_asks(tmp_path: Path) -> None:
    project = make(tmp_path, tmp_path / "outside")
    (project.outside / ".env").write_text("KEY=1\n")

    await project.call("read_file", path=str(project.outside / ".env"))

    assert project.target.is_sensitive


async def test_the_runs_own_folder_and_the_users_skills_are_read_and_other_runs_are_not(tmp_path: Path) -> None:
    project = make(tmp_path)
    own, other, skills = tmp_path / "run", tmp_path / "run_other", project.home / "skills"
    for folder in (own, other, skills):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "text.txt").write_text("x\n")

    inside = []
    for folder in (own, skills, other):
        await project.call("read_file", path=str(folder / "text.txt"))
        inside.append(project.target.is_inside_roots)

    assert inside == [True, True, False]


async def test_the_root_of_the_file_system_as_a_read_root_is_every_folder(tmp_path: Path) -> None:
    project = make(tmp_path, Path("/"))

    await project.call("read_file", path=str(project.outside / "text.txt"))

    assert project.target.is_inside_roots
