"""Reading an instruction file speaks to the run (FS-08)."""

import os

import pytest

from soong.shared.tools.result import ContextNode
from soong.shared.toolsets.code.read_file import MAX_INSTRUCTION_BYTES
from tests.unit.toolsets.parts import Project


async def nodes(project: Project, path: str, **arguments: int) -> tuple[ContextNode, ...]:
    return (await project.call("read_file", path=path, **arguments)).context_nodes


@pytest.mark.spec("FS-08")
async def test_an_instruction_file_speaks_through_a_link_of_such_a_name_inside_the_project(project: Project) -> None:
    project.file("AGENTS.md", "one\n")
    (project.root / "CLAUDE.md").symlink_to("AGENTS.md")
    (project.root / "notes.md").symlink_to("AGENTS.md")

    assert len(await nodes(project, "CLAUDE.md")) == 1
    assert await nodes(project, "notes.md") == ()  # a call that nothing tells to run alone adds nothing


@pytest.mark.spec("FS-08.b")
async def test_an_instruction_file_outside_the_project_adds_nothing(project: Project) -> None:
    (project.outside / "AGENTS.md").write_text("theirs\n")
    (project.root / "CLAUDE.md").symlink_to(project.outside / "AGENTS.md")

    assert await nodes(project, "CLAUDE.md") == ()
    assert await nodes(project, str(project.outside / "AGENTS.md")) == ()


@pytest.mark.spec("FS-08")
@pytest.mark.parametrize("name", ["README.md", "agents.txt", "AGENTS.md.bak", "AGENTS.md/x"])
async def test_another_file_adds_nothing(project: Project, name: str) -> None:
    project.file(name, "one\n")

    assert await nodes(project, name) == ()


@pytest.mark.spec("FS-08", "RES-03")
async def test_an_instruction_file_in_a_sensitive_place_or_with_another_name_adds_nothing(project: Project) -> None:
    project.file(".env/AGENTS.md", "secret\n")
    (project.outside / "x").write_text("secret\n")
    os.link(project.outside / "x", project.root / "AGENTS.md")

    assert await nodes(project, ".env/AGENTS.md") == ()
    assert await nodes(project, "AGENTS.md") == ()


@pytest.mark.spec("FS-08")
async def test_a_block_is_bounded_and_an_empty_file_gives_none(project: Project) -> None:
    project.file("AGENTS.md", "\u00e4\n" * MAX_INSTRUCTION_BYTES)
    project.file("CLAUDE.md", " \n")

    (node,) = await nodes(project, "AGENTS.md")

    assert len(node.text.encode()) < MAX_INSTRUCTION_BYTES + 300
    assert node.text.endswith(f"[cut at {MAX_INSTRUCTION_BYTES} bytes]")
    assert await nodes(project, "CLAUDE.md") == ()
