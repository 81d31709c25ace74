import pytest

from soong.orchestrator.client.catalog import Catalogue
from soong.shared.agents.definition import AgentDefinition, AgentDefinitionRegistry, builtin_definitions
from soong.shared.core.errors import InvalidConfigError, NotFoundError, UsageError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.plan.reader import plan_from_json
from soong.shared.tools.definition import Permission
from soong.shared.tools.surface import Surface


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
