"""Agents and models that plans name."""

from collections.abc import Mapping

import pytest

from soong.orchestrator.client.catalog import Catalogue
from soong.shared.agents.definition import DEFINITION, AgentDefinition, AgentDefinitionRegistry, ModelOptions
from soong.shared.core.errors import InvalidPlanError, UsageError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.growth import read_update
from soong.shared.engine.tasks.new_tasks import new_task
from soong.shared.engine.tasks.plan.agent_kind import parse_settings, with_settings
from soong.shared.engine.tasks.plan.plan import PlanNames
from soong.shared.engine.tasks.plan.reader import parse_plan, plan_from_json
from soong.shared.engine.tasks.spec import StepKind
from soong.shared.engine.tasks.step import NewTask
from tests.contract.scene import open_scene
from tests.model.builders import make_step
from tests.model.memory import MemoryStore
from tests.unit.tasks.test_expansion import SESSION


def catalogue() -> Catalogue:
    """Return what a deployment with two definitions of its own knows."""
    definitions = AgentDefinitionRegistry(
        AgentDefinition(name, name, "", "") for name in ("default_worker_agent", "reviewer", "writer")
    )
    return Catalogue(definitions=definitions)


def step(agent: str) -> dict[str, Json]:
    return {"id": "a", "instructions": "Do it.", "agent": agent}


@pytest.mark.spec("DIS-02", "DAG-02")
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


@pytest.mark.spec("DIS-02", "DAG-02")
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


@pytest.mark.spec("DIS-02", "DAG-02", "ETS-06")
def test_a_step_is_no_orchestrator() -> None:
    plan: JsonObject = {"title": "t", "steps": [step("orchestrator")]}

    with pytest.raises(InvalidPlanError, match=r"starts no other agents.*`soong ask`") as raised:
        plan_from_json(plan, "plan", Catalogue().known())

    assert str(raised.value.problems[0].place) == "plan steps[0].agent"


PLAN = """\
title: t
steps:
  - {id: plain, instructions: Do., agent: calm}
  - {id: own, instructions: Do., agent: calm, settings: {temperature: 1, thinking: high}}
  - {id: code, kind: python, call: builtin.echo}
  - {id: pulled, claim: pull, instructions: Do.}
  - id: each
    kind: map
    over: [1, 2]
    step: {instructions: Do., agent: calm, settings: {max_tokens: 10}}
"""
CALM = AgentDefinition("calm", "calm", "", "Be calm.", options=ModelOptions(temperature=0.2, timeout_s=9.0))


def made(text: str = PLAN, settings: JsonObject | None = None) -> NewTask:
    surface_of = Catalogue(definitions=AgentDefinitionRegistry([CALM])).surface_of
    plan = with_settings(parse_plan(text, "p.yaml"), settings or {})
    return new_task(plan, {}, SESSION, surface_of=surface_of, default_model="x:y", now_us=0)


def options(surface: JsonObject) -> Json:
    definition = surface[DEFINITION]
    assert isinstance(definition, Mapping)
    found: Json = definition["options"]
    return found


def of_steps(task: NewTask) -> dict[str, Json]:
    own = {
        step.step_id: options(step.run.surface) for step in task.steps if step.run and DEFINITION in step.run.surface
    }
    return own | {step.step_id: options(step.spec.child_surface) for step in task.steps if step.spec.child_surface}


def test_a_command_sets_them_for_all_agents() -> None:
    assert of_steps(made(settings=parse_settings(["temperature=0", "thinking=off", "cache=false"]))) == {
        "plain": {"temperature": 0.0, "timeout_s": 9.0, "thinking": "off", "cache": False},
        "own": {"temperature": 0.0, "timeout_s": 9.0, "thinking": "off", "cache": False},
        "each": {"temperature": 0.0, "timeout_s": 9.0, "max_tokens": 10, "thinking": "off", "cache": False},
    }


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["temprature=1"], "unknown field 'temprature'; did you mean 'temperature'"),
        (["temperature=3"], "--setting.temperature: 3 cannot be used; write a number from 0 to 2"),
        (["max_tokens=0"], "write an integer from 1 to 10000000"),
        (["cache=perhaps"], "write true or false"),
        (["timeout_s=NaN"], "--setting.timeout_s"),
    ],
)
def test_what_cannot_be_set_is_refused_with_what_can(words: list[str], told: str) -> None:
    with pytest.raises(InvalidPlanError) as refused:
        parse_settings(words)

    assert told in str(refused.value)


@pytest.mark.parametrize("word", ["temperature", "=1", ""])
def test_a_setting_without_a_name_or_a_value_is_refused_with_those_that_there_are(word: str) -> None:
    with pytest.raises(UsageError, match="is not NAME=VALUE; the settings are temperature, max_tokens, thinking"):
        parse_settings([word])


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("{id: a, instructions: Do., settings: {tokens: 5}}", "unknown field 'tokens'"),
        ("{id: a, instructions: Do., settings: {max_tokens: many}}", "steps[0].settings.max_tokens"),
        ("{id: a, claim: pull, instructions: Do., settings: {cache: true}}", "has no settings of its own"),
        ("{id: a, kind: python, call: builtin.echo, settings: {cache: true}}", "only a step of `kind: agent` has it"),
    ],
)
def test_a_plan_with_a_setting_that_cannot_be_is_refused(step: str, told: str) -> None:
    with pytest.raises(InvalidPlanError) as refused:
        parse_plan(f"title: t\nsteps:\n  - {step}\n", "p.yaml")

    assert told in str(refused.value)
