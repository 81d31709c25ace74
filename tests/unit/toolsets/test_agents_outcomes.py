"""What a call that started agents comes to: a success, or an error that says what the facts say (EXE-04)."""

from typing import Any

import pytest
from msgspec.structs import replace

from soong.shared.engine.tasks.status import StepStatus, TaskStatus
from soong.shared.engine.tasks.step import Step, StepError, Task
from soong.shared.tools.definition import HandlerOutput
from soong.shared.tools.result import ErrorType, JsonBlock, ToolFailure, ToolResult
from soong.shared.toolsets.agents.outcomes import GIVE_AGAIN, START_ANOTHER, child_outcome, task_outcome
from tests.model.builders import make_session, make_task, open_session
from tests.model.memory.store import MemoryStore

FACTS: dict[str, Any] = {"step": "a", "output": None}


@pytest.fixture
async def rows() -> tuple[Task, Step]:
    store = MemoryStore()
    ownership = await open_session(store, make_session(owner_id="own_1"))
    task = make_task(ownership.session_id, "a", "b")
    await store.tasks.create_task(task)
    return await store.tasks.task(task.id), (await store.tasks.steps(task.id))[0]


def failure_in(outcome: HandlerOutput) -> ToolFailure:
    """Return the error of an outcome, which has all its facts as well."""
    assert isinstance(outcome, ToolResult)
    assert outcome.error is not None
    assert (outcome.content, outcome.data) == ((JsonBlock(FACTS),), FACTS)
    return outcome.error


def ended(step: Step, status: StepStatus, error: StepError | None = None) -> Step:
    return replace(step, status=status, error=error)


@pytest.mark.spec("EXE-04.f")
@pytest.mark.parametrize(
    ("status", "error", "type_", "words"),
    [
        (StepStatus.FAILED, StepError("provider_failed", "401"), ErrorType.EXECUTION_FAILED, "provider_failed: 401"),
        (StepStatus.FAILED, StepError("permission_denied", "no"), ErrorType.EXECUTION_FAILED, "permission_denied: no"),
        (StepStatus.FAILED, StepError("budget_exceeded", "5 usd"), ErrorType.BUDGET_EXCEEDED, "5 usd"),
        (StepStatus.CANCELLED, None, ErrorType.CANCELLED, "was cancelled"),
        (StepStatus.SKIPPED, None, ErrorType.EXECUTION_FAILED, "ended as skipped"),
    ],
)
def test_a_child_that_did_not_complete_is_an_error(
    rows: tuple[Task, Step], status: StepStatus, error: StepError | None, type_: ErrorType, words: str
) -> None:
    failure = failure_in(child_outcome(ended(rows[1], status, error), FACTS, lack="", hint=START_ANOTHER))

    assert (failure.type, failure.hint, words in failure.message) == (type_, START_ANOTHER, True)


def test_a_child_that_completed_is_its_facts(rows: tuple[Task, Step]) -> None:
    assert child_outcome(ended(rows[1], StepStatus.COMPLETED), FACTS, lack="", hint="") == FACTS


@pytest.mark.spec("EXE-04.f")
def test_a_child_that_no_worker_takes_is_an_error_that_says_why(rows: tuple[Task, Step]) -> None:
    failure = failure_in(child_outcome(rows[1], FACTS, lack="the label 'gpu'", hint=START_ANOTHER))

    assert (failure.type, "'a': the label 'gpu'" in failure.message) == (ErrorType.WORKER_INCOMPATIBLE, True)


@pytest.mark.spec("EXE-04.f")
def test_a_task_with_failed_steps_is_an_error_that_names_them_until_it_is_completed(rows: tuple[Task, Step]) -> None:
    task, step = rows
    failed = [
        ended(replace(step, spec=replace(step.spec, id=f"s{n}")), StepStatus.FAILED, StepError("x", "y"))
        for n in range(12)
    ]

    failure = failure_in(task_outcome(task, failed, FACTS, {}))

    assert (failure.type, failure.hint) == (ErrorType.EXECUTION_FAILED, GIVE_AGAIN)
    assert failure.message.startswith("steps 's0', 's1'")
    assert failure.message.endswith("'s9' and 2 more failed")
    assert task_outcome(replace(task, status=TaskStatus.COMPLETED), failed, FACTS, {}) == FACTS
    assert task_outcome(task, [step], FACTS, {}) == FACTS


@pytest.mark.spec("EXE-04.f")
def test_a_task_that_was_cancelled_or_failed_is_an_error(rows: tuple[Task, Step]) -> None:
    task, step = rows
    cancelled = replace(task, status=TaskStatus.CANCELLED, reason="by ada")
    gone = replace(task, status=TaskStatus.FAILED, reason="given up")

    said = [failure_in(task_outcome(one, [step], FACTS, {})) for one in (cancelled, gone)]

    assert [one.type for one in said] == [ErrorType.CANCELLED, ErrorType.EXECUTION_FAILED]
    assert (said[0].hint, "given up" in said[1].message) == ("by ada", True)


@pytest.mark.spec("EXE-04.f")
def test_a_task_that_waits_for_a_worker_is_an_error_that_says_for_what(rows: tuple[Task, Step]) -> None:
    task, step = rows

    failure = failure_in(task_outcome(task, [step], FACTS, {step.key: "the tool x"}))

    assert (failure.type, failure.message) == (ErrorType.WORKER_INCOMPATIBLE, "no worker takes step 'a': the tool x")
