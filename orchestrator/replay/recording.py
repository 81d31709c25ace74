"""Reads all that a replay needs of a task; nothing else is looked at afterwards."""

from collections.abc import Mapping, Sequence

from soong.shared.agents.replay.lives import RunRecord
from soong.shared.core.value import Value
from soong.shared.engine.runs.events import Event
from soong.shared.engine.runs.record import Run
from soong.shared.engine.tasks.step import Step, StepResult, Task
from soong.shared.storage.store import Store

MAX_RUNS = 100_000


class TaskRecord(Value):
    """A task as its rows have it. ``runs`` are in the order in which they were made, all attempts of all steps."""

    task: Task
    steps: Sequence[Step]
    runs: Sequence[RunRecord]
    results: Mapping[str, StepResult]
    """By step key."""

    def step_of(self, run: Run) -> Step | None:
        """Return the step that a run is or was an attempt of; None for the task's own run."""
        return next((step for step in self.steps if step.key == run.identity.step_key), None)

    def dependencies(self, step: Step) -> dict[str, StepResult]:
        """Return the results that a step was given, by step id."""
        return {self.results[key].step_id: self.results[key] for key in step.depends_on if key in self.results}


async def read_task(store: Store, task: Task) -> TaskRecord:
    """Read a task and its runs."""
    steps = await store.tasks.steps(task.id)
    runs = await store.runs.list_runs(task_id=task.id, limit=MAX_RUNS)
    events: dict[str, list[Event]] = {run.id: [] for run in runs}
    for event in await store.runs.events_of(list(events)):
        events[event.run_id].append(event)
    records = [
        RunRecord(run, await store.runs.nodes(run.id), events[run.id], await store.runs.calls(run.id)) for run in runs
    ]
    results = {step.key: await store.tasks.result(step.key) for step in steps if step.status.is_terminal}
    return TaskRecord(task, steps, records, results)
