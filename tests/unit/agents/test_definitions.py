"""Agent definitions: built in, in files of the user, in files of a project."""

import os
import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.shared.agents.acp_agents import OwnKind, acp_agents, acp_tool_names, with_acp
from soong.shared.agents.definition import AgentDefinition, AgentDefinitionRegistry, ModelOptions, builtin_definitions
from soong.shared.agents.definition_files import (
    MAX_BYTES,
    DefinitionFile,
    LiveDefinitions,
    definition_files,
    known_definitions,
    read_definition,
)
from soong.shared.agents.project_definitions import MAX_FILES, project_definition_files, with_project
from soong.shared.core.config import AgentsConfig, parse_config
from soong.shared.core.errors import InvalidConfigError, InvalidPlanError, NotFoundError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.plan.reader import plan_from_json
from soong.shared.tools.definition import Permission, RunDirs
from soong.shared.tools.naming import check_name
from soong.shared.tools.surface import RunMode, Surface
from soong.worker.acp.connection import AgentProgram


@pytest.mark.spec("DIS-02")
def test_an_unknown_definition_is_named_and_a_second_of_one_id_refused() -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        builtin_definitions().get("nobody")
    with pytest.raises(InvalidConfigError, match="'a'"):
        AgentDefinitionRegistry([AgentDefinition("a", "A", "", ""), AgentDefinition("a", "B", "", "")])


@pytest.mark.spec("DIS-02.a")
@pytest.mark.parametrize("definition_id", ["explorer", "reviewer"])
def test_those_that_only_look_get_no_tool_that_changes_anything(definition_id: str) -> None:
    catalogue = Catalogue()
    read_only = {tool.name for tool in catalogue.tools if tool.permission is Permission.READONLY}
    step: Json = {"id": "a", "agent": definition_id, "instructions": "x", "allowed_tools": ["*"]}
    plan = plan_from_json({"title": "t", "steps": [step]}, known=catalogue.known())

    surface = catalogue.surface_of(plan.steps[0])

    offered = set(Surface.from_json(surface).tools)
    assert "code.read_file" in offered
    assert offered <= read_only


@pytest.mark.parametrize(
    "stored",
    [
        None,
        [],
        {},
        {"id": "a", "instructions": "x", "limits": {"max_turns": "many"}, "options": {}},
        {"id": "a", "instructions": "x", "limits": {"max_years": 1}, "options": {}},
        {"id": "a", "instructions": "x", "limits": {}, "options": {"colour": 1}},
    ],
    ids=["null", "list", "empty", "limit", "unknown-limit", "unknown-option"],
)
def test_a_stored_definition_that_is_not_one_is_refused(stored: Json) -> None:
    with pytest.raises(UsageError, match="a stored agent definition cannot be read"):
        AgentDefinition.from_json(stored)


@pytest.mark.spec("ACP-01.a")
def test_the_configuration_adds_agents_and_says_more_of_the_built_in_ones() -> None:
    text = '[acp.agents.mine]\ncommand = ["mine"]\n[acp.agents.claude-code]\nenv = ["ANTHROPIC_API_KEY"]\n'

    found = acp_agents(parse_config(text))

    assert set(found) == {"claude-code", "codex", "gemini", "mine"}
    assert found["claude-code"].command == ("claude-agent-acp",)
    assert (found["claude-code"].env, found["claude-code"].mode) == (("ANTHROPIC_API_KEY",), "default")
    assert "acp:mine" in with_acp(builtin_definitions(), parse_config(text)).ids
    for name in acp_tool_names(parse_config(text)):
        check_name(name)
    assert len(acp_tool_names(parse_config(text))) == 4 * len(OwnKind)


@pytest.mark.spec("ACP-01.b")
def test_what_makes_an_agent_ask_follows_a_command_of_the_configuration_too(tmp_path: Path) -> None:
    program = tmp_path / "bin" / "mine"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    agent = acp_agents(parse_config(f"[acp.agents.gemini]\ncommand = ['{program}', '--acp']\n"))["gemini"]
    run_dirs = RunDirs(tmp_path / "project", tmp_path / "project", tmp_path / "run")

    started = AgentProgram.of(agent, run_dirs, [])

    assert started.argv[:3] == (str(program), "--acp", "--admin-policy")
    policy = Path(started.argv[3])
    rules = tomllib.loads(policy.read_text())["rule"]
    assert (rules[0]["toolName"], rules[0]["decision"]) == ("*", "ask_user")
    assert policy in started.access.readable, "the very name that it gets: a sandbox shows nothing else"
    assert policy == policy.resolve()
    gone = replace(agent, readable=(tmp_path / "gone.toml",))
    with pytest.raises(InvalidConfigError, match=r"gone\.toml is not a file"):
        AgentProgram.of(gone, run_dirs, [])
    assert not agent.offers_files
    assert acp_agents(parse_config("[acp.agents.gemini]\nfiles = true\n"))["gemini"].offers_files


