"""How a task is watched: a live picture on a terminal, one line a change elsewhere."""

import sys
from collections.abc import Callable
from typing import Protocol

from soong.orchestrator.cli.console import cut, one_line, say, visible
from soong.orchestrator.cli.options import Verbosity, chosen
from soong.orchestrator.cli.step_words import SYMBOLS, TOLD, pull_text, step_line
from soong.orchestrator.client.client import TaskSnapshot
from soong.orchestrator.schemas.task import StepSchema
from soong.shared.engine.sessions.session import ProcessState
from soong.shared.engine.tasks.status import StepStatus


class Display(Protocol):
    """Shows views. ``hold`` takes it off the terminal while something else is written there."""

    def show(self, view: TaskSnapshot) -> None: ...

    def hold(self, held: bool) -> None: ...

    def note(self, sentence: str) -> None: ...

    @property
    def shows_answers(self) -> bool:
        """Whether :meth:`speak` shows anything."""
        ...

    def speak(self, run_id: str, text: str) -> None:
        """Show the text that a run's model is writing, in place of what it was before; empty: it has ended."""
        ...

    def close(self) -> None: ...


class LineDisplay:
    """One line on standard error for each change: for pipes, logs and ``--json``."""

    shows_answers = False

    def __init__(self, write: Callable[[str], None] = say) -> None:
        self._write = write
        self._seen: dict[str, StepStatus] = {}
        self._asked: set[str] = set()
        self._lacking: set[tuple[str, str]] = set()
        self._workers = 0
        self._told_to_pull = ""

    def show(self, view: TaskSnapshot) -> None:
        live = [worker for worker in view.workers if worker.state is ProcessState.LIVE]
        if len(live) != self._workers:
            self._workers = len(live)
            self._write(f"  workers: {len(live)}, slots: {sum(worker.slots for worker in live)}")
        for step in view.steps:
            if self._seen.get(step.key) is not step.status:
                self._seen[step.key] = step.status
                if step.status in TOLD:
                    self._write(f"  {step_line(StepSchema.of(step).model_dump())}")
        if (sentence := pull_text(view.to_be_pulled, view.task.id)) and not self._told_to_pull:
            self._write(f"  {sentence}")
        self._told_to_pull = sentence
        for key, words in view.lacks.items():
            if (key, words) not in self._lacking:
                self._lacking.add((key, words))
                step_id = one_line(key.partition("/")[2], 60)
                self._write(f"  {SYMBOLS[StepStatus.READY]} {step_id} waits: {one_line(words, 0)}")
        for question in view.questions:
            if question.id not in self._asked:
                self._asked.add(question.id)
                asker = question.identity.run_id
                self._write(
                    f"  ? {visible(question.tool, limit=80)} asks for {cut(visible(question.shown), 100)} ({asker})"
                )

    def hold(self, held: bool) -> None:
        """Lines disturb nobody."""

    def note(self, sentence: str) -> None:
        self._write(f"  {sentence}")

    def speak(self, run_id: str, text: str) -> None:
        """Lines are for what is complete."""

    def close(self) -> None:
        """Nothing stays open."""


def make_display(*, is_plain: bool) -> Display:
    """Return the live picture when standard output is a terminal, else lines."""
    if is_plain or chosen() is Verbosity.QUIET or not sys.stdout.isatty():
        return LineDisplay()
    from soong.orchestrator.cli.live import Live  # rich, only for terminals

    return Live()
