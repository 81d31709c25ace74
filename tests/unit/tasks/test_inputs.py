import pytest

from soong.shared.core.errors import InvalidPlanError, TemplateError
from soong.shared.core.jsontext import Json
from soong.shared.engine.tasks.plan.plan import bind_inputs, bind_step
from soong.shared.engine.tasks.plan.reader import parse_plan
from soong.shared.engine.tasks.spec import StepSpec, StepStatus
from soong.shared.engine.tasks.step import StepResult

PLAN = parse_plan(
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
        bind_inputs(PLAN, given)

    assert problem in str(raised.value)


def test_a_result_without_what_is_asked_of_it_is_named() -> None:
    results = {"a": StepResult("a", StepStatus.COMPLETED, {"y": 1})}

    with pytest.raises(TemplateError, match=r"a\.output\.x.*there is no 'x' \(there is: y\)"):
        bind_step(StepSpec(inputs={"x": "${a.output.x}"}), {}, results)
