"""The closed sets that a plan chooses from for a step: what kind of work, who claims it, what its failure means."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from soong.shared.core.value import Value


class KindTraits(Value):
    """What the engine asks about a kind of step. ``brackets`` are its shape in Mermaid."""

    brackets: tuple[str, str]
    is_round: bool = False
    """Its box in a picture has round ends."""
    noun: str = "step"
    """What a claimed one is called."""
    is_agent: bool = False
    """An agent does it, with instructions, a model, tools and permissions."""
    is_untrusted: bool = False
    """What depends on it counts as having read untrusted content: nothing says what it has read itself."""
    has_items: bool = False
    """It has no run: a step is made for each item, and they are its value."""


class StepKind(StrEnum):
    """AGENT runs a child agent; PYTHON calls a registered function; MAP grows children and is never claimable."""

    AGENT = "agent"
    PYTHON = "python"
    MAP = "map"

    @property
    def traits(self) -> KindTraits:
        return _TRAITS[self]


_TRAITS: Final[Mapping[StepKind, KindTraits]] = {
    StepKind.AGENT: KindTraits(("[", "]"), is_agent=True),
    StepKind.PYTHON: KindTraits(("([", "])"), is_round=True, noun="function", is_untrusted=True),
    StepKind.MAP: KindTraits(("[[", "]]"), has_items=True),
}
"""A new kind of step is a row here, a module in ``plan/kinds``, and a runner in the worker."""


class TaskKind(StrEnum):
    """PLAN is a DAG of steps. ASK is a goal: its root run is an agent, which the session's owner runs."""

    PLAN = "plan"
    ASK = "ask"


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
