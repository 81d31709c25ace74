import tomllib
from pathlib import Path

import pytest
from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue
from soong.shared.agents.acp_agents import OwnKind, acp_agents, acp_tool_names, with_acp
from soong.shared.agents.definition import AgentDefinition, AgentDefinitionRegistry, builtin_definitions
from soong.shared.core.config import parse_config
from soong.shared.core.errors import InvalidConfigError, NotFoundError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.plan.reader import plan_from_json
from soong.shared.tools.definition import Permission, RunDirs
from soong.shared.tools.naming import check_name
from soong.shared.tools.surface import Surface
from soong.worker.acp.connection import AgentProgram


@pytest.mark.spec("DIS-02.a")
def test_the_built_in_definitions_are_found_by_their_ids() -> None:
    registry = builtin_definitions()

    names = {"default_worker_agent", "orchestrator", "explorer", "reviewer", "implementer", "memory_extractor"}
    assert registry.ids == names
    assert {registry.get(each).id for each in registry.ids} == registry.ids


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
