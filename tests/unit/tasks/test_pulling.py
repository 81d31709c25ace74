"""Pull workers and capable workers: what may be asked of them, and what is missing."""

import pytest
from msgspec.structs import replace

from soong.shared.core.errors import InvalidPlanError, LimitExceededError
from soong.shared.core.identity import Role, RunIdentity
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.sessions.session import ApprovalMode, ProcessState, Session, Worker
from soong.shared.engine.tasks.claims import is_able, lacking
from soong.shared.engine.tasks.growth import planned_task, standing_of
from soong.shared.engine.tasks.new_tasks import new_task
from soong.shared.engine.tasks.plan.plan import PlanNames
from soong.shared.engine.tasks.plan.reader import parse_plan
from soong.shared.engine.tasks.planner import PULL_WORKER_TOOLS, Planner, read_dispatch
from soong.shared.engine.tasks.spec import StepStatus
from soong.shared.engine.tasks.step import NewStep, Step, Task
from soong.shared.engine.wire.notifier import catalogue_of, declared, functions_needed, in_words, labels, tools_needed
from tests.model.builders import make_worker
from tests.unit.agents.parts import row_of, task_of

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


@pytest.mark.spec("DAG-03")
def test_additional_pull_workers_get_other_ids() -> None:
    (first,) = pull_workers({})
    standing = replace(row_of(first), is_pull_worker=True)

    (second,) = pull_workers({}, standing)

    assert second.step_id == "pull-worker-2"


@pytest.mark.spec("DAG-03")
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


@pytest.mark.spec("DIS-10", "DAG-03")
def test_pull_workers_need_a_script_on_the_script_model_and_count_as_children() -> None:
    with pytest.raises(InvalidPlanError, match="no script"):
        pull_workers({}, planner=Planner(KNOWN, default_model="script"))
    assert pull_workers({"script": "builtin.echo"}, planner=Planner(KNOWN, default_model="script"))

    with pytest.raises(LimitExceededError):
        pull_workers({"count": 3}, planner=Planner(KNOWN, default_model="m", max_children=4))


@pytest.mark.spec("DAG-03")
def test_a_pull_worker_is_in_no_drawing_and_nobodys_to_depend_on() -> None:
    task, steps = made()
    (pull_worker,) = pull_workers({})
    rows = [*steps, replace(row_of(pull_worker), is_pull_worker=True)]

    assert [step.id for step in planned_task(task, rows).steps] == ["p", "q"]
    assert standing_of(rows).keys() == {"p", "q"}


PLAIN = make_worker("wrk_plain", capabilities=("protocol:1", "tool:code.read_file"))
GPU = make_worker("wrk_gpu", capabilities=("protocol:1", "gpu"))
BIG = make_worker("wrk_big", pools=("big",), capabilities=("protocol:1", "gpu"))


@pytest.mark.spec("DIS-04")
@pytest.mark.parametrize("state", [ProcessState.DRAINING, ProcessState.GONE])
def test_a_worker_that_does_not_live_is_able_to_nothing(state: ProcessState) -> None:
    assert not is_able(make_worker(state=state), "default", ())
    assert lacking("default", (), [make_worker(state=state)]) == "no worker lives"


@pytest.mark.spec("DIS-04")
@pytest.mark.parametrize(
    ("pool", "needs", "workers", "words"),
    [
        ("default", ("gpu",), [PLAIN, GPU], ""),
        ("default", ("gpu",), [PLAIN, BIG], "no capable worker: needs the label 'gpu'"),
        ("small", (), [PLAIN, BIG], "no capable worker: needs the pool 'small'"),
        ("default", ("protocol:2", "gpu"), [GPU], "no capable worker: needs the protocol 2"),
        ("default", ("tool:team.count",), [PLAIN, GPU], "no capable worker: needs the tool team.count"),
        (
            "default",
            ("tool:code.read_file", "gpu"),
            [PLAIN, GPU],
            "no capable worker: needs the tool code.read_file, the label 'gpu'",
        ),
        ("default", (), [], "no worker lives"),
    ],
    ids=["able", "a label", "a pool", "a version", "a tool", "none has all", "nobody"],
)
def test_what_is_missing_is_named(pool: str, needs: tuple[str, ...], workers: list[Worker], words: str) -> None:
    assert lacking(pool, needs, workers) == words


@pytest.mark.spec("DIS-04")
def test_what_a_plan_asks_for_is_distinguished_from_what_a_step_is_made_of_and_what_all_have() -> None:
    needs = ("gpu", "host:big", "protocol:1", *tools_needed(["code.search"]), *functions_needed(["team.f"]))

    assert declared(needs) == ("gpu", "host:big")
    assert labels((*needs, "version:1")) == ("gpu",)

    assert functions_needed(["builtin.echo", "", "team.f"]) == ("function:team.f",)

    assert in_words("project:prj_1@/srv/shop") == "the project at /srv/shop"


@pytest.mark.spec("DIS-04")
def test_a_catalogue_is_distinguished_from_another_by_its_schemas_alone() -> None:
    one, other = catalogue_of({"a": {}, "b": {"type": "object"}}), catalogue_of({"a": {}, "b": {"type": "array"}})

    assert one == catalogue_of({"b": {"type": "object"}, "a": {}}) != other
