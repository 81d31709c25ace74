"""How a task is watched: a live picture on a terminal, one line a change elsewhere."""

import sys
import time
from collections.abc import Iterator
from typing import Protocol

from orchestrator.cli.console import cut, one_line, say, visible
from orchestrator.cli.program import program
from orchestrator.cli.verbosity import Verbosity, chosen
from orchestrator.client import View
from shared.sessions.session import ProcessState
from shared.tasks.pulling import waiting_for_a_puller
from shared.tasks.status import StepStatus
from shared.tasks.step import Outcome, Step

SYMBOLS = {
    StepStatus.PENDING: "·",
    StepStatus.READY: "○",
    StepStatus.CLAIMED: "▸",
    StepStatus.RUNNING: "▸",
    StepStatus.BLOCKED: "?",
    StepStatus.EXPANDING: "…",
    StepStatus.WAITING: "…",
    StepStatus.COMPLETED: "✓",
    StepStatus.FAILED: "✗",
    StepStatus.CANCELLED: "⊘",
    StepStatus.SKIPPED: "-",
}
TOLD = frozenset(
    {
        StepStatus.RUNNING,
        StepStatus.BLOCKED,
        StepStatus.WAITING,
        StepStatus.COMPLETED,
        StepStatus.FAILED,
        StepStatus.CANCELLED,
        StepStatus.SKIPPED,
    }
)


WAITS_FOR_CONSENT = "waits for consent, without a slot"
"""What is said of a step whose run is parked."""


class Display(Protocol):
    """Shows views. ``hold`` takes it off the terminal while something else is written there."""

    def show(self, view: View) -> None: ...

    def hold(self, held: bool) -> None: ...

    def note(self, sentence: str) -> None: ...

    def close(self) -> None: ...


class Lines:
    """One line on standard error for each change: for pipes, logs and ``--json``."""

    def __init__(self) -> None:
        self._seen: dict[str, StepStatus] = {}
        self._asked: set[str] = set()
        self._lacking: set[tuple[str, str]] = set()
        self._workers = 0
        self._told_to_pull = ""

    def show(self, view: View) -> None:
        live = [worker for worker in view.workers if worker.state is ProcessState.LIVE]
        if len(live) != self._workers:
            self._workers = len(live)
            say(f"  workers: {len(live)}, slots: {sum(worker.slots for worker in live)}")
        for step in view.steps:
            if self._seen.get(step.key) is not step.status:
                self._seen[step.key] = step.status
                if step.status in TOLD:
                    say(f"  {SYMBOLS[step.status]} {one_line(step.step_id, 60)} {step.status}{_facts(step)}")
        if (sentence := pull_text(view)) and not self._told_to_pull:
            say(f"  {sentence}")
        self._told_to_pull = sentence
        for key, words in view.lacks.items():
            if (key, words) not in self._lacking:
                self._lacking.add((key, words))
                step_id = one_line(key.partition("/")[2], 60)
                say(f"  {SYMBOLS[StepStatus.READY]} {step_id} waits: {one_line(words, 200)}")
        for question in view.questions:
            if question.id not in self._asked:
                self._asked.add(question.id)
                asker = question.identity.run_id
                say(f"  ? {visible(question.tool, limit=80)} asks for {cut(visible(question.shown), 100)} ({asker})")

    def hold(self, held: bool) -> None:
        """Lines disturb nobody."""

    def note(self, sentence: str) -> None:
        say(f"  {sentence}")

    def close(self) -> None:
        """Nothing stays open."""


def make_display(*, is_plain: bool) -> Display:
    """Return the live picture when standard output is a terminal, else lines."""
    if is_plain or chosen() is Verbosity.QUIET or not sys.stdout.isatty():
        return Lines()
    from orchestrator.cli.live import Live  # rich, only for terminals

    return Live()


def pull_text(view: View) -> str:
    """Say what to do about steps that nobody is there to pull; empty when there are none."""
    number = 0 if view.task.status.is_terminal else waiting_for_a_puller(view.steps)
    if not number:
        return ""
    steps = "1 step waits" if number == 1 else f"{number} steps wait"
    return f"{steps} for a puller: {program()} tasks dispatch {view.task.id}"


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


def status_text(step: Step) -> str:
    """Return a step's status with its outcome or what it waits for, where that says more."""
    if step.status is StepStatus.BLOCKED:
        return f"{step.status} (waits for consent)"
    return f"{step.status} ({step.outcome})" if step.outcome is Outcome.PARTIAL else str(step.status)


def counted(status: StepStatus) -> str:
    """Return what steps of a status are called where they are counted."""
    return "waiting for consent" if status is StepStatus.BLOCKED else str(status)


def _facts(step: Step) -> str:
    return "".join(_facts_of(step))


def _facts_of(step: Step) -> Iterator[str]:
    if step.outcome is Outcome.PARTIAL:
        yield " (partial)"
    if step.status is StepStatus.BLOCKED:
        yield f": {WAITS_FOR_CONSENT}"
    if step.status.is_terminal and step.started_us is not None:
        yield f" in {time_text(seconds_of(step))}"
    if step.attempt > 1:
        yield f", attempt {step.attempt}"
    if step.error is not None and step.status is StepStatus.FAILED:
        yield f": {one_line(step.error.message, 160)}"
