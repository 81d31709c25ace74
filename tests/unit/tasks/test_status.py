"""The tables of statuses, walked whole; the stored form of a step's spec."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import TypeVar

import pytest
from msgspec import ValidationError, convert

from soong.shared.core.errors import InvalidTransitionError
from soong.shared.core.jsontext import JsonObject
from soong.shared.engine.runs.record import RUN_TRANSITIONS, EndReason, RunEvent, RunStatus
from soong.shared.engine.tasks.spec import (
    STEP_TRANSITIONS,
    TASK_TRANSITIONS,
    BoundStep,
    ClaimMode,
    DeclaredPermissions,
    FailurePolicy,
    StepEvent,
    StepKind,
    StepSpec,
    StepStatus,
    TaskEvent,
    TaskStatus,
    advance_step,
    advance_task,
)
from soong.shared.storage.sql.engine.row_mapper import pack, unpack
from tests.model.memory.rows import advance_run


@dataclass(frozen=True)
class Machine:
    """One of the tables, with the functions and sets that belong to it."""

    subject: str
    statuses: tuple[StrEnum, ...]
    events: tuple[StrEnum, ...]
    table: Mapping[tuple[StrEnum, StrEnum], StrEnum]
    advance: Callable[[StrEnum, StrEnum], StrEnum]
    start: StrEnum

    @property
    def ends(self) -> set[StrEnum]:
        return {status for status in self.statuses if getattr(status, "is_terminal", False)}

    def pairs(self) -> Iterable[tuple[StrEnum, StrEnum]]:
        return product(self.statuses, self.events)


Status = TypeVar("Status", bound=StrEnum)
Event = TypeVar("Event", bound=StrEnum)


def _table(transitions: Mapping[tuple[Status, Event], Status]) -> dict[tuple[StrEnum, StrEnum], StrEnum]:
    return {(status, event): target for (status, event), target in transitions.items()}


def _advance_step(status: StrEnum, event: StrEnum) -> StrEnum:
    return advance_step(StepStatus(status), StepEvent(event))


def _advance_task(status: StrEnum, event: StrEnum) -> StrEnum:
    return advance_task(TaskStatus(status), TaskEvent(event))


def _advance_run(status: StrEnum, event: StrEnum) -> StrEnum:
    return advance_run(RunStatus(status), RunEvent(event))


STEPS = Machine(
    "step", tuple(StepStatus), tuple(StepEvent), _table(STEP_TRANSITIONS), _advance_step, StepStatus.PENDING
)
TASKS = Machine(
    "task", tuple(TaskStatus), tuple(TaskEvent), _table(TASK_TRANSITIONS), _advance_task, TaskStatus.RUNNING
)
RUNS = Machine("run", tuple(RunStatus), tuple(RunEvent), _table(RUN_TRANSITIONS), _advance_run, RunStatus.QUEUED)

each_machine = pytest.mark.parametrize("machine", [STEPS, TASKS, RUNS], ids=lambda machine: machine.subject)


@pytest.mark.spec("DAG-04.b", "DAG-04")
@each_machine
def test_every_pair_either_moves_as_the_table_says_or_is_refused_by_name(machine: Machine) -> None:
    for status, event in machine.pairs():
        if (status, event) in machine.table:
            assert machine.advance(status, event) is machine.table[status, event]
            continue
        with pytest.raises(InvalidTransitionError) as refusal:
            machine.advance(status, event)
        assert (refusal.value.subject, refusal.value.status, refusal.value.event) == (machine.subject, status, event)
        assert repr(status.value) in str(refusal.value)
        assert repr(event.value) in str(refusal.value)


@pytest.mark.spec("DAG-04.b", "DAG-04")
@each_machine
def test_every_status_is_reached_from_the_first(machine: Machine) -> None:
    reached = {machine.start}
    for _ in machine.statuses:
        reached |= {target for (status, _), target in machine.table.items() if status in reached}

    assert reached == set(machine.statuses)


@pytest.mark.spec("DAG-04")
@each_machine
def test_whatever_has_not_ended_leads_to_an_end_and_can_be_cancelled_and_only_a_retry_leads_out_of_one(
    machine: Machine,
) -> None:
    leading = set(machine.ends)
    for _ in machine.statuses:
        leading |= {status for (status, _), target in machine.table.items() if target in leading}

    assert leading == set(machine.statuses)

    cancellable = {status for status, event in machine.table if event == "cancel"}

    assert cancellable == set(machine.statuses) - machine.ends

    assert {event for status, event in machine.table if status in machine.ends} <= {"retry"}


@pytest.mark.spec("DAG-04.a", "DAG-04")
def test_the_states_of_a_step_are_those_of_the_specification() -> None:
    assert {status.value for status in StepStatus} == {
        *("pending", "ready", "running", "blocked", "completed", "failed", "cancelled", "skipped"),
        *("expanding", "waiting"),
    }


@pytest.mark.spec("DIS-05.b", "DAG-04")
def test_the_ends_of_a_run_are_those_of_the_specification() -> None:
    assert {reason.value for reason in EndReason} == {
        *("completed", "failed", "aborted_tools", "cancelled", "max_turns", "token_limit", "cost_limit", "time_limit"),
        *("lease_lost", "schema_unsupported", "provider_failed", "stopped_by_hook"),
    }


CHILD = StepSpec(
    kind=StepKind.AGENT,
    title="Item ${item}",
    permissions=DeclaredPermissions(("out",), ("a.example.org",), (("git", "status"),)),
    allowed_tools=(),
    priority=3,
    backoff_s=2.5,
    claim=ClaimMode.PULL,
)
SPECS = {
    "empty": StepSpec(),
    "agent": StepSpec(id="a", instructions="Do.", output={"type": "object"}, timeout_s=1.5, retries=2, script="x.y"),
    "settings": StepSpec(id="s", instructions="Do.", settings={"temperature": 0.5, "cache": False}),
    "python": StepSpec(id="b", kind=StepKind.PYTHON, call="f", inputs={"x": None}, on_failure=FailurePolicy.KEEP),
    "map": StepSpec(
        id="m", kind=StepKind.MAP, over=[1], step=CHILD, item_key="${item}", child_surface={"tools": []}, max_items=2
    ),
    "item": StepSpec(id="m[1]", bound=BoundStep("Do 1.", {"n": 1})),
    "pull worker": StepSpec(id="p", max_steps=0),
}


@pytest.mark.spec("DAG-02")
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS.keys())
def test_what_is_read_is_what_was_written(spec: StepSpec) -> None:
    assert convert(unpack(pack(spec.as_json())), StepSpec) == spec


def test_defaults_are_not_stored_and_a_later_versions_field_is_passed_over() -> None:
    assert StepSpec(id="a").as_json() == {"id": "a"}

    assert convert({"written_later": 1}, StepSpec) == StepSpec()


@pytest.mark.parametrize(
    "stored",
    [{"output": []}, {"inputs": "x"}, {"permissions": "x"}, {"kind": "shell"}, {"retries": "1"}, {"step": {"call": 1}}],
    ids=str,
)
def test_value_of_another_type_is_refused(stored: JsonObject) -> None:
    with pytest.raises(ValidationError):
        convert(stored, StepSpec)
