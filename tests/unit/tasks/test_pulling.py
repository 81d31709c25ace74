"""What may be asked of pull workers, what they become, and when a task waits for one (DAG-03)."""

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import InvalidPlanError, LimitExceededError
from soong.shared.core.identity import Role, RunIdentity
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.sessions.session import ApprovalMode, Session
from soong.shared.engine.tasks.growth import planned_task, standing_of
from soong.shared.engine.tasks.new_tasks import new_task
from soong.shared.engine.tasks.plan.plan import PlanNames
from soong.shared.engine.tasks.plan.reader import parse_plan
from soong.shared.engine.tasks.planner import PULL_WORKER_TOOLS, Planner, read_dispatch
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import NewStep, Step, Task
from tests.unit.agents.parts import row_of, task_of

pytestmark = pytest.mark.spec("DAG-03")

KNOWN = PlanNames(
    tools=frozenset({*PULL_WORKER_TOOLS, "code.read_file"}), definitions=frozenset({"default_worker_agent", "reviewer"})
)
ROOT = RunIdentity("sess_1", "run_root", "agent_root", Role.ORCHESTRATOR, "orchestrator")
PLAN = """\
title: t
inputs: {folder: .}
steps:
  - {id: p, instructions: x, claim: pull}
  - {id: q, instructions: x, claim: pull, depends_on: [p]}
"""


def made() -> tuple[Task, list[Step]]:
    session = Session("sess_1", "/p", "/p", ApprovalMode.DENY, 0)
    task = new_task(
        parse_plan(PLAN, "p.yaml"), {"folder": "."}, session, surface_of=lambda _: {}, default_model="m", now_us=1
    )
    steps: list[Step] = [replace(step, status=StepStatus.READY) for step in task.steps]
    return task_of(task), steps


def pull_workers(document: JsonObject, *more: Step, planner: Planner | None = None) -> tuple[NewStep, ...]:
    task, steps = made()
    dispatch = read_dispatch(document, task, KNOWN)
    return (planner or Planner(KNOWN, default_model="m")).pull_workers(dispatch, task, [*steps, *more], ROOT).steps


def test_additional_pull_workers_get_other_ids() -> None:
    (first,) = pull_workers({})
    standing = replace(row_of(first), is_pull_worker=True)

    (second,) = pull_workers({}, standing)

    assert second.step_id == "pull-worker-2"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        pytest.param({"count": 0}, "count", id="none"),
        pytest.param({"count": 1001}, "count", id="too-many"),
        pytest.param({"max_steps": 0}, "max_steps", id="no-steps"),
        pytest.param({"max_steps": True}, "max_steps", id="no-number"),
        pytest.param({"agent": "revewer"}, "reviewer", id="unknown-agent"),
        pytest.param({"allowed_tools": ["code.raed_file"]}, "code.read_file", id="unknown-tool"),
        pytest.param({"instructions": "${p.output}"}, "not a dependency|no step|not known", id="reference"),
        pytest.param({"script": "builtin.ehco"}, "did you mean 'builtin.echo'", id="script"),
        pytest.param({"colour": "red"}, "colour", id="unknown-field"),
    ],
)
def test_what_cannot_be_dispatched_is_refused_by_name(document: JsonObject, said: str) -> None:
    task, _ = made()

    with pytest.raises(InvalidPlanError, match=said):
        read_dispatch(document, task, KNOWN)


@pytest.mark.spec("DIS-10")
def test_pull_workers_need_a_script_on_the_script_model_and_count_as_children() -> None:
    with pytest.raises(InvalidPlanError, match="no script"):
        pull_workers({}, planner=Planner(KNOWN, default_model="script"))
    assert pull_workers({"script": "builtin.echo"}, planner=Planner(KNOWN, default_model="script"))

    with pytest.raises(LimitExceededError):
        pull_workers({"count": 3}, planner=Planner(KNOWN, default_model="m", max_children=4))


def test_a_pull_worker_is_in_no_drawing_and_nobodys_to_depend_on() -> None:
    task, steps = made()
    (pull_worker,) = pull_workers({})
    rows = [*steps, replace(row_of(pull_worker), is_pull_worker=True)]

    assert [step.id for step in planned_task(task, rows).steps] == ["p", "q"]
    assert standing_of(rows).keys() == {"p", "q"}
