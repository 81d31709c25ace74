"""Definitions that a project brings: they describe agents, and decide nothing that is their user's to decide."""

from pathlib import Path

import pytest

from soong.shared.agents.definition import AgentDefinition, builtin_definitions
from soong.shared.agents.definition_files import DefinitionFile
from soong.shared.agents.project_definitions import MAX_FILES, project_definition_files, with_project
from soong.shared.core.config import AgentsConfig

pytestmark = pytest.mark.spec("DIS-02.b")

OWN = """---
description: Looks.
model: openai-chat:dear
limits: {max_turns: 9000, max_repeated_failures: 2, tokens: 100, cost_usd: 0.5}
---
Look."""
CLAUDE = """---
name: Code-Reviewer
description: Use this agent when code was written. Examples: <example>Context: a change. user: "look"</example>
tools: Read, Grep, Bash(git diff:*), WebSearch, mcp__github__get
model: opus
color: red
---

You review code.
"""


def write(project: Path, name: str, text: str) -> Path:
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def only(files: list[DefinitionFile]) -> tuple[AgentDefinition, tuple[str, ...]]:
    (file,) = files
    assert file.definition is not None, file.problems
    return file.definition, file.notes


def test_a_projects_definition_chooses_no_model_and_raises_no_limit(tmp_path: Path) -> None:
    write(tmp_path, ".soong/agents/looker.md", OWN)

    found, notes = only(project_definition_files(tmp_path, AgentsConfig()))

    assert (found.id, found.model, found.instructions) == ("project.looker", "", "Look.")
    assert found.limits == {"max_turns": 50, "max_repeated_failures": 2, "tokens": 100, "cost_usd": 0.5}
    assert ["project_models" in note or "max_turns" in note for note in notes] == [True, True]


def test_a_model_that_the_user_lists_is_taken(tmp_path: Path) -> None:
    write(tmp_path, ".soong/agents/looker.md", OWN)

    found, _ = only(project_definition_files(tmp_path, AgentsConfig(project_models=("openai-chat:*",))))

    assert found.model == "openai-chat:dear"


@pytest.mark.parametrize(
    ("listed", "fallbacks"),
    [((), None), (("ollama:*",), ("ollama:qwen3",)), (("*",), ("openai-chat:dear", "ollama:qwen3"))],
    ids=["none", "one", "all"],
)
def test_fallbacks_are_limited_as_the_model_is(
    tmp_path: Path, listed: tuple[str, ...], fallbacks: tuple[str, ...] | None
) -> None:
    text = "---\ndescription: d\nfallback_models: [openai-chat:dear, ollama:qwen3]\n---\nLook."
    write(tmp_path, ".soong/agents/looker.md", text)

    found, notes = only(project_definition_files(tmp_path, AgentsConfig(project_models=listed)))

    assert found.fallback_models == fallbacks
    assert len(notes) == (len(fallbacks or ()) < 2)


def test_a_file_of_claude_code_is_read_as_it_is(tmp_path: Path) -> None:
    write(tmp_path, ".claude/agents/code-reviewer.md", CLAUDE)

    found, notes = only(project_definition_files(tmp_path, AgentsConfig()))

    assert (found.id, found.model, found.instructions) == ("claude.code-reviewer", "", "You review code.")
    assert found.description.startswith("Use this agent when code was written. Examples: <example>Context: a change.")
    assert found.suggested_tools == ("code.read_file", "code.search", "code.run_command")
    assert notes == (
        "fields that have no meaning here are ignored: color",
        "tools that are not known here are left out: WebSearch, mcp__github__get",
        "its model 'opus' is a name of Claude Code; the task's model is used",
    )


@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        ("", None),
        ("tools: '*'\n", None),
        ("tools: [Read, Edit, MultiEdit]\n", ("code.read_file", "code.edit_file")),
        ("tools:\n  - Write\n  - LS\n", ("code.write_file", "code.list_dir")),
        ("tools: Task\n", ()),
    ],
)
def test_tools_are_mapped(tmp_path: Path, tools: str, expected: tuple[str, ...] | None) -> None:
    write(tmp_path, ".claude/agents/x.md", f"---\nname: x\ndescription: d\n{tools}---\nDo.")

    found, _ = only(project_definition_files(tmp_path, AgentsConfig()))

    assert found.suggested_tools == expected


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("no front matter", "front matter"),
        ("---\nname: x\n---\nDo.", "usable `name` and `description`"),
        ("---\nname: ../x\ndescription: d\n---\nDo.", "usable `name` and `description`"),
        ("---\nname: x\ndescription: d\n---\n", "no text"),
        ("---\nname: [x]\ndescription: {a: b}\n---\nDo.", "usable `name` and `description`"),
        ("---\n: : :\n---\nDo.", "usable `name` and `description`"),
    ],
)
def test_a_file_that_cannot_be_used_has_a_problem(tmp_path: Path, text: str, problem: str) -> None:
    write(tmp_path, ".claude/agents/---.md", text)

    (file,) = project_definition_files(tmp_path, AgentsConfig())

    assert file.definition is None
    assert problem in str(file.problems[0])


def test_a_link_out_of_the_project_is_not_followed(tmp_path: Path) -> None:
    secret = write(tmp_path, "home/secret.md", OWN)
    project = tmp_path / "project"
    write(project, ".soong/agents/fine.md", OWN)
    (project / ".soong/agents/link.md").symlink_to(secret)
    (project / ".claude").symlink_to(tmp_path / "home")

    fine, link = project_definition_files(project, AgentsConfig())

    assert fine.definition is not None
    assert link.definition is None
    assert "outside the project" in str(link.problems[0])


def test_it_can_be_switched_off_and_is_bounded(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 5):
        write(tmp_path, f".soong/agents/a{number:03}.md", OWN)

    assert len(project_definition_files(tmp_path, AgentsConfig())) == MAX_FILES
    assert project_definition_files(tmp_path, AgentsConfig(project=False)) == []


def test_an_id_that_two_files_have_is_the_first_ones(tmp_path: Path) -> None:
    write(tmp_path, ".soong/agents/a.md", OWN)
    write(tmp_path, ".soong/agents/b.md", OWN.replace("---\n", "---\nname: a\n", 1))

    first, second = project_definition_files(tmp_path, AgentsConfig())

    assert first.definition is not None
    assert second.definition is None
    assert "has the id 'project.a' too" in str(second.problems[0])


def test_a_project_replaces_no_definition(tmp_path: Path) -> None:
    write(tmp_path, ".soong/agents/orchestrator.md", OWN)
    known = builtin_definitions()

    found = with_project(known, tmp_path, AgentsConfig())

    assert found.get("orchestrator") is known.get("orchestrator")
    assert found.ids - known.ids == {"project.orchestrator"}
    assert with_project(known, tmp_path / "none", AgentsConfig()) is known
