"""Rows made of plans: templates and inputs, lineage, edges, a map's children, retries."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from soong.shared.core.errors import InvalidPlanError, TemplateError
from soong.shared.core.jsontext import Json
from soong.shared.engine.sessions.session import ApprovalMode, Session
from soong.shared.engine.tasks.expansion import expand_map, map_items
from soong.shared.engine.tasks.new_tasks import new_task
from soong.shared.engine.tasks.plan.budget import ExpansionBudget
from soong.shared.engine.tasks.plan.plan import Plan, bind_inputs, bind_step
from soong.shared.engine.tasks.plan.reader import parse_plan
from soong.shared.engine.tasks.plan.template import render, render_text
from soong.shared.engine.tasks.spec import ClaimMode, FailurePolicy, StepKind, StepSpec, StepStatus
from soong.shared.engine.tasks.step import NewStep, NewTask, StepResult
from tests.unit.agents.parts import row_of, task_of

SCOPE: dict[str, Json] = {
    "inputs": {"name": "Ada", "count": 3, "list": [1, {"deep": "x"}], "none": None, "yes": True, "odd key": 7},
    "my.step": {"output": {"items": ["a", "b"]}},
    "my": {"step": {"output": "of the shorter root"}},
}


def budget() -> ExpansionBudget:
    return ExpansionBudget("the test")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        pytest.param("${inputs.count}", 3, id="keeps-the-type"),
        pytest.param("${ inputs.list }", [1, {"deep": "x"}], id="spaces"),
        pytest.param("${inputs.list[1].deep}", "x", id="index"),
        pytest.param("${inputs.list[-1].deep}", "x", id="index-from-the-end"),
        pytest.param('${inputs["odd key"]}', 7, id="quoted-key"),
        pytest.param("${my.step.output.items}", ["a", "b"], id="longest-root-wins"),
        pytest.param("Dear ${inputs.name}, ${inputs.count}", "Dear Ada, 3", id="interpolation"),
        pytest.param("${inputs.none}|${inputs.yes}|${inputs.list}", '|true|[1,{"deep":"x"}]', id="text-forms"),
        pytest.param("${inputs.list | length}", 2, id="length"),
        pytest.param('${my.step.output.items | join(", ")}', "a, b", id="join"),
        pytest.param("${inputs.list | json}", '[1,{"deep":"x"}]', id="json"),
        pytest.param("${my.step.output.items | first}${my.step.output.items | last}", "ab", id="first-last"),
        pytest.param("${inputs.missing | default([])}", [], id="default-for-missing"),
        pytest.param('${inputs.none | default("}")}', "}", id="default-for-null-with-a-brace"),
        pytest.param('${inputs.missing | default("a|b")}', "a|b", id="bar-in-quotes"),
        pytest.param("$${inputs.name}", "${inputs.name}", id="escaped"),
        pytest.param("a $${b} ${inputs.name}", "a ${b} Ada", id="escaped-beside-reference"),
        pytest.param("cost: $5 {x}", "cost: $5 {x}", id="plain"),
    ],
)
def test_references_become_what_they_name(text: str, value: Json) -> None:
    assert render_text(text, SCOPE, budget()) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("${inputs.nmae}", "there is no 'nmae' (there is: name", id="missing-key"),
        pytest.param("${other.x}", "'other' is not known here (known: inputs", id="missing-root"),
        pytest.param("${inputs.list[9]}", "no item [9] in a list of 2", id="index"),
        pytest.param("${inputs.name.first}", "cannot look up 'first' in a text", id="into-a-text"),
        pytest.param("${inputs.name | shout}", "not a filter (there are: length", id="unknown-filter"),
        pytest.param("${inputs.list | join}", "takes an argument", id="argument-missing"),
        pytest.param("${inputs.list | length(1)}", "takes no argument", id="argument-too-many"),
        pytest.param("${inputs.list | default(nope)}", "is not JSON", id="argument-not-json"),
        pytest.param("${inputs.count | length}", "cannot be taken of a number", id="filter-on-wrong-kind"),
        pytest.param("${inputs.name", "not closed", id="not-closed"),
        pytest.param("${}", "not a path", id="empty-reference"),
        pytest.param("${a..b}", "not a path", id="double-dot"),
        pytest.param("${__import__('os')}", "not a path", id="code"),
    ],
)
def test_a_reference_that_cannot_be_looked_up_says_why(text: str, words: str) -> None:
    with pytest.raises(TemplateError) as raised:
        render_text(text, SCOPE, budget())

    assert words in str(raised.value)


@given(st.text())
def test_what_a_reference_brings_in_is_never_expanded_again(secret: str) -> None:
    scope: dict[str, Json] = {"evil": "${secret} $${x}" + secret, "secret": "leaked"}

    assert render({"a": "${evil}", "b": ["x ${evil}"]}, scope, budget()) == {
        "a": scope["evil"],
        "b": [f"x {scope['evil']}"],
    }


@given(st.text())
def test_any_text_renders_or_is_refused_by_name(text: str) -> None:
    with suppress(TemplateError):
        render_text(text, SCOPE, budget())


def test_keys_of_mappings_are_not_templates() -> None:
    assert render({"${inputs.name}": "${inputs.name}"}, SCOPE, budget()) == {"${inputs.name}": "Ada"}


INPUT_PLAN = parse_plan(
    """\
