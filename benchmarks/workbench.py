"""The port between measuring and what is measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from benchmarks.workload import Work, Workload


class Workbench(Protocol):
    """Something that runs workloads: the service on a store, or a peer. Its context manager starts and stops it."""

    @property
    def name(self) -> str:
        """The store of the service, or the peer with its settings, as the report shows it."""
        ...

    def does(self, work: Work) -> bool:
        """Return whether it runs workloads whose steps do this."""
        ...

    def run(self, workload: Workload) -> Sequence[float]:
        """Run the workload to its end; return the seconds from handing over to the result, of each single task."""
        ...

    def processes(self) -> Sequence[int]:
        """Return the ids of the processes whose CPU time counts, in addition to this one and Redis."""
        ...

    def transactions(self) -> int | None:
        """Return how many transactions the store has committed so far; None where there is no store."""
        ...

    def log_bytes(self) -> int | None:
        """Return how many bytes the database has written ahead so far; None where it does not say."""
        ...


@dataclass(frozen=True, slots=True)
class Sample:
    """One run of one workload, as measured from outside. ``waits_s`` are the times of its single tasks."""

    elapsed_s: float
    cpu_s: float
    redis_commands: int
    transactions: int | None
    log_bytes: int | None = None
    waits_s: Sequence[float] = ()
