from collections.abc import Mapping

import pytest

from soong.orchestrator.client.catalog import Catalogue
from soong.shared.agents.definition import DEFINITION, AgentDefinition, AgentDefinitionRegistry, ModelOptions
from soong.shared.core.errors import InvalidPlanError, UsageError
from soong.shared.core.jsontext import Json, JsonObject
from soong.shared.engine.tasks.new_tasks import new_task
from soong.shared.engine.tasks.plan.agent_kind import parse_settings, read_settings, with_settings
from soong.shared.engine.tasks.plan.reader import parse_plan
from soong.shared.engine.tasks.step import NewTask
from tests.unit.tasks.test_expansion import SESSION

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
        (["thinking=much"], "--setting.thinking"),
        (["cache=perhaps"], "write true or false"),
        (["timeout_s=NaN"], "--setting.timeout_s"),
        (["timeout_s=1e400"], "--setting.timeout_s"),
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


def test_every_problem_is_told_and_nulls_are_left_out() -> None:
    with pytest.raises(InvalidPlanError) as refused:
        read_settings({"temperature": "hot", "cache": 1})

    assert len(refused.value.problems) == 2
    assert read_settings({"temperature": None, "cache": True}) == {"cache": True}


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
