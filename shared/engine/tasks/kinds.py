"""The closed sets that a plan chooses from for a step: what kind of work, who claims it, what its failure means."""

from enum import StrEnum


class StepKind(StrEnum):
    """AGENT runs a child agent; PYTHON calls a registered function; MAP grows children and is never claimable."""

    AGENT = "agent"
    PYTHON = "python"
    MAP = "map"


class ClaimMode(StrEnum):
    """Who claims a step: ASSIGNED, its worker for the step's own run; PULL, a run that asks for it with a tool."""

    ASSIGNED = "assigned"
    PULL = "pull"


class FailurePolicy(StrEnum):
    """What the final failure of a step means for the task (DAG-05)."""

    SKIP_DEPENDENTS = "skip_dependents"
    FAIL_TASK = "fail_task"
    KEEP = "keep"
    """Dependents continue with a null result: for items of a map that tolerates failures."""
