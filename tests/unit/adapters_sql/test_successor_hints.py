"""Which ends are worth a try to claim their successor with them."""

from soong.shared.engine.runs.status import EndReason
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import StepEnd
from soong.shared.storage.sql.claims.successor_hints import PAUSE, SuccessorHints


def completed(run_id: str) -> StepEnd:
    return StepEnd("task_1/a", run_id, 1, StepStatus.COMPLETED, EndReason.COMPLETED)


def left_out(hints: SuccessorHints) -> int:
    """Count the ends that are written without a try until one is worth it."""
    for number in range(PAUSE + 2):
        hints.note(f"run_{number}", is_followed=True)
        if hints.is_worth_a_try(completed(f"run_{number}")):
            return number
    raise AssertionError("no end was worth a try")


def test_a_failed_try_leaves_ends_out_until_one_succeeds() -> None:
    hints = SuccessorHints()
    hints.note_try(completed("run_0"), has_claimed=False)
    after_failure = left_out(hints)
    hints.note_try(completed("run_0"), has_claimed=True)

    assert after_failure == PAUSE
    assert left_out(hints) == 0


def test_an_end_that_did_not_complete_its_step_or_has_no_follower_is_not_worth_a_try() -> None:
    hints = SuccessorHints()
    hints.note("run_1", is_followed=False)
    hints.note("run_2", is_followed=True)
    failed = StepEnd("task_1/a", "run_2", 1, StepStatus.FAILED, EndReason.FAILED)

    assert not hints.is_worth_a_try(completed("run_1"))
    assert not hints.is_worth_a_try(failed)
    assert hints.is_worth_a_try(completed("run_2"))
