"""An agent definition that there is not is refused by name: in a plan, in growth, for a step that is tried again."""

import pytest

from soong.orchestrator.client.catalog import Catalogue
from soong.shared.agents.definition import AgentDefinition, AgentDefinitionRegistry
from soong.shared.core.errors import InvalidPlanError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.growth import read_update
from soong.shared.engine.tasks.plan.plan import PlanNames
from soong.shared.engine.tasks.plan.reader import plan_from_json
from soong.shared.engine.tasks.spec import StepKind
from tests.contract.scene import open_scene
from tests.model.builders import make_step
from tests.model.memory import MemoryStore

pytestmark = pytest.mark.spec("DIS-02", "DAG-02")


def catalogue() -> Catalogue:
    """Return what a deployment with two definitions of its own knows."""
    definitions = AgentDefinitionRegistry(
        AgentDefinition(name, name, "", "") for name in ("default_worker_agent", "reviewer", "writer")
    )
    return Catalogue(definitions=definitions)


def step(agent: str) -> dict[str, Json]:
    return {"id": "a", "instructions": "Do it.", "agent": agent}


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"add_steps": [{"id": "new", "instructions": "x", "agent": "reviwer"}]}, "update add_steps[0].agent"),
        ({"retry_steps": [{"step": "a", "agent": "reviwer"}]}, "update retry_steps[0]"),
    ],
    ids=["growth", "another agent"],
)
async def test_so_is_a_change_of_a_task_that_goes_on(change: JsonObject, place: str) -> None:
    scene = await open_scene(MemoryStore())
    task = await scene.store.tasks.task(
        await scene.task(make_step("a", kind=StepKind.AGENT, spec={"instructions": "x"}))
    )
    steps = await scene.store.tasks.steps(task.id)

    with pytest.raises(InvalidPlanError) as refused:
        read_update(change, task, steps, catalogue().known())

    (found,) = refused.value.problems
    assert found.place == place
    assert "'reviwer'" in found.problem
    assert "did you mean 'reviewer'?" in found.hint
    assert read_update({"retry_steps": [{"step": "a", "agent": "writer"}]}, task, steps, catalogue().known()).attempts


MODELS = PlanNames(definition_models={"writer": "openai:gpt-5"})


@pytest.mark.parametrize(
    ("fields", "model"),
    [
        ({}, "openai:gpt-5"),
        ({"model": "ollama:llama3"}, "ollama:llama3"),
        ({"agent": "reviewer"}, ""),
        ({"claim": "pull", "agent": "default_worker_agent"}, ""),
    ],
    ids=["of the definition", "its own goes first", "another definition", "pulled"],
)
def test_a_step_has_the_model_of_its_definition(fields: JsonObject, model: str) -> None:
    child: dict[str, Json] = {"instructions": "Do it.", "agent": "writer", **fields}
    written: Json = {"id": "a", **child}
    above: Json = {"id": "m", "kind": "map", "over": [1], "step": child}

    plan = plan_from_json({"title": "t", "steps": [written, above]}, "plan", MODELS)

    assert plan.steps[0].model == model
    assert plan.steps[1].step is not None
    assert plan.steps[1].step.model == model


@pytest.mark.spec("ETS-06")
def test_a_step_is_no_orchestrator() -> None:
    plan: JsonObject = {"title": "t", "steps": [step("orchestrator")]}

    with pytest.raises(InvalidPlanError, match=r"starts no other agents.*`soong ask`") as raised:
        plan_from_json(plan, "plan", Catalogue().known())

    assert str(raised.value.problems[0].place) == "plan steps[0].agent"
