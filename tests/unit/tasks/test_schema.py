"""The published schema of plans says what the reader says, as far as a schema can."""

import json
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter, ValidationError

from soong.shared.core.errors import InvalidPlanError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.plan.checks import StepDocument
from soong.shared.engine.tasks.plan.plan import Plan
from soong.shared.engine.tasks.plan.reader import plan_from_json, plan_schema
from soong.shared.tools.schema import schema_problems, validate
from tests.architecture.planning_schemas import step_schema
from tests.spec_document import ROOT

pytestmark = pytest.mark.spec("DAG-08")

SCHEMA = Draft202012Validator(plan_schema())
DEFINITIONS = cast(Any, plan_schema())["$defs"]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))

AGENT: dict[str, Json] = {
    "id": "a",
    "kind": "agent",
    "title": "A",
    "instructions": "Do it.",
    "agent": "default_worker_agent",
    "model": "test:model",
    "settings": {"temperature": 0, "thinking": "low", "cache": False},
    "allowed_tools": ["code.*"],
    "permissions": {"write": ["docs/", "out.md"], "hosts": ["api.example.org"], "run": [["git", "status"]]},
    "inputs": {"x": 1},
    "output": {"type": "object"},
    "priority": 3,
    "retries": 2,
    "backoff_s": 0.5,
    "timeout_s": 60,
    "pool": "big",
    "needs": ["gpu"],
    "on_failure": "retry",
    "claim": "assigned",
}
PYTHON: dict[str, Json] = {
    "id": "p",
    "kind": "python",
    "call": "builtin.echo",
    "isolation": "process",
    "depends_on": ["a"],
    "on_failure": "keep",
}
MAP: dict[str, Json] = {
    "id": "m",
    "kind": "map",
    "depends_on": ["p"],
    "over": "${p.output}",
    "as": "one",
    "key": "${one}",
    "max_items": 10,
    "on_item_failure": "keep",
    "on_failure": "fail_task",
    "priority": 1,
    "step": {"title": "T", "instructions": "See ${one}.", "retries": 1},
}
CHILD: dict[str, Json] = {name: value for name, value in AGENT.items() if name not in ("id", "on_failure")}


def plan(*steps: Any, **more: Json) -> dict[str, Json]:
    return {"title": "t", "steps": list(steps), **more}


def is_read(document: Json) -> Plan | None:
    try:
        return plan_from_json(document)
    except InvalidPlanError:
        return None


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_the_examples_hold_to_it(path: Path) -> None:
    assert list(SCHEMA.iter_errors(yaml.safe_load(path.read_text(encoding="utf-8")))) == []


@pytest.mark.spec("DAG-02.a")
def test_every_field_of_every_kind_is_known_to_both() -> None:
    document = plan(
        AGENT, PYTHON, MAP, inputs={"x": ".", "y": {"type": "integer", "description": "d", "required": False}}
    )

    assert list(SCHEMA.iter_errors(document)) == []
    assert is_read(document) is not None
    models = cast(Any, plan_schema())["$defs"]
    named = {name for kind in ("AgentStep", "PythonStep", "MapStep") for name in models[kind]["properties"]}
    assert named == {*AGENT, *PYTHON, *MAP, "script"}