title: t
inputs:
  where: {type: string, description: the folder to look at}
  depth: 3
  deep: {type: boolean, default: false}
  names: {type: array, default: []}
  more: {type: object, required: false}
steps: [{id: a, instructions: x}]
""",
    "p.yaml",
)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        pytest.param({}, "it is required and not given (the folder to look at)", id="missing"),
        pytest.param({"where": "x", "deph": 1}, "the plan has no such input; did you mean 'depth'?", id="unknown"),
        pytest.param({"where": "x", "depth": "many"}, "--input depth=<integer>", id="not-json"),
        pytest.param({"where": "x", "depth": True}, "true is not of type integer", id="boolean-is-no-number"),
        pytest.param({"where": 3}, "3 is not of type string", id="number-is-no-text"),
        pytest.param({"where": "x", "names": "{}"}, "{} is not of type array", id="object-is-no-list"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(given: dict[str, Json], problem: str) -> None:
    with pytest.raises(InvalidPlanError) as raised:
        bind_inputs(INPUT_PLAN, given)

    assert problem in str(raised.value)


def test_a_result_without_what_is_asked_of_it_is_named() -> None:
    results = {"a": StepResult("a", StepStatus.COMPLETED, {"y": 1})}

    with pytest.raises(TemplateError, match=r"a\.output\.x.*there is no 'x' \(there is: y\)"):
        bind_step(StepSpec(inputs={"x": "${a.output.x}"}), {}, results)


SESSION = Session("sess_1", "/project", "/cwd", ApprovalMode.PROMPT, 0)

PLAN = """\
title: Two and a map
inputs: {greeting: hello}
steps:
  - {id: a, kind: python, call: builtin.echo, retries: 2, on_failure: fail_task, priority: 7}
  - id: m
    kind: map
    title: Map
    depends_on: [a]
    over: ${a.output.items}
    as: one
    key: ${one.name}
    max_items: 3
    on_item_failure: keep
    step:
      title: Do ${one.name}
      agent: reviewer
      model: test:model
      retries: 1
      pool: big
      needs: [gpu]
      instructions: "${inputs.greeting} ${one.name}"
      inputs: {one: "${one}", all: "${a.output.items | length}"}
      output: {type: object}
  - id: z
    instructions: "join ${inputs.greeting}"
    script: builtin.echo
    depends_on: [m, a]
    inputs: {all: "${m.output}"}
