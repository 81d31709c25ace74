"""The published schema of plans says what the reader says, as far as a schema can; the graph and its picture."""

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree as ET

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from pydantic import TypeAdapter, ValidationError

from soong.shared.core.errors import InvalidPlanError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.plan.checks import StepDocument
from soong.shared.engine.tasks.plan.picture import svg
from soong.shared.engine.tasks.plan.plan import Plan
from soong.shared.engine.tasks.plan.reader import plan_from_json, plan_schema
from soong.shared.engine.tasks.spec import StepKind, StepSpec, StepStatus
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
    "when": "${a.output} == 1",
    "join": "done",
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
        pytest.param(plan({**AGENT, "id": "a" * 65}), id="long-id"),
        pytest.param(plan({**AGENT, "retries": 21}), id="retries"),
        pytest.param(plan({**AGENT, "permissions": {"wrte": ["x"]}}), id="asks-field"),
        pytest.param(plan({**AGENT, "permissions": {"run": [[]]}}), id="no-program"),
        pytest.param(plan({**AGENT, "call": "x"}), id="field-of-another-kind"),
        pytest.param(plan({"id": "p", "kind": "python"}), id="python-without-call"),
        pytest.param(plan(AGENT, PYTHON, {**MAP, "retries": 1}), id="map-retries"),
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


SPACE = "{http://www.w3.org/2000/svg}"


def drawn(*steps: StepSpec, title: str = "t") -> Plan:
    return Plan(title, (), steps, {})


def boxes(picture: str) -> dict[str, tuple[float, float, float]]:
    """Return left, top and width of each step's box, by the first line of its text."""
    found = {}
    for group in ET.fromstring(picture).iter(f"{SPACE}g"):
        frame, text = group.find(f"{SPACE}rect"), group.find(f"{SPACE}text")
        assert frame is not None
        assert text is not None
        found[str(text.text)] = (float(frame.get("x", "")), float(frame.get("y", "")), float(frame.get("width", "")))
    return found


@pytest.mark.spec("DAG-08.c")
def test_every_dependency_is_an_edge_with_status_and_title_reported() -> None:
    picture = svg(drawn(StepSpec("a"), StepSpec("b", depends_on=("a",)), StepSpec("c", depends_on=("a", "b"))))

    assert len(list(ET.fromstring(picture).iter(f"{SPACE}path"))) == 3

    picture = svg(drawn(StepSpec("a", title="Look")), {"a": StepStatus.FAILED})

    assert "Look (failed)" in picture
    assert re.search(r'fill="#f9d6d5"', picture)


@given(st.text(max_size=60), st.sampled_from(StepKind), st.text(max_size=20))
def test_text_of_any_kind_stays_text(title: str, kind: StepKind, over: str) -> None:
    picture = svg(drawn(StepSpec("a", kind=kind, title=title, over=over), title=title))

    tags = {element.tag.removeprefix(SPACE) for element in ET.fromstring(picture).iter()}
    assert tags <= {"svg", "title", "rect", "g", "text", "path"}


@pytest.mark.parametrize("fan", [100, 1_700, 10_000])
def test_a_wide_plan_has_the_shape_of_a_page(fan: int) -> None:
    steps = [StepSpec("a"), *(StepSpec(f"review-{n}", depends_on=("a",)) for n in range(fan))]
    end = StepSpec("end", depends_on=tuple(step.id for step in steps[1:]))

    picture = svg(drawn(*steps, end))

    found, root = boxes(picture), ET.fromstring(picture)
    width, height = float(root.get("width", "")), float(root.get("height", ""))
    assert width <= max(1_700, 1.2 * height)
    assert max(left + wide for left, _, wide in found.values()) <= width
    assert all(found["a"][1] < found[f"review-{n}"][1] < found["end"][1] for n in range(fan))
    assert len({(left, top) for left, top, _ in found.values()}) == fan + 2
    by_row: dict[float, list[tuple[float, float]]] = {}
    for left, top, wide in found.values():
        by_row.setdefault(top, []).append((left, left + wide))
    for row in by_row.values():
        assert all(right < left for (_, right), (left, _) in pairwise(sorted(row)))


def test_a_plan_of_ten_thousand_steps_is_drawn() -> None:
    chain = [StepSpec("s0"), *(StepSpec(f"s{n}", depends_on=(f"s{n - 1}",)) for n in range(1, 2000))]
    wide = [StepSpec(f"w{n}", depends_on=("s0",)) for n in range(8000)]

    assert svg(drawn(*chain, *wide)).count("<g>") == 10_000
