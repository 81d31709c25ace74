"""How steps are shown on a terminal: their symbols, counts and times."""

import time

from soong.orchestrator.client.client import TaskSnapshot
from soong.orchestrator.client.program import program
from soong.shared.engine.tasks.pull_workers import waiting_for_a_pull_worker
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Step

SYMBOLS = {
    StepStatus.PENDING: "·",
    StepStatus.READY: "○",
    StepStatus.RUNNING: "▸",
    StepStatus.BLOCKED: "?",
    StepStatus.EXPANDING: "…",
    StepStatus.WAITING: "…",
    StepStatus.COMPLETED: "✓",
    StepStatus.FAILED: "✗",
    StepStatus.CANCELLED: "⊘",
    StepStatus.SKIPPED: "-",
}


WAITS_FOR_CONSENT = "waits for consent, without a slot"
"""The words for a step whose run is parked."""


def pull_text(view: TaskSnapshot) -> str:
    """Say what to do about steps that nobody is there to pull; empty when there are none."""
    number = 0 if view.task.status.is_terminal else waiting_for_a_pull_worker(view.steps)
    if not number:
        return ""
    steps = "1 step waits" if number == 1 else f"{number} steps wait"
    return f"{steps} for a pull worker: {program()} tasks add-workers {view.task.id}"


def seconds_of(step: Step) -> float | None:
    """Return how long a step has run or ran."""
    if step.started_us is None:
        return None
    return max(0.0, ((step.ended_us or time.time_ns() // 1000) - step.started_us) / 1_000_000)


def time_text(seconds: float | None) -> str:
    """Return a duration for people."""
    if seconds is None:
        return ""
    if seconds < 60:
        return f"{seconds:.1f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def counted(status: StepStatus) -> str:
    """Return what steps of a status are called where they are counted."""
    return "waiting for consent" if status is StepStatus.BLOCKED else str(status)