@pytest.mark.spec("ACP-01.a")
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[acp.agents.mine]\nenv = []\n", "acp.agents.mine has no command"),
        ('[acp.agents.mine]\ncommand = ["x"]\nsession = {cwd = "/"}\n', "which Soong sets itself"),
        ('[acp.agents.Mine]\ncommand = ["x"]\n', "acp.agents.Mine"),
        ('[acp.agents.mine]\ncommand = "x y"\n', "takes a list"),
        ('[acp.agents.mine]\ncommand = ["x"]\nargs = ["y"]\n', "there is no such field; known here: command"),
    ],
    ids=["no command", "a reserved name", "capitals", "a text", "an unknown field"],
)
def test_what_is_wrong_with_an_entry_is_said_with_its_place(text: str, says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        acp_agents(parse_config(text))


WHOLE = """---
name: release-notes
description: Writes
  release notes.
model: anthropic:claude-sonnet-5-5
fallback_models: [openai:gpt-5, "ollama:qwen3:8b"]
suggested_tools: [code.read_file, "code.s*"]
mode: readonly
limits: {max_turns: 7, max_repeated_failures: 0, max_reasks: 1, max_continuations: 0, parallel_reads: 2}
temperature: 0.5
max_tokens: 900
thinking: high
timeout_s: 20
parallel_calls: false
---

Read the log.

Write the notes.
"""
SHORT = "---\ndescription: d\n---\nDo it."


def write(home: Path, name: str, text: str) -> Path:
    path = home / "agents" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def problems(text: str, name: str = "notes.md") -> list[str]:
    with pytest.raises(InvalidPlanError) as raised:
        read_definition(text, Path(name))
    return [str(problem) for problem in raised.value.problems]


@pytest.mark.spec("DIS-02.b")
def test_every_field_is_read() -> None:
    found = read_definition(WHOLE, Path("/h/agents/notes.md"))

    assert (found.id, found.description) == ("release-notes", "Writes release notes.")
    assert (found.model, found.mode) == ("anthropic:claude-sonnet-5-5", RunMode.READONLY)
    assert found.fallback_models == ("openai:gpt-5", "ollama:qwen3:8b")
    assert found.suggested_tools == ("code.read_file", "code.s*")
    assert found.limits == {
        "max_turns": 7,
        "max_repeated_failures": 0,
        "max_reasks": 1,
        "max_continuations": 0,
        "parallel_reads": 2,
    }
    assert found.options == ModelOptions(0.5, 900, "high", 20.0, parallel_calls=False)
    assert found.instructions == "Read the log.\n\nWrite the notes."
    assert found.source == "/h/agents/notes.md"


@pytest.mark.spec("DIS-02.b")
def test_tools_may_be_one_text_with_commas() -> None:
    found = read_definition("---\ndescription: d\nsuggested_tools: code.search, code.read_file\n---\nx", Path("a.md"))

    assert found.suggested_tools == ("code.search", "code.read_file")


@pytest.mark.spec("DIS-02.b")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        pytest.param("Do it.", "notes.md: it does not begin with front matter; write fields between", id="no-front"),
        pytest.param("---\ndescription: d\n---\n", "there is no text after the front matter", id="no-text"),
        pytest.param("---\n---\nx", "notes.md: the field 'description' is missing; add `description:`", id="empty"),
        pytest.param(
            "---\ndescription: d\n\ntemprature: 1\n---\nx",
            "notes.md:4 temprature: unknown field 'temprature'; did you mean 'temperature'?",
            id="unknown",
        ),
        pytest.param(
            "---\ndescription: d\nlimits: {max_turns: 0}\n---\nx",
            "notes.md:3 limits.max_turns: 0 cannot be used; write an integer from 1 to 10000",
            id="limit",
        ),
        pytest.param("---\ndescription: d\nmode: fast\n---\nx", "'fast' is not one of default, plan", id="mode"),
        pytest.param(
            "---\ndescription: d\nfallback_models: [gpt-5]\n---\nx",
            "fallback_models[0]: 'gpt-5' cannot be used; write a model as provider:name, such as openai:gpt-5",
            id="fallback",
        ),
        pytest.param(
            f"---\ndescription: d\nfallback_models: [{', '.join(['a:b'] * 6)}]\n---\nx",
            "fallback_models: it has 6 entries; write at most 5",
            id="many-fallbacks",
        ),
        pytest.param("---\ndescription: d\nname: Ünfit\n---\nx", "write 1 to 64 lower-case letters, digits", id="id"),
        pytest.param("---\n- a\n---\nx", "the front matter is a list; write fields", id="list"),
        pytest.param("---\ndescription: [\n---\nx", "invalid YAML", id="yaml"),
        pytest.param("---\na: &a [1]\nb: *a\n---\nx", "anchors (`&name`) are not read", id="anchor"),
        pytest.param(f"---\ndescription: {'d' * 20_000}\n---\nx", "its front matter has 20,014 characters", id="huge"),
        pytest.param("---\ndescription: d\n---\na\0b", "holds a NUL character", id="nul"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(text: str, said: str) -> None:
    assert any(said in one for one in problems(text)), problems(text)


@pytest.mark.spec("DIS-02.b")
def test_a_files_name_that_can_be_no_id_needs_a_name() -> None:
    assert (
        "notes (1).md:2: the file's name 'notes (1)' cannot be an id; add `name:`" in problems(SHORT, "notes (1).md")[0]
    )


@pytest.mark.spec("DIS-02.b")
def test_a_broken_file_keeps_no_other_from_being_used(tmp_path: Path) -> None:
    write(tmp_path, "broken.md", "---\nno end")
    write(tmp_path, "good.md", SHORT)
    write(tmp_path, "README.txt", "not a definition")

    broken, good = definition_files(tmp_path)

    assert (broken.definition, len(broken.problems)) == (None, 1)
    assert good.definition is not None
    assert "good" in known_definitions(tmp_path).ids


@pytest.mark.spec("DIS-02.b")
@pytest.mark.parametrize("taken", ["reviewer", "first"], ids=["built-in", "another file"])
def test_an_id_is_given_once(tmp_path: Path, taken: str) -> None:
    write(tmp_path, "first.md", SHORT)
    write(tmp_path, "second.md", f"---\nname: {taken}\ndescription: other\n---\nOther.")

    first, second = definition_files(tmp_path)

    assert first.definition is not None
    assert f"the id '{taken}' is taken" in str(second.problems[0])
    assert known_definitions(tmp_path).get(taken).description != "other"


@pytest.mark.spec("DIS-02.b")
def test_what_is_no_readable_text_file_is_told(tmp_path: Path) -> None:
    folder = tmp_path / "agents"
    folder.mkdir()
    os.mkfifo(folder / "fifo.md")
    (folder / "folder.md").mkdir()
    (folder / "huge.md").write_text(SHORT + "x" * MAX_BYTES)
    (folder / "latin.md").write_bytes(SHORT.encode() + b"\xe9")
    (folder / "lost.md").symlink_to(folder / "nowhere")
    (folder / "memory.md").symlink_to("/proc/self/environ")

    found = {file.path.stem: str(file.problems[0]) for file in definition_files(tmp_path)}

    assert "not a regular file" in found["fifo"]
    assert "not a regular file" in found["folder"]
    assert "more than 262,144 bytes" in found["huge"]
    assert "it is not UTF-8 text" in found["latin"]
    assert found.keys() == {"fifo", "folder", "huge", "latin", "lost", "memory"}
    assert known_definitions(tmp_path).ids == known_definitions(None).ids


@pytest.mark.spec("DIS-02.b")
def test_definitions_are_those_of_now_and_read_again_when_a_file_changes_only(tmp_path: Path) -> None:
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "nowhere.md").symlink_to(tmp_path / "nothing")  # keeps no other from being noticed
    live = LiveDefinitions(tmp_path, lambda known: known)
    first = live.now()
    path = write(tmp_path, "new.md", SHORT)
    second = live.now()
    path.write_text(SHORT.replace("Do it.", "Do it twice."))
    third = live.now()
    again = live.now()
    path.unlink()

    assert "new" not in first.ids
    assert second.get("new").instructions == "Do it."
    assert third.get("new").instructions == "Do it twice."
    assert again is third
    assert "new" not in live.now().ids


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


def write_in_project(project: Path, name: str, text: str) -> Path:
    path = project / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def only(files: list[DefinitionFile]) -> tuple[AgentDefinition, tuple[str, ...]]:
    (file,) = files
    assert file.definition is not None, file.problems
    return file.definition, file.notes


@pytest.mark.spec("DIS-02.b")
def test_a_projects_definition_chooses_no_model_and_raises_no_limit(tmp_path: Path) -> None:
    write_in_project(tmp_path, ".soong/agents/looker.md", OWN)

    found, notes = only(project_definition_files(tmp_path, AgentsConfig()))

    assert (found.id, found.model, found.instructions) == ("project.looker", "", "Look.")
    assert found.limits == {"max_turns": 50, "max_repeated_failures": 2, "tokens": 100, "cost_usd": 0.5}
    assert ["project_models" in note or "max_turns" in note for note in notes] == [True, True]


@pytest.mark.spec("DIS-02.b")
def test_a_model_that_the_user_lists_is_taken(tmp_path: Path) -> None:
    write_in_project(tmp_path, ".soong/agents/looker.md", OWN)

    found, _ = only(project_definition_files(tmp_path, AgentsConfig(project_models=("openai-chat:*",))))

    assert found.model == "openai-chat:dear"


@pytest.mark.spec("DIS-02.b")
@pytest.mark.parametrize(
    ("listed", "fallbacks"),
    [((), None), (("ollama:*",), ("ollama:qwen3",)), (("*",), ("openai-chat:dear", "ollama:qwen3"))],
    ids=["none", "one", "all"],
)
def test_fallbacks_are_limited_as_the_model_is(
    tmp_path: Path, listed: tuple[str, ...], fallbacks: tuple[str, ...] | None
) -> None:
    text = "---\ndescription: d\nfallback_models: [openai-chat:dear, ollama:qwen3]\n---\nLook."
    write_in_project(tmp_path, ".soong/agents/looker.md", text)

    found, notes = only(project_definition_files(tmp_path, AgentsConfig(project_models=listed)))

    assert found.fallback_models == fallbacks
    assert len(notes) == (len(fallbacks or ()) < 2)


@pytest.mark.spec("DIS-02.b")
def test_a_file_of_claude_code_is_read_as_it_is(tmp_path: Path) -> None:
    write_in_project(tmp_path, ".claude/agents/code-reviewer.md", CLAUDE)

    found, notes = only(project_definition_files(tmp_path, AgentsConfig()))

    assert (found.id, found.model, found.instructions) == ("claude.code-reviewer", "", "You review code.")
    assert found.description.startswith("Use this agent when code was written. Examples: <example>Context: a change.")
    assert found.suggested_tools == ("code.read_file", "code.search", "code.run_command")
    assert notes == (
        "fields that have no meaning here are ignored: color",
        "tools that are not known here are left out: WebSearch, mcp__github__get",
        "its model 'opus' is a name of Claude Code; the task's model is used",
    )


@pytest.mark.spec("DIS-02.b")
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
    write_in_project(tmp_path, ".claude/agents/x.md", f"---\nname: x\ndescription: d\n{tools}---\nDo.")

    found, _ = only(project_definition_files(tmp_path, AgentsConfig()))

    assert found.suggested_tools == expected


@pytest.mark.spec("DIS-02.b")
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
    write_in_project(tmp_path, ".claude/agents/---.md", text)

    (file,) = project_definition_files(tmp_path, AgentsConfig())

    assert file.definition is None
    assert problem in str(file.problems[0])


@pytest.mark.spec("DIS-02.b")
def test_a_link_out_of_the_project_is_not_followed(tmp_path: Path) -> None:
    secret = write_in_project(tmp_path, "home/secret.md", OWN)
    project = tmp_path / "project"
    write_in_project(project, ".soong/agents/fine.md", OWN)
    (project / ".soong/agents/link.md").symlink_to(secret)
    (project / ".claude").symlink_to(tmp_path / "home")

    fine, link = project_definition_files(project, AgentsConfig())

    assert fine.definition is not None
    assert link.definition is None
    assert "outside the project" in str(link.problems[0])


@pytest.mark.spec("DIS-02.b")
def test_it_can_be_switched_off_and_is_bounded(tmp_path: Path) -> None:
    for number in range(MAX_FILES + 5):
        write_in_project(tmp_path, f".soong/agents/a{number:03}.md", OWN)

    assert len(project_definition_files(tmp_path, AgentsConfig())) == MAX_FILES
    assert project_definition_files(tmp_path, AgentsConfig(project=False)) == []


@pytest.mark.spec("DIS-02.b")
def test_an_id_that_two_files_have_is_the_first_ones(tmp_path: Path) -> None:
    write_in_project(tmp_path, ".soong/agents/a.md", OWN)
    write_in_project(tmp_path, ".soong/agents/b.md", OWN.replace("---\n", "---\nname: a\n", 1))

    first, second = project_definition_files(tmp_path, AgentsConfig())

    assert first.definition is not None
    assert second.definition is None
    assert "has the id 'project.a' too" in str(second.problems[0])


@pytest.mark.spec("DIS-02.b")
def test_a_project_replaces_no_definition(tmp_path: Path) -> None:
    write_in_project(tmp_path, ".soong/agents/orchestrator.md", OWN)
    known = builtin_definitions()

    found = with_project(known, tmp_path, AgentsConfig())

    assert found.get("orchestrator") is known.get("orchestrator")
    assert found.ids - known.ids == {"project.orchestrator"}
    assert with_project(known, tmp_path / "none", AgentsConfig()) is known
