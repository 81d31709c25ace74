"""The workloads: W1, a fan of parallel steps between one root and one join; W2, a chain; W5, tasks of one step each.

Each is run with ``python`` steps that return their input, and with agents that make one read-only tool call, or three.
"""

from dataclasses import dataclass
from enum import StrEnum


class Shape(StrEnum):
    """FAN: 1 root, ``size`` parallel steps, 1 join. CHAIN: ``size`` steps, each after the one before.

    SINGLE: ``size`` tasks of one step, each begun when the result of the one before is there.
    """

    FAN = "W1"
    CHAIN = "W2"
    SINGLE = "W5"


class Work(StrEnum):
    """What one step does: PYTHON calls a registered function, an agent makes 1 or 3 calls by its script."""

    PYTHON = "python"
    AGENT = "agent"
    AGENT_3 = "agent-3"

    @property
    def is_agent(self) -> bool:
        return self is not Work.PYTHON

    @property
    def calls(self) -> int:
        return {Work.PYTHON: 0, Work.AGENT: 1, Work.AGENT_3: 3}[self]


@dataclass(frozen=True, slots=True)
class Workload:
    """One shape of one size with one kind of step."""

    shape: Shape
    work: Work
    size: int

    @property
    def name(self) -> str:
        return f"{self.shape}-{self.work}"