"""


def surface_of(step: StepSpec) -> dict[str, Json]:
    return {"for": step.agent, "asked": list(step.allowed_tools or ())}


def make(plan: Plan | None = None, default_model: str = "script") -> NewTask:
    plan = plan or parse_plan(PLAN, "p.yaml")
    return new_task(plan, {"greeting": "hello"}, SESSION, surface_of=surface_of, default_model=default_model, now_us=5)


def expand(items: Json) -> list[NewStep]:
    made = make()
    done = {"a": StepResult("a", StepStatus.COMPLETED, {"items": items})}
    return expand_map(row_of(made.steps[1]), task_of(made), done, made.root_run.identity)


def test_a_task_has_its_steps_with_keys_edges_and_policies() -> None:
    made = make()

    first, second, third = made.steps

    assert [step.key for step in made.steps] == [f"{made.id}/{name}" for name in ("a", "m", "z")]
    assert third.depends_on == (second.key, first.key)
    assert (first.max_attempts, first.on_failure, first.priority) == (3, FailurePolicy.FAIL_TASK, 7)
    assert (made.created_us, made.plan["title"]) == (5, "Two and a map")


def test_a_map_step_has_no_run_and_keeps_its_childrens_surface() -> None:
    step = make().steps[1]

    assert step.kind is StepKind.MAP
    assert step.run is None
    assert step.spec.child_surface == {"for": "reviewer", "asked": []}
    assert (step.definition, step.model, step.pool, step.needs) == (
        "reviewer",
        "test:model",
        "big",
        ("gpu", "protocol:1"),
    )


def test_children_are_named_by_key_and_learn_what_their_item_is() -> None:
    first, second = expand([{"name": "x"}, {"name": "y z"}])

    assert [first.step_id, second.step_id] == ["m[x]", "m[y z]"]
    assert (first.title, second.item_index, second.depends_on) == ("Do x", 1, ())
    assert (first.max_attempts, first.on_failure, first.map_key) == (
        2,
        FailurePolicy.KEEP,
        first.key.replace("[x]", ""),
    )
    assert first.run is not None
    assert first.run.surface == {"for": "reviewer", "asked": []}
    bound = bind_step(second.spec, {}, {})
    assert bound.instructions == "hello y z"
    assert bound.inputs == {"one": {"name": "y z"}, "all": 2}


def test_what_an_item_brings_is_not_expanded_again_and_breaks_no_id() -> None:
    (child,) = expand([{"name": "${inputs.greeting}"}])

    assert bind_step(child.spec, {"greeting": "leak"}, {}).inputs["one"] == {"name": "${inputs.greeting}"}

    (child,) = expand([{"name": "a]/b[\n"}])

    assert child.step_id == "m[a_/b__]"


@pytest.mark.parametrize(
    ("items", "words"),
    [
        pytest.param("text", "not a list", id="text"),
        pytest.param(None, "not a list", id="null"),
        pytest.param({"a": 1}, "not a list", id="object"),
        pytest.param([{"name": "x"}] * 4, "4 items, and max_items is 3", id="too-many"),
        pytest.param(
            [{"name": "x"}, {"name": "x"}],
            "^`key: \\${one.name}` of the map step 'm' makes the key 'x' of both item 0 and item 1; make it unique",
            id="same-key",
        ),
        pytest.param([{"nam": "x"}], "there is no 'name'", id="key-missing"),
        pytest.param([{"name": ""}], "makes an empty key of item 0", id="empty-key"),
    ],
)
def test_a_list_that_cannot_be_mapped_says_why(items: Json, words: str) -> None:
    with pytest.raises(TemplateError, match=words):
        expand(items)


def test_items_without_a_key_template_are_named_by_themselves_or_their_place() -> None:
    plan = parse_plan(
        "title: t\nsteps: [{id: m, kind: map, over: [b, 4, [x]], step: {kind: python, call: builtin.echo}}]", "p"
    )
    made = make(plan)

    children = expand_map(row_of(made.steps[0]), task_of(made), {}, made.root_run.identity)

    assert [child.step_id for child in children] == ["m[b]", "m[4]", "m[2]"]
    assert map_items(row_of(made.steps[0]), {"inputs": made.inputs}, ExpansionBudget("the items")) == ["b", 4, ["x"]]


@pytest.mark.spec("DAG-04")
@pytest.mark.parametrize(
    "items",
    [["a", "a", "b"], [1, "1"], ["a", ""], [" "], ["a", "b", "1", [0], "3"], ["x" * 200 + "a", "x" * 200 + "b"]],
    ids=["repeated", "number-and-text", "empty", "blank", "a-value-like-a-position", "equal-beginnings"],
)
def test_items_that_name_nothing_uniquely_are_named_by_their_places(items: list[Json]) -> None:
    plan = (
        PLAN.replace("    key: ${one.name}\n", "").replace("${one.name}", "it").replace("max_items: 3", "max_items: 9")
    )
    made = make(parse_plan(plan, "p.yaml"))
    done = {"a": StepResult("a", StepStatus.COMPLETED, {"items": items})}

    children = expand_map(row_of(made.steps[1]), task_of(made), done, made.root_run.identity)

    assert [child.step_id for child in children] == [f"m[{at}]" for at in range(len(items))]


# -- claim modes
PULLED = """\
title: Pulled
steps:
  - {id: a, instructions: x, claim: pull}
  - {id: m, kind: map, over: [1], step: {instructions: x, claim: pull}}
"""


@pytest.mark.spec("DAG-03")
def test_a_pulled_step_has_no_agent_model_or_tools_of_its_own() -> None:
    made = make(parse_plan(PULLED, "p.yaml"))
    map_step = row_of(made.steps[1])

    (child,) = expand_map(map_step, task_of(made), {}, made.root_run.identity)

    for step in (made.steps[0], child):
        assert step.run is not None
        assert step.claim_mode is ClaimMode.PULL
        assert (step.definition, step.model, step.run.surface) == ("", "", {})
