from collections.abc import Mapping, Sequence
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from soong.orchestrator.cli.plan_files import plan_text
from soong.shared.core.errors import ConflictError, NotFoundError
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.tasks.plan.budget import ExpansionBudget
from soong.shared.engine.tasks.plan.reader import plan_from_json
from soong.shared.engine.tasks.plan.template import render
from soong.shared.engine.tasks.plan.yaml_document import read_document
from soong.shared.engine.tasks.rerun import forked_plan, literal
from soong.shared.engine.tasks.spec import FailurePolicy, StepKind, StepStatus, TaskKind, TaskStatus
from soong.shared.engine.tasks.step import Step, StepError, StepResult, Task
from tests.model.builders import make_map, make_step
from tests.unit.agents.parts import row_of

pytestmark = pytest.mark.spec("DAG-11.b")

PLAN: JsonObject = {
    "title": "Report",
    "inputs": {"glob": "*.py", "deep": {"type": "boolean", "description": "all of it", "required": True}},
    "steps": [
        {"id": "find", "title": "Find", "kind": "python", "call": "builtin.echo"},
        {"id": "each", "kind": "map", "over": "${find.output}", "depends_on": ["find"], "step": {"script": "a.b"}},
        {"id": "sum", "kind": "python", "call": "builtin.echo", "depends_on": ["each", "find"]},
        {"id": "send", "kind": "python", "call": "builtin.echo", "depends_on": ["sum"]},
    ],
}


def task(**more: Any) -> Task:
    made = Task("t", "s", "Report", TaskStatus.COMPLETED, PLAN, {"glob": "*.md", "deep": True}, "run_0", 0)
    return replace(made, **more)


def rows(**statuses: StepStatus) -> list[Step]:
    """Return the steps of the plan and an item of its map step, completed but for those that are named."""
    made = [
        make_step("find", kind=StepKind.PYTHON),
        make_map("each", depends_on=["find"]),
        make_step("sum", depends_on=["each", "find"], kind=StepKind.PYTHON),
        make_step("send", depends_on=["sum"], kind=StepKind.PYTHON),
    ]
    steps = [
        replace(
            row_of(step),
            key=f"t/{step.step_id}",
            depends_on=tuple(f"t/{one}" for one in _edges(step.step_id)),
            status=statuses.get(step.step_id, StepStatus.COMPLETED),
        )
        for step in made
    ]
    item = replace(
        steps[0],
        key="t/each[0]",
        spec=replace(steps[0].spec, id="each[0]"),
        map_key="t/each",
        item_index=0,
        depends_on=(),
    )
    return [*steps, replace(item, status=statuses.get("item", StepStatus.COMPLETED))]


def _edges(step_id: str) -> Sequence[str]:
    planned = cast("list[Mapping[str, Any]]", PLAN["steps"])
    return next(cast("list[str]", one.get("depends_on", [])) for one in planned if one["id"] == step_id)


def forked(steps: Sequence[Step], from_step: str, **more: Any) -> dict[str, Mapping[str, Any]]:
    results = {step.key: StepResult(step.step_id, step.status, {"of": step.step_id}) for step in steps}
    plan = forked_plan(task(**more), steps, results, from_step)
    plan_from_json(plan, "fork")
    return {str(one["id"]): one for one in cast("list[Mapping[str, Any]]", plan["steps"])}


def again(steps: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [name for name, step in steps.items() if step.get("call") != "builtin.given"]


def test_the_step_and_all_below_it_run_again() -> None:
    steps = forked(rows(), "sum")

    assert again(steps) == ["sum", "send"]
    assert steps["find"] == {
        "id": "find",
        "title": "Find",
        "kind": "python",
        "call": "builtin.given",
        "inputs": {"output": {"of": "find"}},
    }
    assert steps["each"]["depends_on"] == ["find"]
    assert steps["sum"] == cast(Any, PLAN["steps"])[2]


def test_a_map_step_runs_again_as_a_whole_and_what_is_kept_waits_for_nothing() -> None:
    assert again(forked(rows(), "each")) == ["each", "sum", "send"]

    steps = forked(rows(find=StepStatus.FAILED), "send")

    assert "depends_on" not in steps["each"]
    assert steps["sum"]["depends_on"] == ["each"]


def test_what_did_not_complete_runs_again() -> None:
    steps = rows(find=StepStatus.FAILED)
    assert again(forked(steps, "send")) == ["find", "send"]
    broken = [
        replace(step, error=StepError("execution_failed", "no"), on_failure=FailurePolicy.KEEP)
        if step.step_id == "each"
        else step
        for step in rows(item=StepStatus.FAILED)
    ]
    assert "each" in again(forked(broken, "send"))


def test_the_inputs_are_those_that_the_task_was_given() -> None:
    plan = forked_plan(task(), rows(), {step.key: StepResult(step.step_id, step.status, 1) for step in rows()}, "send")

    assert plan["inputs"] == {
        "glob": {"default": "*.md"},
        "deep": {"type": "boolean", "description": "all of it", "default": True},
    }
    assert plan["title"] == "Report (from send)"
    assert PLAN["title"] == "Report"


@pytest.mark.parametrize(
    ("from_step", "more", "error", "words"),
    [
        ("sun", {}, NotFoundError, "did you mean 'sum'"),
        ("each[0]", {}, ConflictError, "--from each"),
        ("sum", {"kind": TaskKind.ASK}, ConflictError, "soong ask --session"),
        ("sum", {"plan": {**PLAN, "steps": []}}, ConflictError, "were added to task t"),
    ],
)
def test_what_cannot_be_forked_says_what_to_do(
    from_step: str, more: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        forked(rows(), from_step, **more)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    # What YAML has no escape for is refused where results are taken in.
    | st.text(st.characters(exclude_categories=("Cs", "Cc", "Cn")) | st.sampled_from("${}\n\t:#'\"")),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("ab ${}:1", min_size=1), inner, max_size=4),
    max_leaves=12,
)


@given(JSON)
def test_a_recorded_result_stays_what_it_is(value: Any) -> None:
    assert render(literal(value), {"inputs": {"secret": 1}}, ExpansionBudget("it")) == value


@given(JSON)
def test_the_plan_of_a_fork_is_read_as_it_was_written(value: Any) -> None:
    plan: JsonObject = {"title": "1e3", "steps": [{"id": "a", "inputs": {"output": value, "yes": "no", "n": "012"}}]}

    assert read_document(plan_text(plan), "fork").value == plan
