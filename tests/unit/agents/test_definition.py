"""Agent definitions by id."""

import pytest

from soong.shared.agents.definition import AgentDefinition, AgentDefinitionRegistry, builtin_definitions
from soong.shared.core.errors import InvalidConfigError, NotFoundError


@pytest.mark.spec("DIS-02.a")
def test_the_built_in_definitions_are_found_by_their_ids() -> None:
    registry = builtin_definitions()

    assert registry.ids == {"default_worker_agent", "orchestrator"}
    assert {registry.get(each).id for each in registry.ids} == registry.ids


@pytest.mark.spec("DIS-02")
def test_an_unknown_definition_is_named_and_a_second_of_one_id_refused() -> None:
    with pytest.raises(NotFoundError, match="nobody"):
        builtin_definitions().get("nobody")
    with pytest.raises(InvalidConfigError, match="'a'"):
        AgentDefinitionRegistry([AgentDefinition("a", "A", "", ""), AgentDefinition("a", "B", "", "")])
