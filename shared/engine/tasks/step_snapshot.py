"""What of a step changes while it runs, without its spec and output: a console watches thousands of steps at once."""

from soong.shared.core.value import Value
from soong.shared.engine.tasks.status import StepStatus
from soong.shared.engine.tasks.step import Outcome, Step, StepError


class StepSnapshot(Value):
    """The state of one step at one moment; equal to a former one as long as nothing that people watch has changed."""

    key: str
    status: StepStatus
    outcome: Outcome | None
    run_id: str
    worker_id: str
    attempt: int
    progress: str
    error: StepError | None
    started_us: int | None
    ended_us: int | None

    @classmethod
    def of(cls, step: Step) -> "StepSnapshot":
        return cls(
            step.key,
            step.status,
            step.outcome,
            step.run_id,
            step.worker_id,
            step.attempt,
            step.progress,
            step.error,
            step.started_us,
            step.ended_us,
        )
