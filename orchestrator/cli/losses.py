"""Reports workers that died with steps of a task to the person who follows it."""

from collections import Counter
from dataclasses import dataclass

from soong.orchestrator.cli.console import one_line
from soong.orchestrator.client.client import TaskSnapshot


@dataclass(slots=True)
class LostLeases:
    """Compares each view of a task with the one before.

    What was lost before the first one is not said again, unless the task is new: then nobody has said it.
    """

    _seen: dict[str, int] | None = None

    @classmethod
    def of(cls, *, is_new: bool) -> "LostLeases":
        """Begin with a task that is as it was written, or with whatever the first view shows."""
        return cls({} if is_new else None)

    def news(self, view: TaskSnapshot) -> list[str]:
        """Return a sentence for each worker that was lost since the last view, with what becomes of its steps."""
        before, self._seen = self._seen, {step.key: step.lost_leases for step in view.steps}
        if before is None:
            return []
        lost = [step for step in view.steps if step.lost_leases > before.get(step.key, 0)]
        by_worker = Counter(step.lost_to for step in lost)
        again = Counter(step.lost_to for step in lost if not step.status.is_terminal)
        return [f"{one_line(worker, 200)}{_consequence(again[worker])}" for worker in by_worker]


def _consequence(number: int) -> str:
    if not number:
        return ""
    return "; 1 step starts again" if number == 1 else f"; {number} steps start again"
