from typing import Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from soong.orchestrator.client.catalog import Catalogue, tools_of
from soong.shared.agents.definition import AgentDefinition, AgentDefinitionRegistry
from soong.shared.core.config import Config, ToolsConfig
from soong.shared.core.identity import Role
from soong.shared.engine.tasks.spec import StepSpec
from soong.shared.permissions.configured import surface_request
from soong.shared.tools.definition import Permission
from soong.shared.tools.surface import RunMode, Surface, narrow
from soong.shared.toolsets.sources import ToolEnvironment

CHILDREN: Final = (Role.SUB, Role.FORK, Role.WORKER)
NEVER_A_CHILDS: Final = frozenset(
    {
        "agent.create_sub_agent",
        "agent.fork_agent",
        "agent.dispatch_worker",
        "agent.list_agent_definitions",
        "agent.list_workers",
        "agent.plan_template",
        "agent.task_template",
        "agent.task_create",
        "agent.task_list",
        "agent.task_update",
        "agent.task_complete",
        "agent.task_fail",
        "agent.task_cancel",
    }
)
A_CHILDS: Final = frozenset(
    {"agent.task_get", "agent.task_query_steps", "agent.task_claim_step", "agent.task_update_step"}
)
TOOLS: Final = tools_of(ToolEnvironment())
NAMES: Final = sorted(tool.name for tool in TOOLS)

patterns = st.lists(st.sampled_from([*NAMES, "*", "agent.*", "agent.task_*", "code.*"]), max_size=6).map(tuple)


@pytest.mark.spec("REG-07.c")
def test_the_table_names_tools_that_there_are() -> None:
    assert set(NAMES) >= NEVER_A_CHILDS | A_CHILDS


@pytest.mark.spec("DAG-01.f")
def test_tools_that_start_and_watch_agents_are_readonly() -> None:
    """What an agent may do is asked where it does it; starting one changes nothing outside."""
    permissions = {tool.name: tool.permission for tool in TOOLS if tool.name.startswith("agent.")}

    starting = {"agent.create_sub_agent", "agent.fork_agent", "agent.dispatch_worker", "agent.inspect_agent"}
    assert starting <= set(permissions)
    assert set(permissions.values()) == {Permission.READONLY}


@pytest.mark.spec("ETS-06", "ETS-03", "DIS-01")
@settings(max_examples=150, deadline=None)
@given(
    role=st.sampled_from(CHILDREN),
    suggested=st.none() | patterns,
    allowed=st.none() | patterns,
    mode=st.sampled_from(list(RunMode)),
    is_dangerous=st.booleans(),
)
def test_no_definition_and_no_dispatch_gives_a_child_what_it_never_has(
    role: Role, suggested: tuple[str, ...] | None, allowed: tuple[str, ...] | None, mode: RunMode, is_dangerous: bool
) -> None:
    definition = AgentDefinition("any", "Any", "Any.", "Do it.", suggested_tools=suggested, mode=mode)
    config = Config(tools=ToolsConfig(dangerous=is_dangerous))
    catalogue = Catalogue(TOOLS, AgentDefinitionRegistry([definition]), config)

    stored = catalogue.surface_of(StepSpec("a", agent="any", allowed_tools=allowed, role=role))

    tools = set(Surface.from_json(stored).tools)
    assert not tools & NEVER_A_CHILDS
    assert not any("memor" in name for name in tools)
    if mode is not RunMode.DEFAULT:
        assert not tools & {"code.write_file", "code.edit_file", "code.run_command"}


@pytest.mark.spec("ETS-06")
@pytest.mark.parametrize("role", CHILDREN)
def test_a_forged_surface_gives_a_child_nothing_more(role: Role) -> None:
    """What a run calls is limited again where it runs: a row that says otherwise changes nothing."""
    everything = narrow(TOOLS, surface_request(Config(), role))

    assert not {tool.name for tool in everything} & NEVER_A_CHILDS


@pytest.mark.spec("ETS-06", "DAG-01")
@pytest.mark.parametrize("role", [Role.MAIN, Role.ORCHESTRATOR])
def test_who_owns_a_goal_may_plan_and_start_agents(role: Role) -> None:
    catalogue = Catalogue(TOOLS)
    definition = catalogue.definitions.get("orchestrator")

    tools = set(Surface.from_json(catalogue.surface_of_ask(definition, role)).tools)

    assert tools >= NEVER_A_CHILDS
    assert "code.write_file" not in tools


@pytest.mark.spec("DIS-06.d", "DIS-06.e")
@pytest.mark.parametrize("mode", [RunMode.PLAN, RunMode.READONLY])
def test_an_agent_that_only_plans_or_reads_starts_nobody(mode: RunMode) -> None:
    definition = AgentDefinition("careful", "Careful", "Careful.", "Look.", suggested_tools=("*",), mode=mode)
    catalogue = Catalogue(TOOLS, AgentDefinitionRegistry([definition]))

    tools = set(Surface.from_json(catalogue.surface_of_ask(definition, Role.MAIN)).tools)

    assert not tools & {"agent.create_sub_agent", "agent.fork_agent", "agent.dispatch_worker", "code.write_file"}
    assert ("agent.task_create" in tools) is (mode is RunMode.PLAN)


@pytest.mark.spec("ETS-05.c", "ETS-05.d")
def test_the_configuration_asks_for_tools_of_workers_whose_step_names_none() -> None:
    config = Config(tools=ToolsConfig(for_workers=("code.edit_file", "agent.dispatch_worker", "code.run_command")))
    catalogue = Catalogue(TOOLS, config=config)

    def tools(**step: object) -> set[str]:
        stored = catalogue.surface_of(replace(StepSpec("a"), **step))  # fields of a step
        return set(Surface.from_json(stored).tools)

    asked = tools()
    assert "code.edit_file" in asked
    assert not asked & {"agent.dispatch_worker", "code.run_command", "code.write_file"}
    assert "code.edit_file" not in tools(allowed_tools=("code.read_file",))
    assert "code.edit_file" not in tools(agent="explorer")
    assert "code.edit_file" not in tools(role=Role.SUB)
    explained = Surface.from_json(catalogue.surface_of(StepSpec("a"))).explain("code.edit_file")
    assert explained is not None
    assert explained.rule == "config tools.for_workers: code.edit_file"
