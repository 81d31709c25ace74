"""The workloads: W1, a fan of parallel steps between one root and one join; W2, a chain.

Each is run with ``python`` steps that return their input, and with one-turn ``script`` agents.
"""

from dataclasses import dataclass
from enum import StrEnum


class Shape(StrEnum):
    """FAN: 1 root, ``size`` parallel steps, 1 join. CHAIN: ``size`` steps, each after the one before."""

    FAN = "W1"
    CHAIN = "W2"


class Work(StrEnum):
    """What one step does: PYTHON calls a registered function, SCRIPT runs an agent for one scripted turn."""

    PYTHON = "python"
    SCRIPT = "script"


@dataclass(frozen=True, slots=True)
class Workload:
    """One shape of one size with one kind of step."""

    shape: Shape
    work: Work
    size: int

    @property
    def name(self) -> str:
        return f"{self.shape}-{self.work}"
