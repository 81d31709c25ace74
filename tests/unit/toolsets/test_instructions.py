"""Reading an instruction file speaks to the run (FS-08)."""

import os

import pytest

from soong.shared.sandbox.paths import PathPolicy
from soong.shared.tools.result import ContextNode
from soong.shared.toolsets.code.read_file import MAX_INSTRUCTION_BYTES, read_file_tool
from tests.unit.tools.parts import make_bench
from tests.unit.toolsets.parts import Project


async def nodes(project: Project, path: str, **arguments: int) -> tuple[ContextNode, ...]:
    return (await project.call("read_file", path=path, **arguments)).context_nodes


@pytest.mark.spec("FS-08.a")
@pytest.mark.parametrize("name", ["AGENTS.md", "CLAUDE.md", "sub/AGENTS.md"])
async def test_an_instruction_file_adds_a_system_block_with_all_it_says(project: Project, name: str) -> None:
    project.file(name, "be kind\nbe quick\n")

    (node,) = await nodes(project, name, start_line=2, max_lines=1)

    assert node.kind == "system"
    assert name in node.name
    assert node.text.endswith("\n\nbe kind\nbe quick\n")
    assert name in node.text


@pytest.mark.spec("FS-08")
async def test_the_same_content_is_the_same_node_and_other_content_another(project: Project) -> None:
    project.file("AGENTS.md", "one\n")
    first, again = await nodes(project, "AGENTS.md"), await nodes(project, "./AGENTS.md")
    project.file("AGENTS.md", "two\n")

    other = await nodes(project, "AGENTS.md")

    assert first == again
    assert other[0].name != first[0].name


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


@pytest.mark.spec("FS-08.a")
async def test_which_files_speak_is_configured(project: Project) -> None:
    project.file("RULES.md", "one\n")
    project.file("AGENTS.md", "two\n")
    bench = make_bench([read_file_tool(PathPolicy(), instruction_files=("RULES.md",))], project=project.root)

    rules = await bench.call("code.read_file", path="RULES.md")
    agents = await bench.call("code.read_file", path="AGENTS.md")

    assert (len(rules.context_nodes), agents.context_nodes) == (1, ())


@pytest.mark.spec("FS-08", "EXE-03")
def test_a_read_that_adds_to_the_context_goes_alone() -> None:
    tool = read_file_tool(PathPolicy())

    traits = [tool.traits_of({"path": path}) for path in ("a/AGENTS.md", "a/x.md")]

    assert [(each.is_read_only, each.is_concurrency_safe) for each in traits] == [(True, False), (True, True)]
