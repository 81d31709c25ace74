"""What simulated calls did to the world outside the rows: each call at most once, whatever happened (DAG-09)."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from soong.shared.engine.tasks.step import Claim
from soong.worker.additional_steps import AdditionalSteps


class Host(Protocol):
    """The worker process in which the work is done."""

    @property
    def worker_id(self) -> str: ...

    @property
    def additional(self) -> AdditionalSteps:
        """What the process's runs hold beside their own steps."""
        ...

    def kill(self) -> None: ...

    def acts(self, claim: Claim) -> None:
        """Be told of every act: whoever acts must hold the lease, unless it has just been let go again."""
        ...


@dataclass(slots=True)
class Effects:
    """Counts by run and call."""

    seen: Counter[tuple[str, str]] = field(default_factory=Counter)

    def happened(self, run_id: str, call_id: str) -> None:
        self.seen[run_id, call_id] += 1

    def repeated(self) -> list[tuple[str, str]]:
        return [call for call, times in self.seen.items() if times > 1]