@pytest.mark.parametrize(
    "document",
    [
        pytest.param([], id="no-mapping"),
        pytest.param({"steps": [AGENT]}, id="no-title"),
        pytest.param(plan(), id="no-steps"),
        pytest.param(plan({**AGENT, "colour": "red"}), id="unknown-field"),
        pytest.param(plan({**AGENT, "id": "a b"}), id="id"),
        pytest.param(plan({**AGENT, "id": "a" * 65}), id="long-id"),
        pytest.param(plan({**AGENT, "kind": "shell"}), id="kind"),
        pytest.param(plan({**AGENT, "retries": 21}), id="retries"),
        pytest.param(plan({**AGENT, "retries": "2"}), id="retries-text"),
        pytest.param(plan({**AGENT, "backoff_s": 7200}), id="long-pause"),
        pytest.param(plan({**AGENT, "pool": "a b"}), id="pool"),
        pytest.param(plan(AGENT, PYTHON, {**MAP, "as": "1 x"}), id="item-name"),
        pytest.param(plan({**AGENT, "priority": 1001}), id="priority"),
        pytest.param(plan({**AGENT, "timeout_s": 0}), id="no-time"),
        pytest.param(plan({**AGENT, "on_failure": "panic"}), id="policy"),
        pytest.param(plan({**AGENT, "permissions": {"wrte": ["x"]}}), id="asks-field"),
        pytest.param(plan({**AGENT, "permissions": {"run": [[]]}}), id="no-program"),
        pytest.param(plan({**AGENT, "call": "x"}), id="field-of-another-kind"),
        pytest.param(plan({"id": "p", "kind": "python"}), id="python-without-call"),
        pytest.param(plan(AGENT, PYTHON, {**MAP, "retries": 1}), id="map-retries"),
        pytest.param(plan(AGENT, PYTHON, {**MAP, "on_failure": "retry"}), id="map-retry"),
        pytest.param(plan(AGENT, PYTHON, {**MAP, "max_items": 0}), id="no-items"),
        pytest.param(plan(AGENT, PYTHON, {**MAP, "step": {**AGENT}}), id="child-with-an-id"),
        pytest.param(plan(AGENT, inputs={"a-b": 1}), id="input-name"),
        pytest.param(plan(AGENT, inputs={"a": {"kind": "x"}}), id="input-field"),
    ],
)
def test_what_the_schema_refuses_the_reader_refuses_too(document: Json) -> None:
    assert list(SCHEMA.iter_errors(document)) != []
    assert is_read(document) is None


VALUES: list[Json] = ["", " ", "a b", "1 x", "keep", "retry", "pull", "agent", "map", 0, -1, 1, 7200, 10**7, 0.5, True]
VALUES += [[], ["x"], [""], [1], [["x"]], [[]], {}, {"a": 1}, {"write": ["x"]}, {"run": ["x", ["y"]]}, {"run": [[]]}]


STEPS: TypeAdapter[Any] = TypeAdapter(StepDocument)


def is_taken(step: Json) -> bool:
    """Say whether the models take a step, but for the rules of single texts that a schema cannot say."""
    try:
        STEPS.validate_python(step)
    except ValidationError as error:
        return all(one["type"] == "problem" for one in error.errors())
    return True


@pytest.mark.parametrize("step", [AGENT, PYTHON, MAP], ids=["agent", "python", "map"])
def test_schema_and_reader_take_the_same_values_of_each_field(step: dict[str, Json]) -> None:
    of_a_step = Draft202012Validator({**cast(Any, plan_schema())["properties"]["steps"]["items"], "$defs": DEFINITIONS})
    names = [*step, "script"] if step is AGENT else [*step]
    changed = [{**step, name: value} for name in names for value in VALUES]
    changed += [{**step, "step": {**CHILD, name: value}} for name in CHILD for value in VALUES if step is MAP]

    differ = [one for one in changed if of_a_step.is_valid(one) != is_taken(one)]

    # Two rules have an error of their own, which says what to write instead: a program without words, a map in a map.
    ruled = [one for one in differ if '"run": [[]]' in json.dumps(one) or one.get("step") == {**CHILD, "kind": "map"}]
    assert differ == ruled
    assert sum(of_a_step.is_valid(one) for one in changed) > len(names)


def test_a_field_that_is_null_counts_as_left_out() -> None:
    said = dict.fromkeys(AGENT.keys() - {"id"})

    found = is_read(plan({**said, "id": "a", "instructions": "x"}))

    assert found is not None
    assert found.steps == cast(Plan, is_read(plan({"id": "a", "instructions": "x"}))).steps


def test_steps_as_tools_tell_them_stay_within_the_schemas_of_tools() -> None:
    schema = step_schema()

    assert list(schema_problems(schema)) == []
    for step in (AGENT, PYTHON, MAP):
        assert validate(schema, step) == []
    assert {*AGENT, *PYTHON, *MAP} <= cast(Any, schema)["properties"].keys()
